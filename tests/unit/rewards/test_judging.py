import inspect
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.errors import UserError
from rlvr.rewards import judging
from rlvr.rewards.finqa import FinqaProgramPart
from rlvr.rewards.judging import ExactJudge, FinqaJudge, FinqaProgramJudge, NumericJudge, TextJudge
from rlvr.rewards.numeric import FinqaNumericPart, NumberCheckPart, NumericPart
from rlvr.rewards.text import TextPart
from rlvr.types import StopReason, Verdict
from tests.unit.rewards.attempts import FORMATS, PERTURBATIONS, SOLUTION, WHOLE, attempt, finished, grade, solved
from tests.unit.rewards.test_finqa import GREW, METADATA
from tests.unit.rewards.test_numeric import finqa_rows, gsm8k_golds

JUDGES = {"numeric": NumericJudge, "finqa": FinqaJudge}


@pytest.mark.parametrize("row", PERTURBATIONS, ids=lambda row: f"{row['kind']}-{row['gold']}-{row['text'][:40]}")
def test_pitfall_28_each_perturbation_gets_its_verdict_from_the_metric(row: dict[str, str]) -> None:
    judge = JUDGES[row["task"]](format=FORMATS[row["answer_in"]])
    found = finished(judge.judge(attempt(row["text"], row["gold"])))
    assert found.correct == (row["verdict"] == "right")
    assert (found.answer is None) == (row["verdict"] == "invalid")


@pytest.mark.parametrize(
    ("judge", "said", "gold", "verdict"),
    [
        (NumericJudge, "$1,080.00", "1080", Verdict(answer="1080", correct=True)),
        (NumericJudge, "18 eggs", "18", Verdict(answer="18", correct=True)),
        (NumericJudge, "19.5", "18", Verdict(answer="19.5", correct=False)),
        (NumericJudge, "yes", "no", Verdict(answer="yes", correct=False)),
        (NumericJudge, "banana", "18", Verdict(answer=None, correct=False)),
        (FinqaJudge, "12%", "0.12", Verdict(answer="0.12", correct=True)),
        (FinqaJudge, "0.1201", "0.12", Verdict(answer="0.1201", correct=False)),
        (FinqaJudge, "Yes", "yes", Verdict(answer="yes", correct=True)),
        (TextJudge, "The Green Bay!", "green bay", Verdict(answer="green bay", correct=True)),
        (TextJudge, "Bay Green", "green bay", Verdict(answer="bay green", correct=False)),
        (TextJudge, "the", "a", Verdict(answer="the", correct=False)),
        (ExactJudge, " Paris ", "Paris", Verdict(answer="Paris", correct=True)),
        (ExactJudge, "paris", "Paris", Verdict(answer="paris", correct=False)),
    ],
)
def test_verdicts(judge: Any, said: str, gold: str, verdict: Verdict) -> None:
    assert finished(judge(format=SOLUTION).judge(attempt(solved(said), gold))) == verdict


@pytest.mark.parametrize("judge", [NumericJudge, FinqaJudge, TextJudge, ExactJudge])
def test_a_missing_answer_is_counted_and_never_right(judge: Any) -> None:
    for text in ("", "18", solved(""), "<r>a</r><s>18"):
        assert finished(judge(format=SOLUTION).judge(attempt(text, "18"))) == Verdict(answer=None, correct=False)


def test_pitfall_28_neither_a_metric_nor_a_reward_reads_an_answer_that_was_cut_off() -> None:
    for judge, part, text in (
        (NumericJudge, NumericPart, "18"),
        (FinqaJudge, FinqaNumericPart, "18"),
        (FinqaProgramJudge, FinqaProgramPart, "add(9, 9)"),
        (TextJudge, TextPart, "18"),
        (ExactJudge, NumberCheckPart, "18"),
    ):
        ended = attempt(text, "18", **(METADATA | {"exe_ans": 18.0}))
        cut = replace(ended, stop_reason=StopReason.LENGTH)
        assert finished(judge(format=WHOLE).judge(ended)).correct
        assert finished(judge(format=WHOLE).judge(cut)) == Verdict(answer=None, correct=False)
        assert grade(part(format=WHOLE), ended).value == 1.0
        assert grade(part(format=WHOLE), cut).value == 0.0


