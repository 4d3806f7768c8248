"""The metrics that a reward part decides: what fails is no wrong answer."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from rlvr.errors import UserError
from rlvr.rewards.metrics import MathMetric, Metric, ReasoningGymMetric
from rlvr.rewards.pool import VerifierPool
from rlvr.types import StopReason, Verdict
from tests.unit.rewards.attempts import FORMATS, attempt

NONE = Verdict(answer=None, correct=False)


@pytest.fixture(scope="module")
def pool() -> Iterator[VerifierPool]:
    with VerifierPool(num_workers=1, timeout_s=1.0, max_memory_mb=1024) as pool:
        yield pool


def verdict(
    pool: VerifierPool,
    said: str,
    gold: str = "18",
    *,
    metric: Metric | None = None,
    answer_in: str = "whole",
    stop_reason: StopReason = StopReason.STOP,
) -> Verdict:
    made = replace(attempt(said, gold), format=FORMATS[answer_in], sandbox=pool, stop_reason=stop_reason)
    return asyncio.run((metric or MathMetric()).judge(made))


def test_a_verdict_of_math(pool: VerifierPool) -> None:
    assert verdict(pool, "1/2", "0.5") == Verdict(answer="1/2", correct=True)
    assert verdict(pool, "1/3", "0.5") == Verdict(answer="1/3", correct=False)
    assert verdict(pool, "?!", "0.5") == NONE
    assert verdict(pool, "18", stop_reason=StopReason.LENGTH) == NONE


def test_pitfall_26_a_comparison_that_does_not_end_is_a_failure_and_no_wrong_answer(pool: VerifierPool) -> None:
    assert verdict(pool, "10^{10}", "\\log 3") == replace(NONE, failure="timed out after 1 s")


def test_pitfall_26_what_an_example_lacks_ends_the_evaluation(pool: VerifierPool) -> None:
    with pytest.raises(UserError, match="the gold answer '\\?!' of example 'e1' is no expression: correct the data"):
        verdict(pool, "18", "?!")
    with pytest.raises(UserError, match="has no metadata dataset and entry"):
        verdict(pool, "\\boxed{18}", metric=ReasoningGymMetric(), answer_in="boxed")
