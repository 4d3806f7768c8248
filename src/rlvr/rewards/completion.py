"""Parses calls of the tool `complete`: reasoning, final answer, cited documents.

    complete(reasoning="...", final_answer="Oslo", cited_doc_ids=["3", "12"])

Models write numbers instead of texts, and one text instead of a list. This is accepted, but counts as a format error:

    final_answer=1984            "1984"
    cited_doc_ids=[3, 12]        "3", "12"
    cited_doc_ids="12"           "12": never the documents 1 and 2
    cited_doc_ids="3, 12"        "3", "12"

Everything else (true, null, objects, a list as the answer, an unknown argument) is rejected: the tool reports the
problem, and the episode continues. Tool and rewards use the same functions.
"""

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import PydanticCustomError

from rlvr.types import Attempt, StopReason, ToolCall

NAME = "complete"
ARGUMENTS = ("reasoning", "final_answer", "cited_doc_ids")


@dataclass(frozen=True, kw_only=True, slots=True)
class FinalAnswer:
    """`FinalAnswer(reasoning="...", answer="Oslo", cited=("3", "12"), form=1.0)`

    `cited` has no duplicates. `form` is the share of reasoning, answer and citations that are present with the right
    type.
    """

    reasoning: str
    answer: str
    cited: tuple[str, ...]
    form: float


def as_text(value: Any) -> str:
    """A text or a number as text, `1984.0` as `1984`; ValueError for other values."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise PydanticCustomError("no_text", "Input should be a text")
    text = format(Decimal(repr(value)), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def as_ids(value: Any) -> list[str]:
    """Ids as stripped, non-blank texts; ValueError for anything but a text, a number or a list of these."""
    if isinstance(value, str):
        value = _listed(value)
    elif isinstance(value, int | float):
        value = [value]
    if not isinstance(value, list | tuple):
        raise PydanticCustomError("no_texts", "Input should be a list of texts")
    return [text for item in value if (text := as_text(item).strip())]


Text = Annotated[str, BeforeValidator(as_text)]

Ids = Annotated[list[str], BeforeValidator(as_ids)]


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")
    reasoning: Text = ""
    final_answer: Text
    cited_doc_ids: Ids = []


def read_completion(arguments: Mapping[str, Any]) -> FinalAnswer | None:
    """The parsed arguments; None if the tool would reject them. Only the answer is required."""
    try:
        read = _Arguments.model_validate(arguments)
    except ValidationError:
        return None
    said, ids = (arguments.get("reasoning"), arguments["final_answer"]), arguments.get("cited_doc_ids")
    right = [isinstance(text, str) and bool(text.strip()) for text in said]
    right.append(isinstance(ids, list | tuple) and all(isinstance(item, str) for item in ids))
    cited = tuple(dict.fromkeys(read.cited_doc_ids))
    return FinalAnswer(reasoning=read.reasoning, answer=read.final_answer, cited=cited, form=sum(right) / len(right))


def find_completion(calls: Sequence[ToolCall]) -> FinalAnswer | None:
    found = (read_completion(call.arguments) for call in calls if call.name == NAME and call.problem is None)
    return next(filter(None, found), None)


def completion_of(attempt: Attempt) -> FinalAnswer | None:
    return find_completion(attempt.calls) if attempt.stop_reason is StopReason.STOP else None


def _listed(text: str) -> list[Any]:
    """`"3, 12"` -> 3 and 12; also `'["3", "12"]'`, a list inside a text; `"12"` is one id."""
    stripped = text.strip()
    if stripped.startswith("[") and stripped.endswith("]"):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(stripped)
    return stripped.split(",")