def test_aliases_are_right_too() -> None:
    assert finished(TextJudge(format=WHOLE).judge(attempt("MLS", "Major League Soccer", aliases=["MLS"]))).correct


def test_equal_answers_vote_together() -> None:
    said = ("0.12", "12%", "0.120", "3/25", ".12")
    assert {finished(FinqaJudge(format=WHOLE).judge(attempt(text, "0.12"))).answer for text in said} == {"0.12"}


@pytest.mark.parametrize("judge", [NumericJudge, FinqaJudge])
def test_pitfall_28_a_gold_that_cannot_be_read_ends_the_evaluation(judge: Any) -> None:
    for said in ("banana", "18", ""):
        with pytest.raises(
            UserError, match="the gold answer 'banana' of example 'e1' is neither a number nor yes or no"
        ):
            finished(judge(format=WHOLE).judge(attempt(said, "banana")))


def test_programs_are_judged_by_their_results() -> None:
    judge = FinqaProgramJudge(format=SOLUTION)
    assert finished(judge.judge(attempt(solved(GREW), **METADATA))) == Verdict(answer="0.5", correct=True)
    assert finished(judge.judge(attempt(solved("add(1, 1)"), **METADATA))) == Verdict(answer="2.0", correct=False)
    assert finished(judge.judge(attempt(solved("0.5"), **METADATA))) == Verdict(answer=None, correct=False)
    with pytest.raises(UserError, match="has no table or exe_ans in its metadata"):
        finished(judge.judge(attempt(solved(GREW))))


def test_no_reward_setting_can_reach_a_judge() -> None:
    for judge in (NumericJudge, FinqaJudge, FinqaProgramJudge, TextJudge, ExactJudge):
        assert list(inspect.signature(judge).parameters) == ["format"]
    source = inspect.getsource(judging)
    for word in ("tolerance=", "credit", "weight=", "close"):
        assert word not in source.replace("weights, credits", ""), word


@settings(deadline=None)
@given(st.text(max_size=30), st.sampled_from(sorted(FORMATS)))
def test_no_text_crashes_a_judge(said: str, answer_in: str) -> None:
    for judge in (NumericJudge, FinqaJudge, TextJudge, ExactJudge, FinqaProgramJudge):
        for text in (said, solved(said), f"\\boxed{{{said}}}", f"#### {said}"):
            found = finished(judge(format=FORMATS[answer_in]).judge(attempt(text, "18", **METADATA)))
            assert found.answer is not None or not found.correct


def test_every_gold_of_gsm8k_and_finqa_is_right_for_the_metric() -> None:
    numeric, finqa = NumericJudge(format=SOLUTION), FinqaJudge(format=SOLUTION)
    program = FinqaProgramJudge(format=SOLUTION)
    for gold in gsm8k_golds():
        assert finished(numeric.judge(attempt(solved(gold), gold))).correct, gold
        assert not finished(numeric.judge(attempt(solved(f"{gold}1"), gold))).correct, gold
    for row in finqa_rows():
        gold = str(row["qa"]["exe_ans"])
        metadata = {"table": row["table"], "program": row["qa"]["program"], "exe_ans": row["qa"]["exe_ans"]}
        assert finished(finqa.judge(attempt(solved(gold), gold))).correct, gold
        assert not finished(finqa.judge(attempt(solved(f"{gold}1 or 2"), gold))).correct, gold
        assert finished(program.judge(attempt(solved(row["qa"]["program"]), gold, **metadata))).correct, row["id"]
