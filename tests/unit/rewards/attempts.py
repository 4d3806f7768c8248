"""Attempts to grade, in short markers."""

import json
import math
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from hypothesis import strategies as st
from pydantic import ValidationError

from rlvr.rewards.base import Grade, Part
from rlvr.rewards.extract import AnswerFormat, Markers
from rlvr.rewards.metrics import Metric
from rlvr.settings import validated
from rlvr.types import Attempt, Example, GradedAnswer, Score, StopReason

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
TABLE = [["", "2019", "2018"], ["revenue", "$ 150", "$ 100"], ["loss", "( 32 )", "n/a"]]
GREW = "subtract(150, 100), divide(#0, 100)"
METADATA: dict[str, Any] = {"table": TABLE, "program": GREW, "exe_ans": 0.5}  # of a FinQA example
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
PERTURBATIONS = [json.loads(line) for line in (FIXTURES / "perturbations.jsonl").read_text().splitlines()]


def solved(answer: str) -> str:
    """A completion in the exact format."""
    return f"<r>Let me see.</r><s>{answer}</s>"


def attempt(text: str, gold: str = "18", num_tokens: int = 1, **metadata: Any) -> Attempt:
    """One attempt at the example `e1`."""
    example = Example(id="e1", messages=(), answer=gold, metadata=metadata)
    return Attempt(example=example, completion=text, text=text, stop_reason=StopReason.STOP, num_tokens=num_tokens)


def failed(found: Grade | Score, message: str = "") -> bool:
    """An infrastructure error, which has no value."""
    said = found.message if isinstance(found, Grade) else str(found.diagnostics["error"])
    return found.status == "error" and math.isnan(found.value) and message in said


def run(answer_in: str = "solution", **task: object) -> Any:
    """What a part's `check_run` reads of a run."""
    about = {"name": "mine", "answer_kind": "text", "brings_verifier": False, "has_documents": False, "rereads": False}
    return SimpleNamespace(prompt=SimpleNamespace(answer_in=answer_in), task=SimpleNamespace(**(about | task)))


def finished(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """The result of a coroutine that never waits; one that does is an error here."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("the coroutine waits")


def grade(part: Part, made: Attempt, form: AnswerFormat = SOLUTION) -> Grade:
    return part.grade(replace(made, format=form))


def graded_answer(metric: Metric, made: Attempt, form: AnswerFormat = SOLUTION) -> GradedAnswer:
    return finished(metric.grade(replace(made, format=form)))


def wrong_settings(kind: type[Any], values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Key and remedy of what is wrong with the values of a component or a section."""
    try:
        validated(kind, values)
    except ValidationError as error:
        return [(e.get("ctx", {}).get("key", ".".join(map(str, e["loc"]))), e["msg"]) for e in error.errors()]
    return []
