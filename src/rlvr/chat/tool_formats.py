"""The interface of a tool-call format, and the formats rlvr can teach: Hermes and Llama 3.1 JSON, lists as of SmolLM2,
words for tiny models."""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from rlvr.chat.tool_calls import (
    MAX_CALL_CHARS,
    BadCallError,
    CallReading,
    RawCalls,
    Tools,
    as_written,
    decode_json,
    schema_of,
    to_json,
)
from rlvr.reasoning import Place
from rlvr.types import ToolCall

MAX_TRIES = 100  # JSON objects examined per turn


class ToolFormat(ABC):
    name: str  # the name in `prompt.tool_format`
    open = close = ""  # the marks around a call, if any
    is_taught = False
    """Whether demonstrations alone teach it: plain prompts, without a chat template, do not describe the tools."""

    @abstractmethod
    def read(self, text: str, into: CallReading, *, finished: bool, tools: Tools) -> None:
        """Parse the calls in `text`, which holds no reasoning, and the other text.

        `finished`: the model ended the turn itself. If not, an incomplete call is plain text.
        """

    def next_call(self, text: str, position: int, *, tools: Tools) -> Place | None:
        """Where the first call behind a position stands, to its end or that of the text; None if there is none. What
        is in its arguments is no mark of reasoning."""
        start = text.find(self.open, position) if self.open else -1
        return None if start < 0 else (start, len(text))

    @abstractmethod
    def write(self, calls: Sequence[ToolCall], tools: Tools) -> str:
        """The calls as the family's template renders them; the inverse of `read`."""

    def describe(self, tools: Tools) -> str:
        """System message about the tools and the call format."""
        example = ToolCall(id="call_0", name="function_name", arguments={"parameter": "value"})
        return (
            "# Tools\n\nYou may call one or more functions to assist with the user query. You are provided with "
            f"function signatures within <tools></tools> XML tags:\n<tools>\n{_schemas(tools)}\n</tools>\n\n"
            f"Write a call like this:\n{self.write([example], ())}"
        )


class Marked(ToolFormat):
    outer: tuple[str, str] = ("", "")  # marks before the first and after the last call
    between = "\n"

    def read(self, text: str, into: CallReading, *, finished: bool, tools: Tools) -> None:
        position = 0
        first, last = self.outer
        if first and self.open in text:
            text = text.replace(first, "").replace(last, "")
        while not into.full and (start := text.find(self.open, position)) >= 0:
            into.text.append(text[position:start])
            end = self._end(text, start)
            position = len(text) if end < 0 else end + len(self.close)
            if end >= 0:
                into.add(text[start:position], partial(self.calls, text[start + len(self.open) : end], tools))
            elif finished:
                into.malformed(text[start:], f"it does not end, {self.close} is missing")
            else:
                into.text.append(text[start:])
        into.text.append(text[position:])

    def next_call(self, text: str, position: int, *, tools: Tools) -> Place | None:
        start = text.find(self.open, position)
        end = -1 if start < 0 else self._end(text, start)
        return None if end < 0 else (start, end + len(self.close))

    def _end(self, text: str, start: int) -> int:
        """Position of the closing mark of the call at `start`; -1 if missing."""
        return text.find(self.close, start + len(self.open))

    @abstractmethod
    def calls(self, body: str, tools: Tools) -> RawCalls:
        """The calls between the marks; BadCallError if there is none."""

    def write(self, calls: Sequence[ToolCall], tools: Tools) -> str:
        written = [f"{self.open}{self.write_call(call, tools)}{self.close}" for call in calls]
        return self.outer[0] + self.between.join(written) + self.outer[1]

    @abstractmethod
    def write_call(self, call: ToolCall, tools: Tools) -> str:
        """The text between the marks."""


