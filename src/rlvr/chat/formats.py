"""All tool-call formats by name. `prompt.tool_format` offers five; `auto` knows all.

The formats of model families parse what the family's chat template renders.
"""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from rlvr.chat.tool_calls import BadCallError, CallReading, RawCalls, Tools, as_written, load_json, schema_of, to_json
from rlvr.chat.tool_formats import Hermes, List, Llama, Marked, Taught, ToolFormat, Words, bare, listed
from rlvr.reasoning import Marks, Place, pieces
from rlvr.types import Message, ToolCall


class _Tagged(Marked):
    """Named parameters between tags with bare text: only the tool's schema distinguishes 3 from "3"."""

    header: re.Pattern[str]  # its group is the tool's name
    opening: re.Pattern[str]  # of a parameter; its group is the key
    closing: str
    strips: bool = False  # strip one line break on either side of a value
    example: str
    written: str
    written_parameter: str

    def calls(self, body: str, tools: Tools) -> RawCalls:
        if (found := self.header.match(body)) is None:
            raise BadCallError(f"it names no tool, write {self.example}")
        name, position = found[1].strip(), found.end()
        schemas = schema_of(name, tools) or {}
        arguments: dict[str, Any] = {}
        while (opening := self.opening.search(body, position)) is not None:
            key, end = opening[1], body.find(self.closing, opening.end())
            if end < 0 or key in arguments:
                raise BadCallError(f"the argument {key[:60]!r} {'does not end' if end < 0 else 'stands twice'}")
            value = body[opening.end() : end]
            text = value.removeprefix("\n").removesuffix("\n") if self.strips else value
            arguments[key] = as_written(text, schemas.get(key, {}))
            between, position = body[position : opening.start()], end + len(self.closing)
            if self.closing in between:  # it stood in the value before, whose rest would be lost
                raise BadCallError(f"an argument has {self.closing} in its value")
        if self.closing in body[position:]:
            raise BadCallError(f"an argument has {self.closing} in its value")
        return [(name, arguments)]

    def _end(self, text: str, start: int) -> int:
        """Marks in the value of a parameter are text."""
        start += len(self.open)
        while (opening := self.opening.search(text, start)) is not None:
            close = text.find(self.close, start, opening.start())
            end = text.find(self.closing, opening.end())
            if close >= 0 or end < 0:
                break
            start = end + len(self.closing)
        return text.find(self.close, start)

    def write_call(self, call: ToolCall, tools: Tools) -> str:
        pairs = call.arguments.items()
        parameters = "".join(self.written_parameter.format(key=key, value=bare(value)) for key, value in pairs)
        return self.written.format(name=call.name, parameters=parameters)


class Xml(_Tagged):
    """`<tool_call><function=f><parameter=query>x</parameter></function></tool_call>`: Qwen3-Coder, Qwen3.5+."""

    name, open, close = "xml", "<tool_call>", "</tool_call>"
    header = re.compile(r"\s*<function=([^\n>]+)>")
    opening = re.compile(r"<parameter=([^\n>]{1,200})>")
    closing = "</parameter>"
    strips = True
    example = "<tool_call><function=NAME>...</function></tool_call>"
    written = "\n<function={name}>\n{parameters}</function>\n"
    written_parameter = "<parameter={key}>\n{value}\n</parameter>\n"


class Glm(_Tagged):
    """`<tool_call>f<arg_key>query</arg_key><arg_value>x</arg_value></tool_call>`: GLM-4.5+."""

    name, open, close = "glm", "<tool_call>", "</tool_call>"
    header = re.compile(r"\s*([^\s<{]+)")
    opening = re.compile(r"<arg_key>([^<]{1,200})</arg_key>\s*<arg_value>")
    closing = "</arg_value>"
    example = "<tool_call>NAME ...</tool_call>"
    written = "{name}\n{parameters}"
    written_parameter = "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n"


class Atem(_Tagged):
    """`<atem:invoke name="f"><atem:parameter name="query">x</atem:parameter></atem:invoke>`: Muse Glimmer."""

    name, open, close = "atem", "<atem:function_calls>", "</atem:function_calls>"
    header = re.compile(r'\s*<atem:invoke name="([^"\n]+)">')
    opening = re.compile(r'<atem:parameter name="([^"\n]{1,200})">')
    closing = "</atem:parameter>"
    example = '<atem:function_calls><atem:invoke name="NAME">...</atem:invoke></atem:function_calls>'
    written = '\n<atem:invoke name="{name}">\n{parameters}</atem:invoke>\n'
    written_parameter = '<atem:parameter name="{key}">{value}</atem:parameter>\n'


