"""Reading tool calls from model output. The output is untrusted: reading is bounded and nothing is evaluated."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rlvr.types import ToolCall, ToolSchema

MAX_CALLS = 64
"""Calls read in one turn; what follows them is one malformed call."""
MAX_CALL_CHARS = 100_000
"""A longer call is malformed."""
MAX_DEPTH = 32
"""Arguments nested deeper are malformed: later readers may be recursive."""

Tools = Sequence[ToolSchema]
to_json = partial(json.dumps, ensure_ascii=False)


@dataclass(kw_only=True)
class Reading:
    """What has been read of a turn: the calls in order, and the text beside them."""

    calls: list[ToolCall] = field(default_factory=list)
    text: list[str] = field(default_factory=list)

    @property
    def full(self) -> bool:
        """True when no further call may be read."""
        return len(self.calls) > MAX_CALLS

    def malformed(self, raw: str, problem: str, name: str = "") -> None:
        """Add a call with a problem; its raw text stays in the message."""
        if not self.full:
            self.calls.append(ToolCall(id=f"call_{len(self.calls)}", name=name, arguments={}, problem=problem))
        self.text.append(raw)

    def add(self, raw: str, name: object, arguments: object) -> None:
        """Add a call if it is one: a name, and arguments that are a JSON object or its text."""
        if not isinstance(name, str) or not name.strip():
            self.malformed(raw, "The call names no tool: its name must be a string.")
            return
        name = name.strip()
        shown = repr(name if len(name) <= 60 else name[:60] + "...")
        if arguments is None:
            arguments = {}
        try:
            arguments = load_json(arguments) if isinstance(arguments, str) else arguments
        except BadJsonError as error:
            self.malformed(raw, f"The arguments of {shown} are not JSON: {error}.", name)
            return
        if not isinstance(arguments, dict):
            self.malformed(raw, f"The arguments of {shown} must be a JSON object.", name)
        elif len(self.calls) == MAX_CALLS:
            self.malformed("", f"Only {MAX_CALLS} tools can be called in one turn; the rest was not read.")
        else:
            self.calls.append(ToolCall(id=f"call_{len(self.calls)}", name=name, arguments=arguments))


class BadJsonError(ValueError):
    """Why a text is not usable JSON, in a few words."""


def decode_json(text: str, start: int = 0) -> tuple[Any, int]:
    """The JSON value at `start` and the position behind it. BadJsonError for bad syntax and unsafe values.

    Unsafe: NaN and infinities, duplicate keys, halves of surrogate pairs (they can be neither encoded nor printed),
    nesting deeper than MAX_DEPTH.
    """
    try:
        value, end = _DECODER.raw_decode(text, start)
        to_json(value).encode()
    except RecursionError:
        raise BadJsonError("it is nested too deep") from None
    except json.JSONDecodeError as error:
        raise BadJsonError(f"{error.msg} at character {error.pos - start}") from None
    except UnicodeEncodeError:
        raise BadJsonError("it holds half a surrogate pair") from None
    except ValueError as error:  # from the hooks, or a number with thousands of digits
        raise BadJsonError(str(error)[:200]) from None
    if _too_deep(value):
        raise BadJsonError("it is nested too deep")
    return value, end


def load_json(text: str) -> Any:
    """The JSON value that is the whole text, except for spaces around it."""
    text = text.strip()
    if len(text) > MAX_CALL_CHARS:
        raise BadJsonError("it is too long")
    value, end = decode_json(text)
    if end != len(text):
        raise BadJsonError(f"Extra text at character {end}")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key stands twice")
    return made


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is too large")
    return number


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite)


def _too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        containers = [outer for outer in level if isinstance(outer, dict | list)]
        level = [inner for outer in containers for inner in (outer.values() if isinstance(outer, dict) else outer)]
        if not level:
            return False
    return True


def schema_of(name: str, tools: Tools) -> Mapping[str, Any] | None:
    """The parameters of the tool, `{"city": {"type": "string"}, ...}` in their order; None if there is no such tool."""
    for tool in tools:
        function = tool.get("function", tool)
        if function.get("name") == name:
            return function.get("parameters", {}).get("properties", {})
    return None


def as_written(text: str, schema: Mapping[str, Any]) -> Any:
    """The value of bare text for a parameter of this JSON schema: `3` is a number only where one is asked for.

    Text that is no value of the asked type stays text; the validation of the arguments reports it.
    """
    kinds = _kinds(schema)
    if not kinds:
        return text
    try:
        value = load_json(_PYTHON.get(text.strip(), text))
    except BadJsonError:
        return text
    if isinstance(value, str) or (value is None and "null" not in kinds):
        return text
    return text if "string" in kinds and _KINDS[type(value)] not in kinds else value


_PYTHON = {"True": "true", "False": "false", "None": "null"}
"""Qwen3.5's template prints them so."""
_KINDS = {bool: "boolean", int: "integer", float: "number", list: "array", dict: "object", type(None): "null"}


def _kinds(schema: Mapping[str, Any]) -> set[str]:
    """Every type that a schema names, alternatives included."""
    named = schema.get("type", [])
    kinds = {named} if isinstance(named, str) else set(named)
    return kinds.union(*(_kinds(choice) for key in ("anyOf", "oneOf") for choice in schema.get(key, [])))
