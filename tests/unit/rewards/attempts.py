"""Attempts to grade, in short markers."""

import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from rlvr.rewards.base import Grade, Part
from rlvr.rewards.extract import AnswerFormat, Markers
from rlvr.types import Attempt, Example, StopReason

Result = TypeVar("Result")
MARKERS = Markers(reasoning_start="<r>", reasoning_end="</r>", solution_start="<s>", solution_end="</s>")
SOLUTION = AnswerFormat(answer_in="solution", markers=MARKERS)
WHOLE = AnswerFormat(answer_in="whole")
FORMATS = {
    "solution": SOLUTION,
    "whole": WHOLE,
    "hash": AnswerFormat(answer_in="hash"),
    "boxed": AnswerFormat(answer_in="boxed"),
}
FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
PERTURBATIONS = [json.loads(line) for line in (FIXTURES / "perturbations.jsonl").read_text().splitlines()]


def solved(answer: str) -> str:
    """A completion in the exact format."""
    return f"<r>Let me see.</r><s>{answer}</s>"


def attempt(text: str, gold: str = "18", num_tokens: int = 1, **metadata: object) -> Attempt:
    """One attempt at the example `e1`."""
    example = Example(id="e1", messages=(), answer=gold, metadata=metadata)
    return Attempt(example=example, completion=text, text=text, stop_reason=StopReason.STOP, num_tokens=num_tokens)


def finished(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """The result of a coroutine that never waits; one that does is an error here."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("the coroutine waits")


def grade(part: Part, made: Attempt) -> Grade:
    """The grade of a part that never waits."""
    return finished(part.grade(made))  # type: ignore[arg-type]
