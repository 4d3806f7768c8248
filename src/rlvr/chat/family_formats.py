"""How model families write tool calls: what their chat templates render, each is read back from.

xml        <tool_call><function=search><parameter=query>x</parameter></function></tool_call>   Qwen3-Coder, Qwen3.5+
glm        <tool_call>search<arg_key>query</arg_key><arg_value>x</arg_value></tool_call>       GLM-4.5+
atem       <atem:invoke name="search"><atem:parameter name="query">x</atem:parameter>...       Muse Glimmer
harmony    to=functions.search<|channel|>commentary json<|message|>{"query": "x"}              GPT-OSS
deepseek   function<|tool_sep|>search ```json {"query": "x"} ```                               DeepSeek V3, R1
gemma      <|tool_call>call:search{query:<|"|>x<|"|>}<tool_call|>                              Gemma 4
lfm        <|tool_call_start|>[search(query='x')]<|tool_call_end|>                             LFM2
mistral    [TOOL_CALLS] [{"name": "search", "arguments": {"query": "x"}}]                      Mistral
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlvr.chat.literals import LiteralReader
from rlvr.chat.tool_calls import MAX_CALL_CHARS, BadJsonError, Reading, as_written, decode_json, schema_of
from rlvr.types import ToolCall, ToolSchema

Body = Callable[[str, str, Reading, Sequence[ToolSchema]], None]
"""Reads what stands between the marks of a call: (body, body with its marks, into, tools)."""


class FamilyFormat:
    """Calls between an opening and a closing mark, each kind of family with its own words in between."""

    def __init__(
        self,
        name: str,
        open: str,
        close: str,
        body: Body,
        one: Callable[[ToolCall], str],
        around: tuple[str, str] = ("", ""),
    ) -> None:
        """`around` are marks before the first and behind the last call; `one` writes what stands in a call."""
        self.name = name
        self._open, self._close, self._body, self._one, self._around = open, close, body, one, around

    def read(self, text: str, into: Reading, *, finished: bool, tools: Sequence[ToolSchema]) -> None:
        """Mark by mark, from left to right."""
        position = 0
        first, last = self._around
        if first and self._open in text:
            text = text.replace(first, "").replace(last, "")
        while not into.full and (start := text.find(self._open, position)) >= 0:
            into.text.append(text[position:start])
            end = text.find(self._close, start + len(self._open))
            if end < 0:
                if finished:
                    into.malformed(text[start:], f"The call does not end: {self._close} is missing.")
                else:
                    into.text.append(text[start:])
                return
            position = end + len(self._close)
            raw = text[start:position]
            if len(raw) > MAX_CALL_CHARS:
                into.malformed(raw, "The call is too long.")
            else:
                self._body(text[start + len(self._open) : end], raw, into, tools)
        into.text.append(text[position:])

    def write(self, calls: Sequence[ToolCall], tools: Sequence[ToolSchema]) -> str:
        """As the family's template writes them."""
        first, last = self._around
        return first + "\n".join(f"{self._open}{self._one(call)}{self._close}" for call in calls) + last

    def describe(self, tools: Sequence[ToolSchema]) -> str:
        """Schemas and an example."""
        return describe_by_example(self.write, tools)


def describe_by_example(write: Callable[..., str], tools: Sequence[ToolSchema]) -> str:
    """The schemas of the tools, and how a call of one looks."""
    schemas = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    example = ToolCall(id="call_0", name="function_name", arguments={"parameter": "value"})
    return (
        "# Tools\n\nYou may call one or more functions to assist with the user query. You are provided with function "
        f"signatures within <tools></tools> XML tags:\n<tools>\n{schemas}\n</tools>\n\n"
        f"Write a call like this:\n{write([example], ())}"
    )


@dataclass(frozen=True, kw_only=True)
class _Tags:
    """Named parameters between tags, their text bare: only the tool's schema tells 3 from "3"."""

    name: re.Pattern[str]
    parameter: re.Pattern[str]  # the opening tag; its group is the key
    close: str  # the closing tag
    strips: bool  # one line break on either side of a value is not part of it
    example: str

    def read(self, body: str, raw: str, into: Reading, tools: Sequence[ToolSchema]) -> None:
        found = self.name.match(body)
        if found is None:
            into.malformed(raw, f"The call names no tool: write {self.example}.")
            return
        name = found[1].strip()
        schemas = schema_of(name, tools) or {}
        arguments: dict[str, Any] = {}
        position = found.end()
        while (opening := self.parameter.search(body, position)) is not None:
            key, end = opening[1], body.find(self.close, opening.end())
            if end < 0 or key in arguments:
                what = "does not end" if end < 0 else "stands twice"
                into.malformed(raw, f"The argument {key[:60]!r} {what}.", name)
                return
            value = body[opening.end() : end]
            text = value.removeprefix("\n").removesuffix("\n") if self.strips else value
            arguments[key] = as_written(text, schemas.get(key, {}))
            position = end + len(self.close)
        into.add(raw, name, arguments)