class Hermes(Marked):
    """`<tool_call>{"name": "search", "arguments": {"query": "x"}}</tool_call>`, or a list of such objects."""

    name, open, close = "hermes", "<tool_call>", "</tool_call>"

    def _end(self, text: str, start: int) -> int:
        """Parse the JSON before its closing tag: tags within JSON strings are text."""
        start += len(self.open)
        with suppress(BadCallError):
            _, start = decode_json(text, _behind(_WITHIN_TAGS, text, start))
        return text.find(self.close, start)

    def calls(self, body: str, tools: Tools) -> RawCalls:
        value, end = decode_json(body, _behind(_WITHIN_TAGS, body, 0))
        if _behind(_WITHIN_TAGS, body, end) < len(body):
            raise BadCallError(f"it is no JSON followed by {self.close}")
        return listed(value)

    def write_call(self, call: ToolCall, tools: Tools) -> str:
        return f"\n{to_json({'name': call.name, 'arguments': call.arguments})}\n"

    def describe(self, tools: Tools) -> str:
        return (
            "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with "
            f"function signatures within <tools></tools> XML tags:\n<tools>\n{_schemas(tools)}\n</tools>\n\n"
            f"For each function call, return a json object with function name and arguments within "
            f"{self.open}{self.close} XML tags:\n{self.open}\n"
            f'{{"name": <function-name>, "arguments": <args-json-object>}}\n{self.close}'
        )


class List(Hermes):
    """`<tool_call>[{"name": "search", "arguments": {"query": "x"}}]</tool_call>`: all calls of a turn, as SmolLM2."""

    name = "list"

    def write(self, calls: Sequence[ToolCall], tools: Tools) -> str:
        entries = [{"name": call.name, "arguments": call.arguments} for call in calls]
        return f"{self.open}{to_json(entries)}{self.close}"

    def describe(self, tools: Tools) -> str:
        """The prompt of SmolLM2's model card."""
        return (
            "You are an expert in composing functions. You are given a question and a set of possible functions. \n"
            "Based on the question, you will need to make one or more function/tool calls to achieve the purpose. \n"
            "If none of the functions can be used, point it out and refuse to answer. \n"
            "If the given question lacks the parameters required by the function, also point it out.\n\n"
            f"You have access to the following tools:\n<tools>{to_json([dict(tool) for tool in tools])}</tools>\n\n"
            "The output MUST strictly adhere to the following format, and NO other text MUST be included.\n"
            "The example format is as follows. Please make sure the parameter type is correct. "
            "If no function call is needed, please make the tool calls an empty list '[]'.\n"
            f'{self.open}[\n{{"name": "func_name1", "arguments": {{"argument1": "value1", "argument2": "value2"}}}},\n'
            f"... (more tool calls as required)\n]{self.close}"
        )


class Llama(ToolFormat):
    """`{"name": "search", "parameters": {"query": "x"}}`, optionally after `<|python_tag|>`: Llama 3.1.

    Text and a code fence may surround it; other JSON is text. Several calls may follow each other, or be a list (xLAM).
    """

    name = "llama"
    open = "<|python_tag|>"

    def read(self, text: str, into: CallReading, *, finished: bool, tools: Tools) -> None:
        before, tag, body = text.partition(self.open)
        before, body = (before, body) if tag else ("", text)
        into.text.append(before)
        position = start = 0
        problem, fenced = "it is no JSON object" if tag else "", False
        for _ in range(MAX_TRIES):
            opening = _OBJECT.search(body, start)
            if opening is None or into.full:
                break
            try:
                value, start = decode_json(body, opening.start())
            except BadCallError as error:
                if tag or _names_a_tool(body[opening.start() :], tools):
                    problem = str(error)
                    break
                start = opening.end()
                continue
            if not tag and isinstance(value, list) and not _calls_a_tool(value, tools):
                start = opening.start() + 1  # an object within it may call
            elif tag or _calls_a_tool(value, tools):
                fence = _FENCE.search(body, position, opening.start())
                fenced = fenced or fence is not None
                into.text.append(body[position : opening.start() if fence is None else fence.start()])
                into.add(body[opening.start() : start], lambda value=value: listed(value))
                position = start = _behind(_FENCE_END if fenced else _SEPARATOR, body, start)
                tag = problem = ""

        if problem and finished:
            into.malformed(tag + body[position:], problem)
        else:
            into.text.append(tag + body[position:])

    def next_call(self, text: str, position: int, *, tools: Tools) -> Place | None:
        for _ in range(MAX_TRIES):
            if (opening := _OBJECT.search(text, position)) is None:
                return None
            with suppress(BadCallError):
                value, end = decode_json(text, opening.start())
                if _calls_a_tool(value, tools):
                    return opening.start(), end
            position = opening.start() + 1
        return None

    def write(self, calls: Sequence[ToolCall], tools: Tools) -> str:
        return "; ".join(to_json({"name": call.name, "parameters": call.arguments}) for call in calls)

    def describe(self, tools: Tools) -> str:
        schemas = "\n\n".join(to_json(tool, indent=4) for tool in tools)
        return (
            "You have access to the following functions. To call a function, please respond with JSON for a function "
            'call. Respond in the format {"name": function name, "parameters": dictionary of argument name and its '
            f"value}}. Do not use variables.\n\n{schemas}"
        )