class DeepSeek(Marked):
    """`function<sep>f ```json {"query": "x"} ```  of DeepSeek V3 and R1, `f<sep>{"query": "x"}` of V3.1."""

    name, open, close = "deepseek", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
    outer = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
    _separator = "<｜tool▁sep｜>"

    def calls(self, body: str, tools: Tools) -> RawCalls:
        head, separator, rest = body.partition(self._separator)
        if not separator:
            raise BadCallError(f"it has no {self._separator}")
        name = head.strip()
        if name == "function":
            name, _, rest = rest.strip().partition("\n")
        return [(name, rest.strip().removeprefix("```json").removesuffix("```"))]

    def write_call(self, call: ToolCall, tools: Tools) -> str:
        return f"function{self._separator}{call.name}\n```json\n{to_json(call.arguments)}\n```"


_TOKEN = re.compile(  # an unterminated string takes the rest: searching again would be quadratic
    r"""<\|"\|>(.*?)<\|"\|>|'((?:[^'\\]|\\.?)*+)'?|"((?:[^"\\]|\\.?)*+)"?|(?<![\w.-])([A-Za-z_][\w.-]*+)\s*+([:=(]?)|\)""",
    re.DOTALL,
)
_JSON_WORDS = {"True": "true", "False": "false", "None": "null"}
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", "'": "'", '"': '"'}


def _as_json(text: str, *, python: bool = False) -> str:
    """The JSON of values with bare keys, as Gemma 4 writes them, or of Python-like calls (not evaluated):

    {query:<|"|>x<|"|>,top_n:3}     {"query":"x","top_n":3}
    [f(query='x', exact=True)]      [{"name":"f","arguments":{"query":"x", "exact":true}}]
    """

    def written(token: re.Match[str]) -> str:
        raw, single, double, word, mark = token.groups()
        quoted = single if double is None else double
        if quoted is not None:
            raw = re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[0]), quoted, flags=re.DOTALL)
        if raw is not None:
            return to_json(raw)
        if not python and mark not in ("", ":"):
            return token[0]
        if word is None:
            return "}}"
        if mark == "(":
            return f'{{"name":"{word}","arguments":{{'
        return f'"{word}":' if mark else _JSON_WORDS.get(word, word)

    return _TOKEN.sub(written, text)


