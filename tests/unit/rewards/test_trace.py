from dataclasses import replace
from typing import Any

import pytest

from rlvr.rewards.extract import AnswerFormat
from rlvr.rewards.parts import PartsVerifier
from rlvr.rewards.text import TextMatch
from rlvr.rewards.trace import MAX_CHARS, MAX_CITES, MAX_STEPS, Trace, TracedAnswer, make_step
from rlvr.types import StopReason, TraceStep
from tests.unit.rewards.attempts import attempt, finished
from tests.unit.rewards.test_rpn import made, scored


@pytest.mark.parametrize(
    ("completion", "share", "expected"),
    [
        *(("5 <eoe>", None, [("answer", "5", True)]), ("6 <eoe>", None, [("answer", "6", False)])),  # writes no step
        ("4 1 + = 5 <eoe>", 1.0, [("step", "4 1 +", True), ("step", "5", True), ("answer", "5", True)]),
        ("4 1 + = 6 <eoe>", 0.5, [("step", "4 1 +", True), ("step", "6", False), ("answer", "6", False)]),
        # each line is graded by the line before it, so the answer is wrong although the last step is right
        ("4 2 + = 6 <eoe>", 0.5, [("step", "4 2 +", False), ("step", "6", True), ("answer", "6", False)]),
        # and the other way round: the gold answer by a step that does not follow
        ("4 2 + = 5 <eoe>", 0.0, [("step", "4 2 +", False), ("step", "5", False), ("answer", "5", True)]),
        # the first line skips a step, the second reduces nothing
        ("5 = 5 <eoe>", 0.0, [("step", "5", False), ("step", "5", False), ("answer", "5", True)]),
        ("4 1 + = 5 5 <eoe>", 0.5, [("step", "4 1 +", True), ("step", "5 5", False)]),  # no answer
        ("4 1 + = <eoe>", 0.5, [("step", "4 1 +", True), ("step", "", False)]),
        ("4 1 + = 5 <eoe> = 7", 1.0, [("step", "4 1 +", True), ("step", "5", True), ("answer", "5", True)]),
        ("4 2 + = 4", None, [("step", "4 2 +", False), ("step", "4", None)]),  # cut off: it might have gone on
        *(("7 7 <eoe>", None, []), ("", None, [])),
    ],
)
def test_pitfall_28_a_line_is_judged_by_the_line_before(completion: str, share: float | None, expected: Any) -> None:
    """The diagnostic `valid_steps` is the share of right lines."""
    score = scored(made(completion))
    has_steps = any(kind == "step" for kind, _, _ in expected)
    found = [(step.kind, step.text, step.ok) for step in score.trace]
    assert found == [("step", "4 0 1 + +", None)] * has_steps + expected
    assert score.diagnostics == ({} if share is None else {"valid_steps": share})


def test_pitfall_27_a_trace_tells_the_turn_and_is_bounded() -> None:
    trace = Trace()
    trace.note("query", "Oslo")
    trace.turn = 2
    trace.note("document", "x" * 1_000, True, "i" * 1_000)
    assert trace.steps[0] == TraceStep(kind="query", text="Oslo", turn=0)
    assert (trace.steps[1].turn, len(trace.steps[1].text), len(trace.steps[1].id or "")) == (2, MAX_CHARS, MAX_CHARS)
    for number in range(1_000):
        trace.note("query", str(number))
    assert len(trace.steps) == MAX_STEPS
    ending = trace.ending([(str(number), "", False) for number in range(1_000)], "Oslo", True)
    assert len(ending) == MAX_CITES + 1
    assert ending[-1] == TraceStep(kind="answer", text="Oslo", ok=True, turn=2)


def test_pitfall_38_a_noted_answer_changes_no_score() -> None:
    form = AnswerFormat(answer_in="boxed")
    plain = PartsVerifier({"right": TextMatch()}, form)
    traced = TracedAnswer(plain, form)
    for one in (attempt("so \\boxed{18}"), attempt("so \\boxed{17}")):
        before, after = finished(plain.verify(one)), finished(traced.verify(one))
        assert (after.value, after.parts, after.status) == (before.value, before.parts, before.status)
        assert after.trace == (TraceStep(kind="answer", text=one.text[-3:-1]),)
    for one in (attempt("18"), replace(attempt("so \\boxed{18}"), stop_reason=StopReason.LENGTH)):
        assert finished(traced.verify(one)).trace == ()


@pytest.mark.parametrize(("length", "shown"), [(0, 0), (300, 300), (301, 300), (5000, 300)])
def test_the_text_of_a_step_is_cut_behind_three_hundred_letters(length: int, shown: int) -> None:
    text = "x" * length
    step = make_step("document", text, id=text)
    assert step.text == step.id == (text if length <= 300 else f"{'x' * 299}…")
    assert len(step.text) == shown
    assert make_step("document", text).id is None
