"""What a call of the tool `complete` says: reasoning, final answer, cited documents.

    complete(reasoning="...", final_answer="Oslo", cited_doc_ids=["3", "12"])

Models write numbers where texts belong and one text where a list belongs. That is read, and counted as a fault of form:

    final_answer=1984            "1984"
    cited_doc_ids=[3, 12]        "3", "12"
    cited_doc_ids="12"           "12": never the documents 1 and 2
    cited_doc_ids="3, 12"        "3", "12"

Everything else (true, null, objects, a list as the answer, an argument that does not exist) is no completion: the tool
says what is wrong, and the episode goes on. The tool and the rewards read with the same functions.
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

    `cited` has no id twice. `form` is the share of reasoning, answer and citations that are there as they should be.
    """

    reasoning: str
    answer: str
    cited: tuple[str, ...]
    form: float


def as_text(value: Any) -> str:
    """A text or a number as text, `1984.0` as `1984`; ValueError for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise PydanticCustomError("no_text", "Input should be a text")
    text = format(Decimal(repr(value)), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def as_ids(value: Any) -> list[str]:
    """Ids as texts, stripped and without blank ones; ValueError for what is no text, number or list of these."""
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
    """What the arguments say; None where the tool would refuse them. Only the answer has to be there."""
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
    """`"3, 12"` -> 3 and 12; `'["3", "12"]'`, a list inside a text, likewise; `"12"` is one id."""
    stripped = text.strip()
    if stripped.startswith("[") and stripped.endswith("]"):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(stripped)
    return stripped.split(",")