class Gemma(Marked):
    """`call:f{query:<|"|>x<|"|>}`: Gemma 4."""

    name, open, close = "gemma", "<|tool_call>", "<tool_call|>"

    def calls(self, body: str, tools: Tools) -> RawCalls:
        name, brace, rest = body.partition("{")
        if not brace or not name.strip().startswith("call:"):
            raise BadCallError("write call:NAME{...}")
        return [(name.strip().removeprefix("call:"), load_json(_as_json(brace + rest)))]

    def write_call(self, call: ToolCall, tools: Tools) -> str:
        pairs = ",".join(f"{key}:{self._value(value)}" for key, value in sorted(call.arguments.items()))
        return f"call:{call.name}{{{pairs}}}"

    def _value(self, value: Any) -> str:
        if isinstance(value, str):
            return f'<|"|>{value}<|"|>'
        if isinstance(value, Mapping):
            return "{" + ",".join(f"{self._value(key)}:{self._value(inner)}" for key, inner in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ",".join(map(self._value, value)) + "]"
        return to_json(value)


class Lfm(Marked):
    """`[f(query='x'), g()]`, Python-like: LFM2."""

    name, open, close = "lfm", "<|tool_call_start|>", "<|tool_call_end|>"

    def calls(self, body: str, tools: Tools) -> RawCalls:
        return listed(load_json(_as_json(body, python=True)))

    def write_call(self, call: ToolCall, tools: Tools) -> str:
        return f"[{call.name}({', '.join(f'{key}={self._value(value)}' for key, value in call.arguments.items())})]"

    def _value(self, value: Any) -> str:
        if not isinstance(value, str):
            return to_json(value)
        text = value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
        return f"'{text}'"


class Harmony(ToolFormat):
    """` to=functions.f<|channel|>commentary json<|message|>{"query": "x"}`: GPT-OSS.

    The call is the last message of a turn, ended by the stop token; its header has one of two orders.
    """

    name = "harmony"
    _header = re.compile(
        r"(?:<\|start\|>assistant)?(?: ?to=functions\.([^\s<]+)<\|channel\|>commentary[^<]*"
        r"|<\|channel\|>commentary to=functions\.([^\s<]+)[^<]*)(?:<\|constrain\|>[^<]*)?<\|message\|>"
    )

    def next_call(self, text: str, position: int, *, tools: Tools) -> Place | None:
        found = self._header.search(text, position) if "to=functions." in text else None
        return found and (found.start(), len(text))

    def read(self, text: str, into: CallReading, *, finished: bool, tools: Tools) -> None:
        """The first header starts the call, which takes the rest of the text."""
        header = self._header.search(text) if "to=functions." in text else None
        if header is None or not finished:
            into.text.append(text)
            return
        into.text.append(text[: header.start()])
        body = text[header.end() :].removesuffix("<|call|>")
        into.add(text[header.start() :], lambda: [(header[1] or header[2], body or "{}")])

    def write(self, calls: Sequence[ToolCall], tools: Tools) -> str:
        """One call; the template allows no more."""
        return f" to=functions.{calls[0].name}<|channel|>commentary json<|message|>{to_json(calls[0].arguments)}"


class Mistral(ToolFormat):
    """`[TOOL_CALLS] [{"name": "f", "arguments": {}}]`, or `[TOOL_CALLS]f[ARGS]{}` once or several times: Mistral."""

    name = "mistral"
    open, _args = "[TOOL_CALLS]", "[ARGS]"

    def read(self, text: str, into: CallReading, *, finished: bool, tools: Tools) -> None:
        """Everything after the first mark is calls; a cut-off turn is text."""
        before, mark, rest = text.partition(self.open)
        into.text.append(before)
        if not mark:
            return
        if not finished:
            try:
                self._calls(rest)
            except BadCallError:
                into.text.append(mark + rest)
                return
        into.add(mark + rest, lambda: self._calls(rest))

    def _calls(self, text: str) -> RawCalls:
        if self._args not in text:
            return listed(load_json(text))
        parts = (part.partition(self._args) for part in text.split(self.open))
        return [(name, load_json(body)) for name, _, body in parts]

    def write(self, calls: Sequence[ToolCall], tools: Tools) -> str:
        entries = [{"name": call.name, "arguments": dict(call.arguments), "id": call.id} for call in calls]
        return f"{self.open} {to_json(entries)}"


class Granite(Mistral):
    """`<|tool_call|>[{"name": "f", "arguments": {}}]`: Granite 3; Phi-4-mini closes it."""

    name, open = "granite", "<|tool_call|>"
    _closing = "<|/tool_call|>"

    def _calls(self, text: str) -> RawCalls:
        return listed(load_json(text.strip().removesuffix(self._closing)))

    def write(self, calls: Sequence[ToolCall], tools: Tools) -> str:
        return self.open + to_json([{"name": call.name, "arguments": dict(call.arguments)} for call in calls])


# a template's format is the first that parses its call; Llama accepts any JSON, so it comes last
_KINDS = (Hermes, Words, Taught, List, Xml, Glm, Atem, Harmony, DeepSeek, Gemma, Lfm, Mistral, Granite, Llama)
FORMATS: Mapping[str, ToolFormat] = {kind.name: kind() for kind in _KINDS}
UNSHOWN: Mapping[str, str] = {"<|tool_list_start|>": "lfm", "<|tool_call|>": "granite", "named SmolLM": "list"}
"""Words in the templates of families that do not render calls, and the format in which the family is taught to call."""


def read_message(
    text: str,
    marks: Marks,
    tool_format: ToolFormat,
    tools: Tools,
    *,
    finished: bool = True,
    opened: bool = False,
) -> Message:
    """The assistant's message in a text; nothing within reasoning, which the prompt may have `opened`, is a call."""
    reading = CallReading()
    next_call = partial(tool_format.next_call, tools=tools)
    for piece, is_reasoning in pieces(text, marks, opened=opened, next_call=next_call):
        if is_reasoning:
            reading.text.append(piece)
        else:
            tool_format.read(piece, reading, finished=finished, tools=tools)
    content, calls = "".join(reading.text), tuple(reading.calls)
    return Message(role="assistant", content=content.strip() if calls else content, tool_calls=calls)
