"""The formats that rlvr can teach a model: Hermes and Llama 3.1 JSON, and words for models with tiny vocabularies."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.chat.tool_calls import (
    MAX_CALL_CHARS,
    BadJsonError,
    Reading,
    as_written,
    decode_json,
    schema_of,
)
from rlvr.types import ToolCall, ToolSchema


class Hermes:
    """`<tool_call>{"name": "search", "arguments": {"query": "x"}}</tool_call>`, any number, text around them."""

    name = "hermes"
    _open, _close = "<tool_call>", "</tool_call>"

    def read(self, text: str, into: Reading, *, finished: bool, tools: Sequence[ToolSchema]) -> None:
        """Tags within JSON strings are text: the JSON is read first, then its end tag."""
        position = 0
        while not into.full and (start := text.find(self._open, position)) >= 0:
            into.text.append(text[position:start])
            body = _after_spaces(text, start + len(self._open))
            problem = f"The call is no JSON object followed by {self._close}."
            value: Any = None
            try:
                value, end = decode_json(text, body)
                end = _after_spaces(text, end)
                closed = text.startswith(self._close, end)
            except BadJsonError as error:
                problem, end, closed = f"The call is no JSON: {error}.", body, False
            if not closed:
                end = text.find(self._close, end)
                if end < 0:
                    _unfinished(text[start:], into, self._close, finished=finished)
                    return
            position = end + len(self._close)
            raw = text[start:position]
            if not closed:
                into.malformed(raw, problem)
            else:
                _add_object(value, raw, into)
        into.text.append(text[position:])

    def write(self, calls: Sequence[ToolCall], tools: Sequence[ToolSchema]) -> str:
        """As Qwen's templates write them."""
        return "\n".join(f"{self._open}\n{_json(call, 'arguments')}\n{self._close}" for call in calls)

    def describe(self, tools: Sequence[ToolSchema]) -> str:
        """In the words of Qwen's templates."""
        schemas = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        return (
            "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
            f"You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{schemas}\n</tools>"
            "\n\nFor each function call, return a json object with function name and arguments within "
            f"{self._open}{self._close} XML tags:\n{self._open}\n"
            f'{{"name": <function-name>, "arguments": <args-json-object>}}\n{self._close}'
        )


class Llama:
    """The whole turn is `{"name": "search", "parameters": {"query": "x"}}`, perhaps behind `<|python_tag|>`.

    Several objects may follow each other, separated by semicolons or spaces.
    """

    name = "llama"
    _tag = "<|python_tag|>"

    def read(self, text: str, into: Reading, *, finished: bool, tools: Sequence[ToolSchema]) -> None:
        """A turn that is other text, or JSON that names no tool, is an answer."""
        stripped = text.strip()
        tagged = stripped.startswith(self._tag)
        body = stripped.removeprefix(self._tag).lstrip()
        if not tagged and not body.startswith("{"):
            into.text.append(text)
            return
        objects, problem = _objects(body)
        if not tagged and not objects and '"name"' not in body[:MAX_CALL_CHARS]:
            into.text.append(text)
            return
        if not tagged and objects and not all(_calls_a_tool(value, tools) for value, _ in objects):
            into.text.append(text)
            return
        for value, raw in objects:
            _add_object(value, raw, into)
        if problem is None:
            return
        if finished:
            into.malformed(body if not objects else "", f"The call is no JSON: {problem}.")
        elif not objects:
            into.text.append(text)

    def write(self, calls: Sequence[ToolCall], tools: Sequence[ToolSchema]) -> str:
        """As the templates of Llama 3.1 write one."""
        return "; ".join(_json(call, "parameters") for call in calls)

    def describe(self, tools: Sequence[ToolSchema]) -> str:
        """In the words of the template of Llama 3.1."""
        schemas = "\n\n".join(json.dumps(tool, ensure_ascii=False, indent=4) for tool in tools)
        return (
            "You have access to the following functions. To call a function, please respond with JSON for a function "
            'call. Respond in the format {"name": function name, "parameters": dictionary of argument name and its '
            f"value}}. Do not use variables.\n\n{schemas}"
        )


