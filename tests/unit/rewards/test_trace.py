"""How an answer was reached is noted where it happens, bounded, and changes no score."""

from dataclasses import replace

import pytest

from rlvr.rewards.extract import AnswerFormat
from rlvr.rewards.parts import PartsVerifier
from rlvr.rewards.text import TextMatch
from rlvr.rewards.trace import MAX_CHARS, MAX_CITES, MAX_STEPS, Trace, TracedAnswer
from rlvr.types import StopReason, TraceStep
from tests.unit.rewards.attempts import attempt, finished
from tests.unit.rewards.test_rpn import made, scored


def drawn(completion: str) -> list[tuple[str, str, bool | None]]:
    return [(step.kind, step.text, step.ok) for step in scored(made(completion)).trace]


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("5 <eoe>", [("answer", "5", True)]),
        ("6 <eoe>", [("answer", "6", False)]),
        ("4 1 + = 5 <eoe>", [("step", "4 1 +", True), ("step", "5", True), ("answer", "5", True)]),
        # each line is graded_answer by the line before it, so the answer is wrong although the last step is right
        ("4 2 + = 6 <eoe>", [("step", "4 2 +", False), ("step", "6", True), ("answer", "6", False)]),
        # and the other way round: the gold answer by a step that does not follow
        ("4 2 + = 5 <eoe>", [("step", "4 2 +", False), ("step", "5", False), ("answer", "5", True)]),
        ("5 = 5 <eoe>", [("step", "5", False), ("step", "5", False), ("answer", "5", True)]),
        ("4 1 + = 5 5 <eoe>", [("step", "4 1 +", True), ("step", "5 5", False)]),  # no answer
        ("4 1 + = <eoe>", [("step", "4 1 +", True), ("step", "", False)]),
        ("4 1 + = 5 <eoe> = 7", [("step", "4 1 +", True), ("step", "5", True), ("answer", "5", True)]),
        ("4 2 + = 4", [("step", "4 2 +", False), ("step", "4", None)]),  # cut off: nobody knows what it would have been
        ("7 7 <eoe>", []),
        ("", []),
    ],
)
def test_pitfall_28_a_derivation_is_its_lines_each_judged_by_the_line_before(
    completion: str, expected: list[tuple[str, str, bool | None]]
) -> None:
    lines = [] if not any(kind == "step" for kind, _, _ in expected) else [("step", "4 0 1 + +", None)]
    assert drawn(completion) == lines + expected


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


def test_pitfall_38_of_a_text_the_answer_is_noted_where_the_reward_reads_it_and_the_score_stays() -> None:
    form = AnswerFormat(answer_in="boxed")
    plain = PartsVerifier({"right": TextMatch()}, form)
    traced = TracedAnswer(plain, form)
    for one in (attempt("so \\boxed{18}"), attempt("so \\boxed{17}")):
        before, after = finished(plain.verify(one)), finished(traced.verify(one))
        assert (after.value, after.parts, after.status) == (before.value, before.parts, before.status)
        assert after.trace == (TraceStep(kind="answer", text=one.text[-3:-1]),)
    for one in (attempt("18"), replace(attempt("so \\boxed{18}"), stop_reason=StopReason.LENGTH)):
        assert finished(traced.verify(one)).trace == ()