def _bare(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


_XML = _Tags(
    name=re.compile(r"\s*<function=([^\n>]+)>"),
    parameter=re.compile(r"<parameter=([^\n>]{1,200})>"),
    close="</parameter>",
    strips=True,
    example="<tool_call><function=NAME>...</function></tool_call>",
)
_GLM = _Tags(
    name=re.compile(r"\s*([^\s<{]+)"),
    parameter=re.compile(r"<arg_key>([^<]{1,200})</arg_key>\s*<arg_value>"),
    close="</arg_value>",
    strips=False,
    example="<tool_call>NAME ...</tool_call>",
)
_ATEM = _Tags(
    name=re.compile(r'\s*<atem:invoke name="([^"\n]+)">'),
    parameter=re.compile(r'<atem:parameter name="([^"\n]{1,200})">'),
    close="</atem:parameter>",
    strips=False,
    example='<atem:function_calls><atem:invoke name="NAME">...</atem:invoke></atem:function_calls>',
)


def _write_xml(call: ToolCall) -> str:
    lines = [f"<parameter={key}>\n{_bare(value)}\n</parameter>\n" for key, value in call.arguments.items()]
    return f"\n<function={call.name}>\n{''.join(lines)}</function>\n"


def _write_glm(call: ToolCall) -> str:
    pairs = call.arguments.items()
    lines = [f"<arg_key>{key}</arg_key>\n<arg_value>{_bare(value)}</arg_value>\n" for key, value in pairs]
    return f"{call.name}\n{''.join(lines)}"


def _write_atem(call: ToolCall) -> str:
    pairs = call.arguments.items()
    lines = [f'<atem:parameter name="{key}">{_bare(value)}</atem:parameter>\n' for key, value in pairs]
    return f'\n<atem:invoke name="{call.name}">\n{"".join(lines)}</atem:invoke>\n'


# ---------------------------------------------------------------------------------------- JSON, and what looks like it

_SEPARATOR = "<｜tool▁sep｜>"


def _read_deepseek(body: str, raw: str, into: Reading, tools: Sequence[ToolSchema]) -> None:
    """`function<sep>NAME ```json {...} ```  of V3, `NAME<sep>{...}` of V3.1."""
    head, separator, rest = body.partition(_SEPARATOR)
    if not separator:
        into.malformed(raw, f"The call has no {_SEPARATOR}.")
        return
    name = head.strip()
    if name == "function":
        name, _, rest = rest.strip().partition("\n")
    rest = rest.strip().removeprefix("```json").removesuffix("```")
    into.add(raw, name, rest)


def _write_deepseek(call: ToolCall) -> str:
    return f"function{_SEPARATOR}{call.name}\n```json\n{json.dumps(call.arguments, ensure_ascii=False)}\n```"


def _read_gemma(body: str, raw: str, into: Reading, tools: Sequence[ToolSchema]) -> None:
    name, brace, rest = body.partition("{")
    if not brace or not name.strip().startswith("call:"):
        into.malformed(raw, "The call names no tool: write call:NAME{...}.")
        return
    name = name.strip().removeprefix("call:")
    reader = LiteralReader(rest)
    try:
        arguments = reader.pairs(":", "}")
    except BadJsonError as error:
        into.malformed(raw, f"The arguments cannot be read: {error}.", name)
        return
    if rest[reader.position :].strip():
        into.malformed(raw, "There is text behind the arguments.", name)
        return
    into.add(raw, name, arguments)


def _write_gemma(call: ToolCall) -> str:
    pairs = ",".join(f"{key}:{_gemma_value(value)}" for key, value in sorted(call.arguments.items()))
    return f"call:{call.name}{{{pairs}}}"


def _gemma_value(value: Any) -> str:
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_gemma_value(key)}:{_gemma_value(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_gemma_value, value)) + "]"
    return json.dumps(value)


def _read_lfm(body: str, raw: str, into: Reading, tools: Sequence[ToolSchema]) -> None:
    """A list of Python-like calls; they are all read before any is taken."""
    reader = LiteralReader(body)
    calls: list[tuple[str, dict[str, Any]]] = []
    try:
        reader.demand("[")
        while not reader.take("]"):
            if calls:
                reader.demand(",")
            name = reader.key()
            reader.demand("(")
            calls.append((name, reader.pairs("=", ")")))
    except BadJsonError as error:
        into.malformed(raw, f"The calls cannot be read: {error}.")
        return
    for name, arguments in calls:
        into.add("", name, arguments)


