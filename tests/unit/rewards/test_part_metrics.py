"""The metrics that a reward part decides: what fails is no wrong answer."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from rlvr.errors import UserError
from rlvr.rewards.extract import AnswerFormat
from rlvr.rewards.metrics import MathMetric, ReasoningGymMetric
from rlvr.rewards.sandbox import Sandbox
from rlvr.types import StopReason, Verdict
from tests.unit.rewards.attempts import WHOLE, attempt


@pytest.fixture(scope="module")
def pool() -> Iterator[Sandbox]:
    with Sandbox(num_workers=1, timeout_s=1.0, max_memory_mb=1024) as pool:
        yield pool


def verdict(pool: Sandbox, said: str, gold: str) -> Verdict:
    return asyncio.run(MathMetric().judge(replace(attempt(said, gold), format=WHOLE, sandbox=pool)))


def test_a_verdict_of_math(pool: Sandbox) -> None:
    assert verdict(pool, "1/2", "0.5") == Verdict(answer="1/2", correct=True)
    assert verdict(pool, "1/3", "0.5") == Verdict(answer="1/3", correct=False)
    assert verdict(pool, "?!", "0.5") == Verdict(answer=None, correct=False)


def test_pitfall_26_a_comparison_that_does_not_end_is_a_failure_and_no_wrong_answer(pool: Sandbox) -> None:
    assert verdict(pool, "10^{10}", "\\log 3") == Verdict(answer=None, correct=False, failure="timed out after 1 s")


def test_pitfall_26_a_gold_that_cannot_be_read_ends_the_evaluation(pool: Sandbox) -> None:
    with pytest.raises(UserError, match="the gold answer '\\?!' of example 'e1' is no expression: correct the data"):
        verdict(pool, "18", "?!")


def test_pitfall_26_an_example_that_is_not_reasoning_gyms_ends_the_evaluation(pool: Sandbox) -> None:
    made = replace(attempt("\\boxed{18}"), format=AnswerFormat(answer_in="boxed"), sandbox=pool)
    with pytest.raises(UserError, match="has no metadata dataset and entry"):
        asyncio.run(ReasoningGymMetric().judge(made))


def test_an_answer_that_was_cut_off_is_none(pool: Sandbox) -> None:
    cut = replace(attempt("18"), stop_reason=StopReason.LENGTH, format=WHOLE, sandbox=pool)
    assert asyncio.run(MathMetric().judge(cut)) == Verdict(answer=None, correct=False)
