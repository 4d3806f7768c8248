"""The shape of a tool-call format, and the formats rlvr can teach: Hermes and Llama 3.1 JSON, words for tiny models."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rlvr.chat.tool_calls import (
    MAX_CALL_CHARS,
    BadJsonError,
    Reading,
    Tools,
    as_written,
    decode_json,
    schema_of,
    to_json,
)
from rlvr.types import ToolCall


class ToolFormat:
    """One way to write tool calls; by default any number of calls between `open` and `close`, with text around them."""

    name: str
    """The name in `prompt.tool_format`."""
    open: str
    close: str
    outer: tuple[str, str] = ("", "")
    """Marks before the first and behind the last call."""
    between = "\n"
    is_taught = False
    """Whether demonstrations alone explain it: plain prompts, without a chat template, say nothing of the tools."""

    def read(self, text: str, into: Reading, *, finished: bool, tools: Tools) -> None:
        """Read the calls in `text`, which holds no reasoning, and the text beside them.

        `finished`: the model ended the turn itself. If not, an incomplete call is only text.
        """
        position = 0
        first, last = self.outer
        if first and self.open in text:
            text = text.replace(first, "").replace(last, "")
        while not into.full and (start := text.find(self.open, position)) >= 0:
            into.text.append(text[position:start])
            end = text.find(self.close, start + len(self.open))
            if end < 0:
                self._unfinished(text[start:], into, finished)
                return
            position = end + len(self.close)
            raw = text[start:position]
            if len(raw) > MAX_CALL_CHARS:
                into.malformed(raw, "The call is too long.")
            else:
                self.read_call(text[start + len(self.open) : end], raw, into, tools)
        into.text.append(text[position:])

    def read_call(self, body: str, raw: str, into: Reading, tools: Tools) -> None:
        """Add the call between the marks; `raw` includes them."""
        raise NotImplementedError

    def _unfinished(self, raw: str, into: Reading, finished: bool) -> None:
        if finished:
            into.malformed(raw, f"The call does not end: {self.close} is missing.")
        else:
            into.text.append(raw)

    def write(self, calls: Sequence[ToolCall], tools: Tools) -> str:
        """The calls as the family's template writes them; `read` gives the same ones back."""
        written = [f"{self.open}{self.write_call(call, tools)}{self.close}" for call in calls]
        return self.outer[0] + self.between.join(written) + self.outer[1]

    def write_call(self, call: ToolCall, tools: Tools) -> str:
        """The text between the marks."""
        raise NotImplementedError

    def describe(self, tools: Tools) -> str:
        """What a system message says about the tools and how to call them."""
        example = ToolCall(id="call_0", name="function_name", arguments={"parameter": "value"})
        return (
            "# Tools\n\nYou may call one or more functions to assist with the user query. You are provided with "
            f"function signatures within <tools></tools> XML tags:\n<tools>\n{_schemas(tools)}\n</tools>\n\n"
            f"Write a call like this:\n{self.write([example], ())}"
        )


class Hermes(ToolFormat):
    """`<tool_call>{"name": "search", "arguments": {"query": "x"}}</tool_call>`"""

    name, open, close = "hermes", "<tool_call>", "</tool_call>"

    def read(self, text: str, into: Reading, *, finished: bool, tools: Tools) -> None:
        """Tags within JSON strings are text: the JSON is read first, then its closing tag."""
        position = 0
        while not into.full and (start := text.find(self.open, position)) >= 0:
            into.text.append(text[position:start])
            end = _after_spaces(text, start + len(self.open))
            problem = f"The call is no JSON object followed by {self.close}."
            closed, value = False, None
            try:
                value, end = decode_json(text, end)
                end = _after_spaces(text, end)
                closed = text.startswith(self.close, end)
            except BadJsonError as error:
                problem = f"The call is no JSON: {error}."
            end = end if closed else text.find(self.close, end)
            if end < 0:
                self._unfinished(text[start:], into, finished)
                return
            position = end + len(self.close)
            if closed:
                _add_object(value, text[start:position], into)
            else:
                into.malformed(text[start:position], problem)
        into.text.append(text[position:])

    def write_call(self, call: ToolCall, tools: Tools) -> str:
        """As Qwen's templates do."""
        return f"\n{to_json({'name': call.name, 'arguments': call.arguments})}\n"

    def describe(self, tools: Tools) -> str:
        """In the words of Qwen's templates."""
        return (
            "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with "
            f"function signatures within <tools></tools> XML tags:\n<tools>\n{_schemas(tools)}\n</tools>\n\n"
            f"For each function call, return a json object with function name and arguments within "
            f"{self.open}{self.close} XML tags:\n{self.open}\n"
            f'{{"name": <function-name>, "arguments": <args-json-object>}}\n{self.close}'
        )


