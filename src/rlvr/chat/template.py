"""A tokenizer's chat template: what it can render is found out by trying, and what it cannot is said another way."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from rlvr.chat.family_formats import LFM
from rlvr.chat.formats import FORMATS, HERMES, WORDS, read_message
from rlvr.chat.reasoning import HARMONY, Marks, marks_of, split
from rlvr.chat.tool_calls import ToolFormat
from rlvr.errors import UserError
from rlvr.types import Message, ToolCall, ToolSchema

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PLACE = "rlvr-completion-goes-here"
"""Stands for what somebody says while the template is asked what it makes of it."""

QUESTION = Message(role="user", content="x")
PROBE: ToolSchema = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": "A tool.",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    },
}


@dataclass(frozen=True, kw_only=True)
class Abilities:
    """What a chat template makes of messages."""

    parts: bool = False  # it reads content as a list of parts (image models)
    system: bool = True  # it shows a system message
    tools: bool = False  # it shows tools
    arguments: Literal["object", "text"] | None = None  # how it wants a call's arguments; None: it shows no calls
    many_calls: bool = False  # it shows several calls of one message
    tool_role: bool = False  # it shows tool messages
    needs_call: bool = False  # ... only behind a message with a call
    fields: bool = False  # it reads reasoning from a field of its own, not from the content
    opened: bool = False  # its header of a completion begins the reasoning


def call_of(text: str) -> Message:
    """An assistant's message that does nothing but call the probe."""
    return Message(
        role="assistant", content="", tool_calls=(ToolCall(id="call_0", name="probe", arguments={"text": text}),)
    )


@dataclass(frozen=True, kw_only=True)
class _Given:
    """What a template is given."""

    messages: list[dict[str, Any]]
    tools: list[Any] | None