class Words:
    """`<call> search alice </call>`: the words are the tool's arguments in their order, the last one takes the rest.

    For models that know a few dozen words, and no punctuation. A word is a number where the tool wants one.
    """

    name = "words"
    open, close = "<call>", "</call>"

    def read(self, text: str, into: Reading, *, finished: bool, tools: Sequence[ToolSchema]) -> None:
        """A call ends with the first `</call>`."""
        position = 0
        while not into.full and (start := text.find(self.open, position)) >= 0:
            into.text.append(text[position:start])
            end = text.find(self.close, start)
            if end < 0:
                _unfinished(text[start:], into, self.close, finished=finished)
                return
            position = end + len(self.close)
            self._read_call(text[start + len(self.open) : end], text[start:position], into, tools)
        into.text.append(text[position:])

    def _read_call(self, body: str, raw: str, into: Reading, tools: Sequence[ToolSchema]) -> None:
        if len(body) > MAX_CALL_CHARS:
            into.malformed(raw, "The call is too long.")
            return
        name, *words = body.split() or [""]
        if not name or name == self.open:
            into.malformed(raw, f"The call names no tool: write {self.open} NAME ARGUMENTS {self.close}.")
            return
        parameters = schema_of(name, tools) or {}
        if words and not parameters and schema_of(name, tools) is not None:
            into.malformed(raw, f"The tool {name} takes no arguments.", name)
            return
        into.call(name, _assign(words, parameters))

    def write(self, calls: Sequence[ToolCall], tools: Sequence[ToolSchema]) -> str:
        """Arguments in the order of the tool's parameters; those that come after a missing one cannot be written."""
        return " ".join(f"{self.open} {' '.join([call.name, *_words(call, tools)])} {self.close}" for call in calls)

    def describe(self, tools: Sequence[ToolSchema]) -> str:
        """One line a tool."""
        lines = [f"{self.open} {_signature(tool)} {self.close}" for tool in tools]
        return "You may call these tools, with words in the place of the arguments:\n" + "\n".join(lines)


def _assign(words: Sequence[str], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """One word to each parameter in order, the rest to the last."""
    arguments: dict[str, Any] = {}
    last = len(parameters) - 1
    for index, (name, schema) in enumerate(parameters.items()):
        if index >= len(words):
            break
        given = words[index:] if index == last else words[index : index + 1]
        is_list = schema.get("type") == "array"
        arguments[name] = _typed(given, schema.get("items", {})) if is_list else as_written(" ".join(given), schema)
    return arguments


def _typed(words: Sequence[str], schema: Mapping[str, Any]) -> list[Any]:
    return [as_written(word, schema) for word in words]


def _words(call: ToolCall, tools: Sequence[ToolSchema]) -> list[str]:
    words: list[str] = []
    for name in schema_of(call.name, tools) or call.arguments:
        if name not in call.arguments:
            break
        value = call.arguments[name]
        values = value if isinstance(value, list) else [value]
        words += [item if isinstance(item, str) else json.dumps(item, ensure_ascii=False) for item in values]
    return words


def _signature(tool: ToolSchema) -> str:
    name = tool.get("function", tool)["name"]
    return " ".join([name, *(parameter.upper() for parameter in schema_of(name, [tool]) or {})])


def _add_object(value: Any, raw: str, into: Reading) -> None:
    """A call out of `{"name": ..., "arguments": ...}`; `parameters` is the same thing in Llama's words."""
    if len(raw) > MAX_CALL_CHARS:
        into.malformed(raw, "The call is too long.")
    elif not isinstance(value, dict):
        into.malformed(raw, 'The call must be a JSON object with the keys "name" and "arguments".')
    else:
        into.add(raw, value.get("name"), value.get("arguments", value.get("parameters")))


def _unfinished(raw: str, into: Reading, close: str, *, finished: bool) -> None:
    if finished:
        into.malformed(raw, f"The call does not end: {close} is missing.")
    else:
        into.text.append(raw)


def _objects(text: str) -> tuple[list[tuple[Any, str]], str | None]:
    """The JSON values that the text consists of, each with its own text, and what is wrong with the rest."""
    found: list[tuple[Any, str]] = []
    position = 0
    while position < len(text):
        if len(found) > 100:
            return found, "there is too much of it"
        try:
            value, end = decode_json(text, position)
        except BadJsonError as error:
            return found, str(error)
        found.append((value, text[position:end]))
        position = _after_spaces(text, end)
        if text.startswith(";", position):
            position = _after_spaces(text, position + 1)
    return found, None if found else "there is nothing"


def _calls_a_tool(value: Any, tools: Sequence[ToolSchema]) -> bool:
    if not isinstance(value, dict) or "name" not in value:
        return False
    named = isinstance(value["name"], str) and schema_of(value["name"], tools) is not None
    return named or "parameters" in value or "arguments" in value


def _after_spaces(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def _json(call: ToolCall, key: str) -> str:
    return json.dumps({"name": call.name, key: call.arguments}, ensure_ascii=False)
