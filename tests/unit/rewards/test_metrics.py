import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.errors import UserError
from rlvr.rewards.extract import AnswerFormat
from rlvr.rewards.finqa import FinqaProgram
from rlvr.rewards.metrics import (
    ExactMetric,
    FinqaMetric,
    FinqaProgramMetric,
    MathMetric,
    NumericMetric,
    ReasoningGymMetric,
    TextMetric,
)
from rlvr.rewards.numeric import FinqaNumeric, NumberCheck, Numeric
from rlvr.rewards.sandbox import Sandbox
from rlvr.rewards.text import TextMatch
from rlvr.types import GradedAnswer, StopReason
from tests.unit.rewards.attempts import FORMATS, PERTURBATIONS, WHOLE, attempt, grade, graded_answer, solved
from tests.unit.rewards.test_finqa import GREW, METADATA
from tests.unit.rewards.test_numeric import finqa_rows, gsm8k_golds

METRICS = {"numeric": NumericMetric, "finqa": FinqaMetric}


@pytest.mark.parametrize("row", PERTURBATIONS, ids=lambda row: f"{row['kind']}-{row['gold']}-{row['text'][:40]}")
def test_pitfall_28_each_perturbation_gets_its_grade_from_the_metric(row: dict[str, str]) -> None:
    found = graded_answer(METRICS[row["task"]](), attempt(row["text"], row["gold"]), FORMATS[row["answer_in"]])
    assert found.correct == (row["grade"] == "right")
    assert (found.answer is None) == (row["grade"] == "invalid")


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


def test_pitfall_28_neither_a_metric_nor_a_reward_reads_an_answer_that_was_cut_off() -> None:
    for metric, part, text in (
        (NumericMetric, Numeric, "18"),
        (FinqaMetric, FinqaNumeric, "18"),
        (FinqaProgramMetric, FinqaProgram, "add(9, 9)"),
        (TextMetric, TextMatch, "18"),
        (ExactMetric, NumberCheck, "18"),
    ):
        ended = attempt(text, "18", **(METADATA | {"exe_ans": 18.0}))
        cut = replace(ended, stop_reason=StopReason.LENGTH)
        assert graded_answer(metric(), ended, WHOLE).correct
        assert graded_answer(metric(), cut, WHOLE) == GradedAnswer(answer=None, correct=False)
        assert grade(part(), ended, WHOLE).value == 1.0
        assert grade(part(), cut, WHOLE).value == 0.0


@pytest.mark.parametrize("metric", [NumericMetric, FinqaMetric])
def test_pitfall_28_a_gold_that_cannot_be_read_ends_the_evaluation(metric: Any) -> None:
    for said in ("banana", "18", ""):
        with pytest.raises(
            UserError, match="the gold answer 'banana' of example 'e1' is neither a number nor yes or no"
        ):
            graded_answer(metric(), attempt(said, "banana"), WHOLE)


def test_programs_are_judged_by_their_results() -> None:
    metric = FinqaProgramMetric()
    assert graded_answer(metric, attempt(solved(GREW), **METADATA)) == GradedAnswer(answer="0.5", correct=True)
    assert graded_answer(metric, attempt(solved("add(1, 1)"), **METADATA)) == GradedAnswer(answer="2.0", correct=False)
    assert graded_answer(metric, attempt(solved("0.5"), **METADATA)) == GradedAnswer(answer=None, correct=False)
    with pytest.raises(UserError, match="has no table or exe_ans in its metadata"):
        graded_answer(metric, attempt(solved(GREW)))


@settings(deadline=None)
@given(st.text(max_size=30), st.sampled_from(sorted(FORMATS)))
def test_no_text_crashes_a_metric(said: str, answer_in: str) -> None:
    for metric in (NumericMetric, FinqaMetric, TextMetric, ExactMetric, FinqaProgramMetric):
        assert dict(metric.model_fields) == {}  # no reward setting can reach it
        for text in (said, solved(said), f"\\boxed{{{said}}}", f"#### {said}"):
            found = graded_answer(metric(), attempt(text, "18", **METADATA), FORMATS[answer_in])
            assert found.answer is not None or not found.correct


def test_every_gold_of_gsm8k_and_finqa_is_right_for_the_metric() -> None:
    numeric, finqa = NumericMetric(), FinqaMetric()
    program = FinqaProgramMetric()
    for gold in gsm8k_golds():
        assert graded_answer(numeric, attempt(solved(gold), gold)).correct, gold
        assert not graded_answer(numeric, attempt(solved(f"{gold}1"), gold)).correct, gold
    for row in finqa_rows():
        gold = str(row["qa"]["exe_ans"])
        metadata = {"table": row["table"], "program": row["qa"]["program"], "exe_ans": row["qa"]["exe_ans"]}
        assert graded_answer(finqa, attempt(solved(gold), gold)).correct, gold
        assert not graded_answer(finqa, attempt(solved(f"{gold}1 or 2"), gold)).correct, gold
        assert graded_answer(program, attempt(solved(row["qa"]["program"]), gold, **metadata)).correct, row["id"]


@pytest.fixture(scope="module")
def pool() -> Iterator[Sandbox]:
    with Sandbox(num_workers=1, timeout_s=1.0, max_memory_mb=1024) as pool:
        yield pool


def found(pool: Sandbox, said: str, gold: str) -> GradedAnswer:
    return asyncio.run(MathMetric().grade(replace(attempt(said, gold), format=WHOLE, sandbox=pool)))


def test_a_grade_of_math(pool: Sandbox) -> None:
    assert found(pool, "1/2", "0.5") == GradedAnswer(answer="1/2", correct=True)
    assert found(pool, "1/3", "0.5") == GradedAnswer(answer="1/3", correct=False)
    assert found(pool, "?!", "0.5") == GradedAnswer(answer=None, correct=False)
    cut = replace(attempt("18"), stop_reason=StopReason.LENGTH, format=WHOLE, sandbox=pool)
    assert asyncio.run(MathMetric().grade(cut)) == GradedAnswer(answer=None, correct=False)


def test_pitfall_26_a_comparison_that_does_not_end_is_a_failure_and_no_wrong_answer(pool: Sandbox) -> None:
    assert found(pool, "10^{10}", "\\log 3") == GradedAnswer(answer=None, correct=False, failure="timed out after 1 s")


def test_pitfall_26_a_gold_that_cannot_be_read_ends_the_evaluation(pool: Sandbox) -> None:
    with pytest.raises(UserError, match="the gold answer '\\?!' of example 'e1' is no expression: correct the data"):
        found(pool, "18", "?!")


def test_pitfall_26_an_example_that_is_not_reasoning_gyms_ends_the_evaluation(pool: Sandbox) -> None:
    made = replace(attempt("\\boxed{18}"), format=AnswerFormat(answer_in="boxed"), sandbox=pool)
    with pytest.raises(UserError, match="has no metadata dataset and entry"):
        asyncio.run(ReasoningGymMetric().grade(made))