class Template:
    """Renders messages; what the template has no words for is put into words that it has.

    - A system message that it refuses or leaves out (Gemma 2, Mistral) stands before the first user message.
    - Tools that it does not show are described in the system message.
    - Tool calls that it does not show, or not in the format that is spoken, stand in the text.
    - Tool messages that it does not show are user messages.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, tool_format: str) -> None:
        self._tokenizer = tokenizer
        self._spelled = _special_words(tokenizer)
        self.marks: Marks = marks_of(str(tokenizer.chat_template))
        self.format: ToolFormat = HERMES
        self.native = self._describes = True
        self.can = _EVERYTHING  # each attempt below takes it at its word, and takes back what fails
        self.can = replace(self.can, parts=self._wants_parts())
        self.can = self._basics()
        self.can = self._calls()
        native = self._native_format()
        self.format = FORMATS[tool_format] if tool_format != "auto" else (native or self._fallback())
        self.native = native is self.format
        """Calls go to the template as such; otherwise they are text."""
        self._describes = self.can.tools and (self.native or tool_format == "auto")
        self.can = self._answers()
        self.can = replace(self.can, fields=self._reads_fields())

    # ------------------------------------------------------------------------------------------------------- trying

    def tried(
        self, messages: Sequence[Message], *, header: bool = False, tools: Sequence[ToolSchema] = ()
    ) -> str | None:
        """The messages as the template renders them, None if it refuses."""
        given = self._given(messages, tools)
        try:
            return self._apply(given, header)
        except Exception:  # raised by the template itself, through jinja2
            return None

    def _shows(self, what: str, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> bool:
        return what in (self.tried(messages, tools=tools) or "")

    def _wants_parts(self) -> bool:
        said = replace(QUESTION, content=PLACE)
        as_text = replace(self.can, parts=False)
        self.can, as_parts = as_text, self.can
        if self._shows(PLACE, [said]):
            return False
        self.can = as_parts
        return self._shows(PLACE, [said])

    def _basics(self) -> Abilities:
        return replace(
            self.can,
            system=self._shows(PLACE, [Message(role="system", content=PLACE), QUESTION]),
            tools=self._shows("probe", [QUESTION], [PROBE]),
            opened=self._opens([QUESTION]),
        )

    def _opens(self, messages: Sequence[Message]) -> bool:
        """Whether the header of the completion begins reasoning."""
        without, with_header = self.tried(messages) or "", self.tried(messages, header=True) or ""
        header = with_header[_shared(without, with_header) :]
        return header.rfind(self.marks.open.strip()) > header.rfind(self.marks.close)

    def _calls(self) -> Abilities:
        call = call_of(PLACE)
        other = replace(call.tool_calls[0], id="call_1", arguments={"text": "another-one"})
        many = [QUESTION, replace(call, tool_calls=(*call.tool_calls, other))]
        styles: tuple[Abilities, ...] = (self.can, replace(self.can, arguments="text"))
        for style in styles:
            self.can = style
            if self._shows(PLACE, [QUESTION, call]):
                return replace(self.can, many_calls=self._shows(PLACE, many) and self._shows("another-one", many))
        return replace(self.can, arguments=None)

    def _native_format(self) -> ToolFormat | None:
        """The format that reads back the call which the template has rendered."""
        if self.can.arguments is None:
            return None
        call = call_of(PLACE)
        text = self.tried([QUESTION, call]) or ""
        said = text[_shared(text, self.tried([QUESTION], header=True) or "") :].strip()
        special = [word.content for word in self._tokenizer.added_tokens_decoder.values()]
        while True:  # special tokens end the turn, but may also end the call
            for tool_format in FORMATS.values():
                if read_message(said, self.marks, tool_format, [PROBE]).tool_calls == call.tool_calls:
                    return tool_format
            ends = [word for word in special if word and said.endswith(word)]
            if not ends:
                return None
            said = said.removesuffix(max(ends, key=len)).strip()

    def _fallback(self) -> ToolFormat:
        """The format where the template shows no calls."""
        return LFM if "<|tool_list_start|>" in str(self._tokenizer.chat_template) else HERMES

    def _answers(self) -> Abilities:
        answer = Message(role="tool", content=PLACE, name="probe", call_id="call_0")
        called = [QUESTION, call_of("x"), answer]
        behind_a_call = self._shows(PLACE, called)
        text = [QUESTION, Message(role="assistant", content="x"), answer]
        alone = self._shows(PLACE, text) and (self.native or self.tried(text) != self.tried(text, header=True))
        shown = alone or (behind_a_call and self.native)
        return replace(
            self.can,
            tool_role=shown,
            needs_call=shown and not alone,
            opened=self.can.opened and (not shown or self._opens(called)),
        )

    def _reads_fields(self) -> bool:
        thought = f"{self.marks.open}{PLACE}{self.marks.close}"
        self.can = replace(self.can, fields=True)
        said = (Message(role="assistant", content=f"{thought}x"), replace(call_of("x"), content=thought))
        return any(self._shows(PLACE, [QUESTION, message]) for message in said)

    # ---------------------------------------------------------------------------------------------------- rendering

    def render(self, messages: Sequence[Message], *, header: bool = True, tools: Sequence[ToolSchema] = ()) -> str:
        """The conversation, up to where the model speaks if `header`. UserError if the template refuses it."""
        given = self._given(messages, tools)
        try:
            return self._apply(given, header)
        except Exception as error:  # jinja2
            roles = ", ".join(message.role for message in messages)
            raise UserError(
                f"the chat template of {self._tokenizer.name_or_path!r} cannot render the messages {roles} ({error}): "
                "change the prompt, or use another model."
            ) from error

    def _apply(self, given: _Given, header: bool) -> str:
        text: Any = self._tokenizer.apply_chat_template(
            given.messages, tools=given.tools, add_generation_prompt=header, tokenize=False
        )
        return text

    def _given(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> _Given:
        """The messages in words that the template has."""
        messages = [self._harmless(message) for message in messages]
        shown = tools if self._describes else ()
        if tools and not shown:
            messages = described(messages, self.format, tools)
        if not self.can.tool_role:
            messages = _said_by_the_user(messages, self.format)
        if not self.can.system:
            messages = _folded(messages)
        return _Given(messages=self._dicts(messages, tools), tools=[dict(tool) for tool in shown] or None)

    def _harmless(self, message: Message) -> Message:
        """What a tool says, without special tokens: no document may end its turn and speak for the model.

        `<|im_end|>` in it becomes `< |im_end|>`, which is only text.
        """
        if message.role != "tool" or self._spelled is None:
            return message
        return replace(
            message, content=self._spelled.sub(lambda found: f"{found[0][0]} {found[0][1:]}", message.content)
        )

    def calls_in(self, message: Message) -> tuple[ToolCall, ...]:
        """The calls of a message that the template gets as such; none if they are text."""
        calls = tuple(call for call in message.tool_calls if call.problem is None)
        if not calls and self.can.needs_call:
            calls = tuple(replace(call, name=call.name or "unknown") for call in message.tool_calls)
        if not self.native or (len(calls) > 1 and not self.can.many_calls):
            return ()
        return calls

    def _dicts(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> list[dict[str, Any]]:
        """The messages as templates want them. Ids of calls are numbered through: Mistral's have nine characters."""
        entries: list[dict[str, Any]] = []
        ids: dict[str | None, str] = {}
        count = 0
        for message in messages:
            entry: dict[str, Any] = {"role": message.role, "content": message.content}
            if message.role == "assistant":
                ids = {call.id: f"call{count + index:05d}" for index, call in enumerate(message.tool_calls)}
                count += len(ids)
                entry |= self._said(message, ids, tools)
            elif message.role == "tool":
                entry["tool_call_id"] = ids.get(message.call_id, "call00000")
                if message.name is not None:
                    entry["name"] = message.name
            if self.can.parts:
                entry["content"] = [{"type": "text", "text": entry["content"]}]
            entries.append(entry)
        return entries

    def _said(self, message: Message, ids: Mapping[str | None, str], tools: Sequence[ToolSchema]) -> dict[str, Any]:
        calls = self.calls_in(message)
        content = message.content
        unsaid = [call for call in message.tool_calls if call.problem is None and not calls]
        if unsaid:
            content = "\n".join(filter(None, [content, self.format.write(unsaid, tools)]))
        entry = self._with_reasoning(content, bool(calls))
        if calls:
            entry["tool_calls"] = [
                {"id": ids[call.id], "type": "function", "function": self._function(call)} for call in calls
            ]
        return entry

    def _function(self, call: ToolCall) -> dict[str, Any]:
        as_text = self.can.arguments == "text"
        given = json.dumps(call.arguments, ensure_ascii=False) if as_text else dict(call.arguments)
        return {"name": call.name, "arguments": given}

    def _with_reasoning(self, content: str, calls: bool) -> dict[str, Any]:
        marks = self.marks
        if self.can.fields:
            thoughts, said = split(content, marks)
            said = said if said.strip() else ""
            if thoughts is not None and calls and self.marks == HARMONY and said:
                thoughts, said = f"{thoughts}\n{said}", ""  # GPT-OSS takes but one of them beside a call
            return {"content": said} | ({} if thoughts is None else dict.fromkeys(_REASONING, thoughts))
        closed, opened = content.find(marks.close), content.find(marks.open)
        began_in_the_prompt = closed >= 0 and not 0 <= opened < closed
        return {"content": f"{marks.open}\n{content.lstrip()}" if began_in_the_prompt else content}