class Taught(Hermes):
    """As `hermes`, without descriptions: for models made from scratch, which cannot read them."""

    name, is_taught = "taught", True


class Words(Marked):
    """`<call> search alice </call>`: words are arguments in the tool's order; the last one takes the rest.

    For models with a few dozen words and no punctuation. A word is a number if the schema requires one.
    """

    name, open, close, between = "words", "<call>", "</call>", " "
    is_taught = True

    def calls(self, body: str, tools: Tools) -> RawCalls:
        """One word per parameter in order, the rest to the last."""
        name, *words = body.split() or [""]
        parameters = schema_of(name, tools)
        if name == self.open or (words and parameters == {}):
            raise BadCallError(f"write {self.open} NAME ARGUMENTS {self.close}")
        arguments: dict[str, Any] = {}
        for index, (key, schema) in enumerate((parameters or {}).items()):
            given = words[index:] if index == len(parameters or {}) - 1 else words[index : index + 1]
            if given and schema.get("type") == "array":
                arguments[key] = [as_written(word, schema.get("items", {})) for word in given]
            elif given:
                arguments[key] = as_written(" ".join(given), schema)
        return [(name, arguments)]

    def write_call(self, call: ToolCall, tools: Tools) -> str:
        """Arguments in parameter order; those after a missing one cannot be written."""
        words = [call.name]
        for key in schema_of(call.name, tools) or call.arguments:
            if key not in call.arguments:
                break
            value = call.arguments[key]
            words += map(bare, value if isinstance(value, list) else [value])
        return f" {' '.join(words)} "

    def describe(self, tools: Tools) -> str:
        lines = ["You may call these tools, with words in the place of the arguments:"]
        for tool in tools:
            name = tool.get("function", tool)["name"]
            words = [self.open, name, *(key.upper() for key in schema_of(name, [tool]) or {}), self.close]
            lines.append(" ".join(words))
        return "\n".join(lines)


def bare(value: Any) -> str:
    return value if isinstance(value, str) else to_json(value)


def _schemas(tools: Tools) -> str:
    return "\n".join(map(to_json, tools))


def named(value: Any) -> tuple[object, object]:
    """Name and arguments of `{"name": ..., "arguments": ...}`; Llama uses the key `parameters`."""
    if not isinstance(value, dict):
        raise BadCallError('it must be a JSON object with the keys "name" and "arguments"')
    return value.get("name"), value.get("arguments", value.get("parameters"))


def listed(value: Any) -> RawCalls:
    """The calls of an object or a list; an empty list, which SmolLM2 and xLAM are taught to write, calls nothing."""
    return [named(call) for call in (value if isinstance(value, list) else [value])]


def _calls_a_tool(value: Any, tools: Tools) -> bool:
    if isinstance(value, list):
        return bool(value) and all(_calls_a_tool(call, tools) for call in value)
    if not isinstance(value, dict) or "name" not in value:
        return False
    named = isinstance(value["name"], str) and schema_of(value["name"], tools) is not None
    return named or "parameters" in value or "arguments" in value


def _names_a_tool(text: str, tools: Tools) -> bool:
    names = (tool.get("function", tool).get("name") for tool in tools)
    return any(f'"{name}"' in text[:MAX_CALL_CHARS] for name in names)


_OBJECT = re.compile(r'(?:\[\s*+)?\{\s*+"')
_FENCE = re.compile(r"```\w*+\s*+\Z")
_FENCE_END = re.compile(r"\s*+(?:```|;\s*+)?")
_SEPARATOR = re.compile(r"\s*+(?:;\s*+)?")
_WITHIN_TAGS = re.compile(r"\s*+(?:```(?:json)?\s*+)?")


def _behind(pattern: re.Pattern[str], text: str, position: int) -> int:
    """End of the match at the position; every pattern matches the empty string."""
    found = pattern.match(text, position)
    return found.end() if found else position