class Llama(ToolFormat):
    """The whole turn is `{"name": "search", "parameters": {"query": "x"}}`, optionally behind `<|python_tag|>`.

    Several objects may follow each other, separated by semicolons or spaces.
    """

    name = "llama"
    open = "<|python_tag|>"

    def read(self, text: str, into: Reading, *, finished: bool, tools: Tools) -> None:
        """A turn that is other text, or JSON that names no tool, is an answer."""
        stripped = text.strip()
        tagged = stripped.startswith(self.open)
        body = stripped.removeprefix(self.open).lstrip()
        if not tagged and not body.startswith("{"):
            into.text.append(text)
            return
        objects, problem = _objects(body)
        if objects:
            calls_tools = all(_calls_a_tool(value, tools) for value, _ in objects)
        else:
            calls_tools = '"name"' in body[:MAX_CALL_CHARS]
        if not tagged and not calls_tools:
            into.text.append(text)
            return
        for value, raw in objects:
            _add_object(value, raw, into)
        if problem is not None and finished:
            into.malformed("" if objects else body, f"The call is no JSON: {problem}.")
        elif not objects:
            into.text.append(text)

    def write(self, calls: Sequence[ToolCall], tools: Tools) -> str:
        """As the template of Llama 3.1 writes one."""
        return "; ".join(to_json({"name": call.name, "parameters": call.arguments}) for call in calls)

    def describe(self, tools: Tools) -> str:
        """In the words of the template of Llama 3.1."""
        schemas = "\n\n".join(to_json(tool, indent=4) for tool in tools)
        return (
            "You have access to the following functions. To call a function, please respond with JSON for a function "
            'call. Respond in the format {"name": function name, "parameters": dictionary of argument name and its '
            f"value}}. Do not use variables.\n\n{schemas}"
        )


class Taught(Hermes):
    """As `hermes`, for models made from scratch, whose short context needs no explanation that they cannot read."""

    name, is_taught = "taught", True


class Words(ToolFormat):
    """`<call> search alice </call>`: the words are the tool's arguments in their order, the last one takes the rest.

    For models that know a few dozen words, and no punctuation. A word is a number where the tool wants one.
    """

    name, open, close, between = "words", "<call>", "</call>", " "
    is_taught = True

    def read_call(self, body: str, raw: str, into: Reading, tools: Tools) -> None:
        """One word to each parameter in order, the rest to the last."""
        name, *words = body.split() or [""]
        if not name or name == self.open:
            into.malformed(raw, f"The call names no tool: write {self.open} NAME ARGUMENTS {self.close}.")
            return
        parameters = schema_of(name, tools)
        if words and parameters is not None and not parameters:
            into.malformed(raw, f"The tool {name} takes no arguments.", name)
            return
        arguments: dict[str, Any] = {}
        for index, (key, schema) in enumerate((parameters or {}).items()):
            given = words[index:] if index == len(parameters or {}) - 1 else words[index : index + 1]
            if given and schema.get("type") == "array":
                arguments[key] = [as_written(word, schema.get("items", {})) for word in given]
            elif given:
                arguments[key] = as_written(" ".join(given), schema)
        into.add(raw, name, arguments)

    def write_call(self, call: ToolCall, tools: Tools) -> str:
        """Arguments in the order of the tool's parameters; those behind a missing one cannot be written."""
        words = [call.name]
        for key in schema_of(call.name, tools) or call.arguments:
            if key not in call.arguments:
                break
            value = call.arguments[key]
            words += map(bare, value if isinstance(value, list) else [value])
        return f" {' '.join(words)} "

    def describe(self, tools: Tools) -> str:
        """One line per tool."""
        lines = ["You may call these tools, with words in the place of the arguments:"]
        for tool in tools:
            name = tool.get("function", tool)["name"]
            words = [self.open, name, *(key.upper() for key in schema_of(name, [tool]) or {}), self.close]
            lines.append(" ".join(words))
        return "\n".join(lines)


def bare(value: Any) -> str:
    """A string without quotes, anything else as JSON."""
    return value if isinstance(value, str) else to_json(value)


def _schemas(tools: Tools) -> str:
    return "\n".join(map(to_json, tools))


def _add_object(value: Any, raw: str, into: Reading) -> None:
    """A call out of `{"name": ..., "arguments": ...}`; Llama calls the latter `parameters`."""
    if len(raw) > MAX_CALL_CHARS:
        into.malformed(raw, "The call is too long.")
    elif not isinstance(value, dict):
        into.malformed(raw, 'The call must be a JSON object with the keys "name" and "arguments".')
    else:
        into.add(raw, value.get("name"), value.get("arguments", value.get("parameters")))


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


def _calls_a_tool(value: Any, tools: Tools) -> bool:
    if not isinstance(value, dict) or "name" not in value:
        return False
    named = isinstance(value["name"], str) and schema_of(value["name"], tools) is not None
    return named or "parameters" in value or "arguments" in value


_SPACES = re.compile(r"[ \t\r\n]*")


def _after_spaces(text: str, position: int) -> int:
    found = _SPACES.match(text, position)
    return found.end() if found else position