_REASONING = ("reasoning_content", "thinking")
_EVERYTHING = Abilities(parts=True, tools=True, arguments="object", many_calls=True, tool_role=True)


def _shared(first: str, second: str) -> int:
    """How many characters two texts have in common from the beginning."""
    pairs = zip(first, second, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def _special_words(tokenizer: PreTrainedTokenizerBase) -> re.Pattern[str] | None:
    """Matches every special token of the tokenizer in a text; None if it has none that text could spell."""
    words = {str(word) for word in tokenizer.added_tokens_decoder.values() if word.special and len(str(word)) > 1}
    longest_first = sorted(words, key=lambda word: (-len(word), word))
    return re.compile("|".join(map(re.escape, longest_first))) if words else None


def described(messages: Sequence[Message], tool_format: ToolFormat, tools: Sequence[ToolSchema]) -> list[Message]:
    """The tools in the system message, which is added where there is none."""
    text = tool_format.describe(tools)
    first = messages[0] if messages else None
    if first is not None and first.role == "system":
        return [replace(first, content=f"{first.content}\n\n{text}"), *messages[1:]]
    return [Message(role="system", content=text), *messages]


def _said_by_the_user(messages: Sequence[Message], tool_format: ToolFormat) -> list[Message]:
    """What tools answer, as one message of the user with what the user says next."""
    made: list[Message] = []
    behind_a_tool = False
    for message in messages:
        is_tool = message.role == "tool"
        if is_tool:
            wrapped = tool_format is not WORDS
            content = f"<tool_response>\n{message.content}\n</tool_response>" if wrapped else message.content
            message = Message(role="user", content=content)
        if message.role == "user" and made and made[-1].role == "user" and (is_tool or behind_a_tool):
            made[-1] = replace(made[-1], content=f"{made[-1].content}\n{message.content}")
        else:
            made.append(message)
        behind_a_tool = is_tool or (behind_a_tool and message.role == "user")
    return made


def _folded(messages: Sequence[Message]) -> list[Message]:
    """System text in front of the first user message."""
    system = [message.content for message in messages if message.role == "system"]
    rest = [message for message in messages if message.role != "system"]
    if not system or not rest:
        return list(messages)
    first = replace(rest[0], content="\n\n".join([*system, rest[0].content]))
    return [first, *rest[1:]]
