"""Parses tool calls in model output. The output is untrusted: parsing is bounded and evaluates nothing."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rlvr.types import ToolCall, ToolSchema

MAX_CALLS = 64  # calls read in one turn; the rest is one malformed call
MAX_CALL_CHARS = 100_000  # a longer call is malformed
MAX_DEPTH = 32  # deeper arguments are malformed: later parsers may be recursive

Tools = Sequence[ToolSchema]
RawCalls = Sequence[tuple[object, object]]  # unchecked names and arguments of calls; arguments may be JSON text
to_json = partial(json.dumps, ensure_ascii=False)


@dataclass(kw_only=True)
class CallReading:
    calls: list[ToolCall] = field(default_factory=list)
    text: list[str] = field(default_factory=list)

    @property
    def full(self) -> bool:
        return len(self.calls) > MAX_CALLS

    def add(self, raw: str, read: Callable[[], RawCalls]) -> None:
        """Add the calls that `read` parses; a call with a problem and the text `raw` if it raises BadCallError."""
        try:
            if len(raw) > MAX_CALL_CHARS:
                raise BadCallError("it is too long")
            calls = read()
        except BadCallError as error:
            self.malformed(raw, str(error))
            return
        if not calls:  # an empty list: it calls nothing
            self.text.append(raw)
        for name, arguments in calls:
            self._add(raw if len(calls) == 1 else "", name, arguments)

    def _add(self, raw: str, name: object, arguments: object) -> None:
        named = name.strip() if isinstance(name, str) else ""
        try:
            if not named:
                raise BadCallError("it names no tool")
            arguments = load_json(arguments) if isinstance(arguments, str) else arguments
            if not isinstance(arguments, dict | None):
                raise BadCallError("its arguments must be a JSON object")
            if len(self.calls) == MAX_CALLS:
                raise BadCallError(f"only {MAX_CALLS} tools can be called in one turn, and the rest was not read")
            self.calls.append(ToolCall(id=f"call_{len(self.calls)}", name=named, arguments=arguments or {}))
        except BadCallError as error:
            self.malformed(raw, str(error), named)

    def malformed(self, raw: str, problem: str, name: str = "") -> None:
        if not self.full:
            problem = f"The call cannot be read: {problem}."
            self.calls.append(ToolCall(id=f"call_{len(self.calls)}", name=name, arguments={}, problem=problem))
        self.text.append(raw)


class BadCallError(ValueError):
    """Short reason why a text is no call or no valid JSON."""


def decode_json(text: str, start: int = 0) -> tuple[Any, int]:
    """The JSON value at `start` and its end position. BadCallError for bad syntax and unsafe values.

    Unsafe: NaN and infinities, duplicate keys, lone surrogates (they can be neither encoded nor printed), nesting
    deeper than MAX_DEPTH.
    """
    try:
        value, end = _DECODER.raw_decode(text, start)
        to_json(value).encode()
        if _too_deep(value):
            raise RecursionError
    except RecursionError:
        raise BadCallError("it is nested too deep") from None
    except json.JSONDecodeError as error:
        raise BadCallError(f"it is no JSON ({error.msg} at character {error.pos - start})") from None
    except ValueError as error:  # from the hooks, a lone surrogate, or a number with thousands of digits
        raise BadCallError(f"it is no JSON ({str(error)[:200]})") from None
    return value, end


def load_json(text: str) -> Any:
    """The JSON value of the whole text, surrounding spaces ignored."""
    text = text.strip()
    if len(text) > MAX_CALL_CHARS:
        raise BadCallError("it is too long")
    value, end = decode_json(text)
    if end != len(text):
        raise BadCallError(f"there is more behind character {end}")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key stands twice")
    return made


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text[:20]} is no number of JSON")
    return number


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_finite, parse_float=_finite)


def _too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        containers = [outer for outer in level if isinstance(outer, dict | list)]
        level = [inner for outer in containers for inner in (outer.values() if isinstance(outer, dict) else outer)]
        if not level:
            return False
    return True


def schema_of(name: str, tools: Tools) -> Mapping[str, Any] | None:
    """The tool's parameters in order, `{"city": {"type": "string"}, ...}`; None for an unknown tool."""
    for tool in tools:
        function = tool.get("function", tool)
        if function.get("name") == name:
            return function.get("parameters", {}).get("properties", {})
    return None


def as_written(text: str, schema: Mapping[str, Any]) -> Any:
    """The value of bare text for a parameter with this JSON schema: `3` is a number only if one is required.

    Text that does not fit the schema stays text; argument validation reports it.
    """
    kinds = _kinds(schema)
    if not kinds:
        return text
    try:
        value = load_json(_PYTHON.get(text.strip(), text))
    except BadCallError:
        return text
    if isinstance(value, str) or (value is None and "null" not in kinds):
        return text
    return text if "string" in kinds and _KINDS[type(value)] not in kinds else value


_PYTHON = {"True": "true", "False": "false", "None": "null"}  # Qwen3.5's template prints these
_KINDS = {bool: "boolean", int: "integer", float: "number", list: "array", dict: "object", type(None): "null"}


def _kinds(schema: Mapping[str, Any]) -> set[str]:
    named = schema.get("type", [])
    kinds = {named} if isinstance(named, str) else set(named)
    return kinds.union(*(_kinds(choice) for key in ("anyOf", "oneOf") for choice in schema.get(key, [])))
