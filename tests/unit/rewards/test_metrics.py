import asyncio
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.errors import UserError
from rlvr.rewards.finqa import FinqaProgram, FinqaProgramMetric
from rlvr.rewards.math import MathMetric
from rlvr.rewards.metrics import RewardMetric
from rlvr.rewards.numeric import FinqaMetric, FinqaNumeric, NumberCheck, Numeric, NumericMetric
from rlvr.rewards.reasoning_gym import ReasoningGymMetric
from rlvr.rewards.sandbox import Sandbox
from rlvr.rewards.text import ExactMetric, TextMatch, TextMetric
from rlvr.types import Attempt, GradedAnswer, Score, StopReason
from tests.unit.rewards.attempts import FORMATS, GREW, METADATA, WHOLE, attempt, grade, graded_answer, solved

READ = (NumericMetric, FinqaMetric, TextMetric, ExactMetric, FinqaProgramMetric)


@pytest.mark.parametrize(
    ("metric", "said", "gold", "found"),
    [
        (NumericMetric, "$1,080.00", "1080", GradedAnswer(answer="1080", correct=True)),
        (NumericMetric, "18 eggs", "18", GradedAnswer(answer="18", correct=True)),
        (NumericMetric, "19.5", "18", GradedAnswer(answer="19.5", correct=False)),
        (NumericMetric, "yes", "no", GradedAnswer(answer="yes", correct=False)),
        (NumericMetric, "banana", "18", GradedAnswer(answer=None, correct=False)),
        (FinqaMetric, "12%", "0.12", GradedAnswer(answer="0.12", correct=True)),
        (FinqaMetric, "0.1201", "0.12", GradedAnswer(answer="0.1201", correct=False)),
        (FinqaMetric, "Yes", "yes", GradedAnswer(answer="yes", correct=True)),
        (TextMetric, "The Green Bay!", "green bay", GradedAnswer(answer="green bay", correct=True)),
        (TextMetric, "Bay Green", "green bay", GradedAnswer(answer="bay green", correct=False)),
        (TextMetric, "the", "a", GradedAnswer(answer="the", correct=False)),
        (ExactMetric, " Paris ", "Paris", GradedAnswer(answer="Paris", correct=True)),
        (ExactMetric, "paris", "Paris", GradedAnswer(answer="paris", correct=False)),
    ],
)
def test_grades(metric: Any, said: str, gold: str, found: GradedAnswer) -> None:
    assert graded_answer(metric(), attempt(solved(said), gold)) == found


@pytest.mark.parametrize(
    ("metric", "part", "text"),
    [
        *((NumericMetric, Numeric, "18"), (FinqaMetric, FinqaNumeric, "18"), (TextMetric, TextMatch, "18")),
        *((ExactMetric, NumberCheck, "18"), (FinqaProgramMetric, FinqaProgram, "add(9, 9)")),
    ],
)
def test_pitfall_28_an_answer_that_was_cut_off_is_not_read(metric: Any, part: Any, text: str) -> None:
    ended = attempt(text, "18", **(METADATA | {"exe_ans": 18.0}))
    cut = replace(ended, stop_reason=StopReason.LENGTH)
    assert graded_answer(metric(), ended, WHOLE).correct
    assert graded_answer(metric(), cut, WHOLE) == GradedAnswer(answer=None, correct=False)
    assert grade(part(), ended, WHOLE).value == 1.0
    assert grade(part(), cut, WHOLE).value == 0.0


@pytest.mark.parametrize("metric", [NumericMetric, FinqaMetric])
@pytest.mark.parametrize("said", ["banana", "18", ""])
def test_pitfall_28_an_unreadable_gold_ends_the_evaluation(metric: Any, said: str) -> None:
    with pytest.raises(UserError, match="the gold answer 'banana' of example 'e1' is neither a number nor yes or no"):
        graded_answer(metric(), attempt(said, "banana"), WHOLE)


def test_programs_are_judged_by_their_results() -> None:
    for said, answer in ((GREW, "0.5"), ("add(1, 1)", "2.0"), ("0.5", None)):
        found = graded_answer(FinqaProgramMetric(), attempt(solved(said), **METADATA))
        assert found == GradedAnswer(answer=answer, correct=said == GREW)
    with pytest.raises(UserError, match="has no table or exe_ans in its metadata"):
        graded_answer(FinqaProgramMetric(), attempt(solved(GREW)))


@settings(deadline=None)
@given(st.text(max_size=30), st.sampled_from(sorted(FORMATS)))
def test_no_text_crashes_a_metric(said: str, answer_in: str) -> None:
    for metric in READ:
        assert dict(metric.model_fields) == {}  # no reward setting can reach it
        for text in (said, solved(said), f"\\boxed{{{said}}}", f"#### {said}"):
            found = graded_answer(metric(), attempt(text, "18", **METADATA), FORMATS[answer_in])
            assert found.answer is not None or not found.correct


@pytest.fixture(scope="module")
def pool() -> Iterator[Sandbox]:
    with Sandbox(num_workers=1, timeout_s=1.0, max_memory_mb=1024) as pool:
        yield pool


def found(pool: Sandbox, said: str, gold: str) -> GradedAnswer:
    return asyncio.run(MathMetric().grade(replace(attempt(said, gold), format=WHOLE, sandbox=pool)))


@pytest.mark.slow
def test_a_grade_of_math(pool: Sandbox) -> None:
    none = GradedAnswer(answer=None, correct=False)
    assert found(pool, "1/2", "0.5") == GradedAnswer(answer="1/2", correct=True)
    assert found(pool, "1/3", "0.5") == GradedAnswer(answer="1/3", correct=False)
    assert found(pool, "?!", "0.5") == none
    cut = replace(attempt("18"), stop_reason=StopReason.LENGTH, format=WHOLE, sandbox=pool)
    assert asyncio.run(MathMetric().grade(cut)) == none
    assert found(pool, "0.1", "\\int_0^1 \\sin(\\frac{1}{x^9}) dx") == replace(
        none, failure="timed out after 1 s"
    )  # and not wrong


@pytest.mark.slow
def test_pitfall_26_an_example_at_fault_ends_the_evaluation(pool: Sandbox) -> None:
    with pytest.raises(UserError, match="the gold answer '\\?!' of example 'e1' is no expression: correct the data"):
        found(pool, "18", "?!")
    made = replace(attempt("\\boxed{18}"), format=FORMATS["boxed"], sandbox=pool)
    with pytest.raises(UserError, match="has no metadata dataset and entry"):
        asyncio.run(ReasoningGymMetric().grade(made))


class Fixed:
    """A reward that gives one score."""

    name = "reward"

    def __init__(self, **score: Any) -> None:
        self._score = Score(**score)

    async def verify(self, attempt: Attempt) -> Score:
        return self._score


@pytest.mark.parametrize(
    ("score", "found"),
    [
        ({"value": 0.1}, GradedAnswer(answer="blue", correct=True)),
        ({"value": 0.0}, GradedAnswer(answer="blue", correct=False)),
        ({"value": -2.0}, GradedAnswer(answer="blue", correct=False)),
        ({"value": 0.5, "status": "invalid"}, GradedAnswer(answer=None, correct=True)),
        (
            {"value": math.nan, "status": "error", "diagnostics": {"error": "mine: it broke"}},
            GradedAnswer(answer=None, correct=False, failure="mine: it broke"),
        ),
    ],
)
def test_without_answers_the_reward_says_what_is_right(score: dict[str, Any], found: GradedAnswer) -> None:
    metric = RewardMetric().bound(Fixed(**score))
    assert asyncio.run(metric.grade(attempt("blue"))) == found