def _write_lfm(call: ToolCall) -> str:
    pairs = ", ".join(f"{key}={_lfm_value(value)}" for key, value in call.arguments.items())
    return f"[{call.name}({pairs})]"


def _lfm_value(value: Any) -> str:
    if isinstance(value, str):
        text = value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
        return f"'{text}'"
    return json.dumps(value, ensure_ascii=False)


class Harmony:
    """GPT-OSS: the call is the last message of a turn, ended by the stop token, its header in one of two orders."""

    name = "harmony"
    _header = re.compile(
        r"(?:<\|start\|>assistant)?(?: ?to=functions\.([^\s<]+)<\|channel\|>commentary[^<]*"
        r"|<\|channel\|>commentary to=functions\.([^\s<]+)[^<]*)(?:<\|constrain\|>[^<]*)?<\|message\|>"
    )

    def read(self, text: str, into: Reading, *, finished: bool, tools: Sequence[ToolSchema]) -> None:
        """The first header starts the call, which takes the rest of the text."""
        found = self._header.search(text) if "to=functions." in text else None
        if found is None or not finished:
            into.text.append(text)
            return
        into.text.append(text[: found.start()])
        raw = text[found.start() :]
        body = text[found.end() :].removesuffix("<|call|>")
        into.add(raw, found[1] or found[2], body or "{}")

    def write(self, calls: Sequence[ToolCall], tools: Sequence[ToolSchema]) -> str:
        """One call; the template allows no more."""
        call = calls[0]
        arguments = json.dumps(call.arguments, ensure_ascii=False)
        return f" to=functions.{call.name}<|channel|>commentary json<|message|>{arguments}"

    def describe(self, tools: Sequence[ToolSchema]) -> str:
        """Schemas and an example."""
        return describe_by_example(self.write, tools)


class Mistral:
    """`[TOOL_CALLS]` and a JSON list of calls, or `[TOOL_CALLS]NAME[ARGS]{...}` once or several times."""

    name = "mistral"
    _mark, _args = "[TOOL_CALLS]", "[ARGS]"

    def read(self, text: str, into: Reading, *, finished: bool, tools: Sequence[ToolSchema]) -> None:
        """What stands behind the first mark is calls to its end; cut off, it is none."""
        before, mark, rest = text.partition(self._mark)
        into.text.append(before)
        if not mark:
            return
        raw = mark + rest
        try:
            calls = self._named(rest) if self._args in rest else self._listed(rest)
        except BadJsonError as error:
            if finished:
                into.malformed(raw, f"The calls are no JSON: {error}.")
            else:
                into.text.append(raw)
            return
        for name, arguments in calls:
            into.add("", name, arguments)

    def _listed(self, text: str) -> list[tuple[object, object]]:
        text = text.strip()
        value, end = decode_json(text)
        entries = value if isinstance(value, list) else [value]
        if end != len(text) or not all(isinstance(entry, dict) for entry in entries):
            raise BadJsonError("it must be a list of objects")
        return [(entry.get("name"), entry.get("arguments")) for entry in entries]

    def _named(self, text: str) -> list[tuple[object, object]]:
        calls: list[tuple[object, object]] = []
        for part in text.split(self._mark):
            name, _, body = part.partition(self._args)
            arguments, end = decode_json(body.strip())
            if end != len(body.strip()):
                raise BadJsonError(f"Extra text at character {end}")
            calls.append((name, arguments))
        return calls

    def write(self, calls: Sequence[ToolCall], tools: Sequence[ToolSchema]) -> str:
        """As the templates of Mistral 7B and Nemo write them."""
        entries = [{"name": call.name, "arguments": dict(call.arguments), "id": call.id} for call in calls]
        return f"{self._mark} {json.dumps(entries, ensure_ascii=False)}"

    def describe(self, tools: Sequence[ToolSchema]) -> str:
        """Schemas and an example."""
        return describe_by_example(self.write, tools)


XML = FamilyFormat("xml", "<tool_call>", "</tool_call>", _XML.read, _write_xml)
GLM = FamilyFormat("glm", "<tool_call>", "</tool_call>", _GLM.read, _write_glm)
ATEM = FamilyFormat("atem", "<atem:function_calls>", "</atem:function_calls>", _ATEM.read, _write_atem)
DEEPSEEK = FamilyFormat(
    "deepseek",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    _read_deepseek,
    _write_deepseek,
    around=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
)
GEMMA = FamilyFormat("gemma", "<|tool_call>", "<tool_call|>", _read_gemma, _write_gemma)
LFM = FamilyFormat("lfm", "<|tool_call_start|>", "<|tool_call_end|>", _read_lfm, _write_lfm)
