"""A tokenizer's chat template: abilities are probed, and content it cannot render is expressed otherwise."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Literal

from rlvr.chat.formats import FORMATS, UNSHOWN, read_message
from rlvr.chat.tool_calls import Tools, to_json
from rlvr.chat.tool_formats import ToolFormat
from rlvr.errors import UserError
from rlvr.printable import ascii_text
from rlvr.reasoning import FIELDS, HARMONY, marks_of, split
from rlvr.types import Message, ToolCall, ToolSchema

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PLACE = "rlvr-completion-goes-here"  # the dummy content while the template is probed
INVENTED = "rlvr-role"

QUESTION = Message(role="user", content="x")
ANSWERED = Message(role="tool", content=PLACE, name="probe", call_id="call_0")
PROBE: ToolSchema = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": "A tool.",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    },
}


def call_of(text: str) -> Message:
    call = ToolCall(id="call_0", name="probe", arguments={"text": text})
    return Message(role="assistant", content="", tool_calls=(call,))


class UnreadFieldError(UserError):
    """A message has a field that the chat template shows and rlvr does not read."""


@dataclass(kw_only=True)
class Abilities:
    """What a chat template can render; assumed until a probe fails."""

    parts: bool = False  # content is a list of parts (image models)
    system: bool = True  # a system message at the beginning
    systems: bool = True  # several of them
    late_system: bool = True  # one behind an answer
    tools: bool = True  # tool descriptions
    arguments: Literal["object", "text"] | None = "object"  # form of a call's arguments; None: no calls
    many_calls: bool = True  # several calls per message
    tool_role: bool = True  # tool messages, in a role that the template knows
    needs_call: bool = False  # ... only after a message with a call
    fields: bool = False  # reasoning is in a separate field
    inline: bool = True  # reasoning in the content is rendered likewise
    opened: bool = False  # the header of a completion opens reasoning


class Template:
    """Renders messages.

    - A system message that the template refuses or drops (Gemma 2, Mistral) goes before the first user message; of
      several, where it shows only one, one is made; a later one becomes the user's.
    - Reasoning is passed in the template's field, or stands in the content between its marks.
    - Several calls of a message, where the template shows one, follow each other, each before its reply (GPT-OSS), or
      are text.
    - Tools that the template does not render are described in the system message.
    - Tool calls that it does not render, or not in the chosen format, become text in the content.
    - Tool messages that it does not render become user messages; also where it renders neither tools nor calls and
      writes the name of any role into a header: the model behind it has learned nothing of this one.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, tool_format: str) -> None:
        self._tokenizer = tokenizer
        self._spelled = _special_words(tokenizer)
        self.source = str(tokenizer.chat_template)
        self.variables: Mapping[str, Any] = {}
        self.marks = marks_of(self.source)
        self.can = Abilities()
        self.format = FORMATS["hermes"]
        self.native = self._describes = True
        self._probe_prompts()
        self._probe_calls()
        native = self._native_format()
        without = FORMATS[next((name for word, name in UNSHOWN.items() if word in self.source), "hermes")]
        self.format = FORMATS[tool_format] if tool_format != "auto" else (native or without)
        self.native = native is self.format  # the template renders calls itself; otherwise they are text
        self._describes = self.can.tools and (self.native or tool_format == "auto")
        self._probe_replies()

    def with_variables(self, variables: Mapping[str, Any]) -> Template:
        """It with variables of its own set, as `enable_thinking`."""
        made = copy(self)
        made.variables = variables
        made.can = replace(self.can, opened=made._opens([QUESTION]) and made._opens_behind_tools())
        return made

    def tried(self, messages: Sequence[Message], *, header: bool = False, tools: Tools = ()) -> str | None:
        try:
            return self.render(messages, header=header, tools=tools)
        except UserError:
            return None

    def _shows(self, what: str, messages: Sequence[Message], tools: Tools = ()) -> bool:
        return what in (self.tried(messages, tools=tools) or "")

    def _opens(self, messages: Sequence[Message]) -> bool:
        without, with_header = self.tried(messages) or "", self.tried(messages, header=True) or ""
        header = with_header[_shared(without, with_header) :]
        return header.rfind(self.marks.open.strip()) > header.rfind(self.marks.close)

    def _opens_behind_tools(self) -> bool:
        return not self.can.tool_role or self._opens([QUESTION, call_of("x"), ANSWERED])

    def _probe_prompts(self) -> None:
        said = [replace(QUESTION, content=PLACE)]
        self.can.parts = not self._shows(PLACE, said)
        self.can.parts = self.can.parts and self._shows(PLACE, said)
        system, other = Message(role="system", content=PLACE), Message(role="system", content="another-one")
        self.can.system = self._shows(PLACE, [system, QUESTION])
        both = [system, other, QUESTION]
        self.can.systems = self.can.system and self._shows(PLACE, both) and self._shows("another-one", both)
        late = self.tried([other, QUESTION, Message(role="assistant", content="an-answer"), system, QUESTION]) or ""
        in_order = 0 <= late.find("another-one") < late.find("an-answer") < late.find(PLACE)
        self.can.late_system = self.can.system and in_order
        self.can.tools = self._shows("probe", [QUESTION], [PROBE])
        self.can.opened = self._opens([QUESTION])

    def _probe_calls(self) -> None:
        call = call_of(PLACE)
        other = replace(call.tool_calls[0], id="call_1", arguments={"text": "another-one"})
        many = [QUESTION, replace(call, tool_calls=(*call.tool_calls, other))]
        styles: tuple[Literal["object", "text"], ...] = ("object", "text")
        for style in styles:
            self.can.arguments = style
            if self._shows(PLACE, [QUESTION, call]):
                self.can.many_calls = self._shows(PLACE, many) and self._shows("another-one", many)
                return
        self.can.arguments = None

    def _native_format(self) -> ToolFormat | None:
        """The format that parses the call as the template renders it."""
        if self.can.arguments is None:
            return None
        call = call_of(PLACE)
        text = self.tried([QUESTION, call]) or ""
        shown = text[_shared(text, self.tried([QUESTION], header=True) or "") :].strip()
        special = [word.content for word in self._tokenizer.added_tokens_decoder.values()]
        while True:  # special tokens may end the turn or the call
            for tool_format in FORMATS.values():
                read = read_message(shown, self.marks, tool_format, [PROBE])
                whole = tool_format.name != "llama" or not read.content  # it finds calls in other formats too
                if read.tool_calls == call.tool_calls and whole:
                    return tool_format
            ends = [word for word in special if word and shown.endswith(word)]
            if not ends:
                return None
            shown = shown.removesuffix(max(ends, key=len)).strip()

    def _probe_replies(self) -> None:
        called = [QUESTION, call_of("x"), ANSWERED]
        uncalled = [QUESTION, Message(role="assistant", content="x"), ANSWERED]
        behind_a_call = self._shows(PLACE, called)
        alone = self._shows(PLACE, uncalled)
        alone = alone and (self.native or self.tried(uncalled) != self.tried(uncalled, header=True))
        self.can.tool_role = alone or (behind_a_call and self.native)
        if not (self.can.tools or self.can.arguments) and self._takes_any_role(uncalled if alone else called):
            self.can.tool_role = False
        self.can.needs_call = self.can.tool_role and not alone
        self.can.opened = self.can.opened and self._opens_behind_tools()
        thought = f"{self.marks.open}{PLACE}{self.marks.close}"
        self.can.fields = True
        completions = (Message(role="assistant", content=f"{thought}x"), replace(call_of("x"), content=thought))
        self.can.inline = False
        self.can.fields = any(self._shows(PLACE, [QUESTION, message]) for message in completions)
        self.can.inline = True
        self.can.inline = not self.can.fields or all(map(self._reads_reasoning, completions))

    def _reads_reasoning(self, completion: Message) -> bool:
        """Whether reasoning in the content is rendered as that in its field is, spaces apart: now and later."""
        thoughts, text = self.parts(completion)
        apart = replace(completion, content=text, reasoning=thoughts)
        later = ANSWERED if completion.tool_calls else QUESTION
        pairs = [[self.tried([QUESTION, one, *more]) for one in (completion, apart)] for more in ((), (later,))]
        return all(None not in pair and len({"".join(str(text).split()) for text in pair}) == 1 for pair in pairs)

    def _takes_any_role(self, messages: Sequence[Message]) -> bool:
        """Whether an invented role is rendered as `tool` is: the name of any role becomes a header, so nothing shows
        that the model knows this one."""
        given = self._dicts(messages, ())
        other = [*given[:-1], given[-1] | {"role": INVENTED}]
        try:
            shown, invented = (str(self._tokenizer.apply_chat_template(m, tokenize=False)) for m in (given, other))
        except Exception:  # raised by the template itself, through jinja2
            return False
        return invented.casefold().replace(INVENTED, "tool") == shown.casefold()

    def render(self, messages: Sequence[Message], *, header: bool = True, tools: Tools = ()) -> str:
        """The conversation, with the header of the completion if `header`. UserError if the template refuses it."""
        given = [self._harmless(message) for message in messages]
        shown = [dict(tool) for tool in tools] if self._describes else []
        if tools and not shown:
            given = described(given, self.format, tools)
        if self.native and self.can.needs_call and not self.can.many_calls:
            given = _one_by_one(given)
        if not self.can.tool_role:
            given = _said_by_the_user(given, self.format)
        given = self._with_systems(given)
        entries = self._dicts(given, tools)

        def applied(entries: list[dict[str, Any]]) -> str:
            shown_entries: Any = entries
            schemas: Any = shown or None
            return str(
                self._tokenizer.apply_chat_template(
                    shown_entries, tools=schemas, add_generation_prompt=header, tokenize=False, **self.variables
                )
            )

        try:
            text = applied(entries)
        except Exception as error:  # raised by the template itself, through jinja2
            roles = ", ".join(message.role for message in messages)
            raise UserError(
                f"the chat template of {self._tokenizer.name_or_path!r} cannot render the messages {roles} ({error}): "
                "change the prompt, or use another model."
            ) from error
        for name in dict.fromkeys(name for message in given for name in message.unread):
            pairs = zip(entries, given, strict=True)
            there = [entry | ({name: m.unread[name]} if name in m.unread else {}) for entry, m in pairs]
            if _changes(partial(applied, there), text):
                raise UnreadFieldError(
                    f"the chat template shows the field {ascii_text(name)!r} of a message, which rlvr does not read: "
                    "take it out, or put it into the content."
                )
        return text

    def _with_systems(self, given: Sequence[Message]) -> list[Message]:
        first = next((index for index, message in enumerate(given) if message.role != "system"), len(given))
        head, rest = list(given[:first]), list(given[first:])
        if not self.can.late_system:
            rest = _said_by_the_user(rest, self.format, "system")
        if len(head) > 1 and not self.can.systems:
            head = [replace(head[0], content="\n\n".join(message.content for message in head))]
        if head and rest and not self.can.system:
            return [replace(rest[0], content=f"{head[0].content}\n\n{rest[0].content}"), *rest[1:]]
        return [*head, *rest]

    def _harmless(self, message: Message) -> Message:
        """A tool's message without special tokens: a document must not end its turn and speak for the model.

        `<|im_end|>` becomes `< |im_end|>`, which is only text.
        """
        if message.role != "tool" or self._spelled is None:
            return message
        text = self._spelled.sub(lambda found: f"{found[0][0]} {found[0][1:]}", message.content)
        return replace(message, content=text)

    def calls_in(self, message: Message) -> tuple[ToolCall, ...]:
        """The calls of a message that the template renders itself; none if they are text."""
        calls = tuple(call for call in message.tool_calls if call.problem is None)
        if not calls and self.can.needs_call:
            calls = tuple(replace(call, name=call.name or "unknown") for call in message.tool_calls)
        return () if not self.native or (len(calls) > 1 and not self.can.many_calls) else calls

    def _dicts(self, messages: Sequence[Message], tools: Tools) -> list[dict[str, Any]]:
        """The messages in OpenAI's form. Call ids are numbered consecutively, with nine characters as in Mistral's."""
        entries: list[dict[str, Any]] = []
        ids: dict[str | None, str] = {}
        count = 0
        for message in messages:
            entry: dict[str, Any] = {"role": message.role, "content": message.content}
            if message.role == "assistant":
                ids = {call.id: f"call{count + index:05d}" for index, call in enumerate(message.tool_calls)}
                count += len(ids)
                entry |= self._message_dict(message, ids, tools)
            elif message.role == "tool":
                entry["tool_call_id"] = ids.get(message.call_id, "call00000")
                if message.name is not None:
                    entry["name"] = message.name
            if self.can.parts:
                entry["content"] = [{"type": "text", "text": entry["content"]}]
            entries.append(entry)
        return entries

    def _message_dict(self, message: Message, ids: Mapping[str | None, str], tools: Tools) -> dict[str, Any]:
        calls = self.calls_in(message)
        entry = self._with_reasoning(message, bool(calls))
        unsaid = () if calls else [call for call in message.tool_calls if call.problem is None]
        if unsaid:
            entry["content"] = "\n".join(filter(None, [entry["content"], self.format.write(unsaid, tools)]))
        for call in calls:
            arguments = to_json(call.arguments) if self.can.arguments == "text" else dict(call.arguments)
            function = {"name": call.name, "arguments": arguments}
            entry.setdefault("tool_calls", []).append({"id": ids[call.id], "type": "function", "function": function})
        return entry

    def parts(self, message: Message) -> tuple[str | None, str]:
        """The reasoning of an assistant's message (None if there is none), and what it said."""
        if message.reasoning is not None:
            return message.reasoning, message.content
        thoughts, said = split(message.content, self.marks)
        return thoughts, said if thoughts is None else said.lstrip("\n")

    def _with_reasoning(self, message: Message, calls: bool) -> dict[str, Any]:
        marks = self.marks
        if self.can.fields and (message.reasoning is not None or not self.can.inline):
            thoughts, answer = self.parts(message)
            answer = answer if answer.strip() else ""
            if thoughts is not None and calls and marks == HARMONY and answer:
                thoughts, answer = f"{thoughts}\n{answer}", ""  # GPT-OSS accepts only one of them with a call
            return {"content": answer} | ({} if thoughts is None else dict.fromkeys(FIELDS, thoughts))
        content = message.content if message.reasoning is None else marks.around(message.reasoning, message.content)
        closed, opened = content.find(marks.close), content.find(marks.open)
        began_in_the_prompt = self.can.opened and closed >= 0 and not 0 <= opened < closed
        return {"content": f"{marks.open}\n{content.lstrip()}" if began_in_the_prompt else content}


def _shared(first: str, second: str) -> int:
    pairs = zip(first, second, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def _special_words(tokenizer: PreTrainedTokenizerBase) -> re.Pattern[str] | None:
    """Matches every special token in a text; None if text cannot spell any."""
    words = {str(word) for word in tokenizer.added_tokens_decoder.values() if word.special and len(str(word)) > 1}
    longest_first = sorted(words, key=lambda word: (-len(word), word))
    return re.compile("|".join(map(re.escape, longest_first))) if words else None


def described(messages: Sequence[Message], tool_format: ToolFormat, tools: Tools) -> list[Message]:
    """Add the tools to the system message, which is created if missing."""
    text = tool_format.describe(tools)
    if messages and messages[0].role == "system":
        return [replace(messages[0], content=f"{messages[0].content}\n\n{text}"), *messages[1:]]
    return [Message(role="system", content=text), *messages]


def _said_by_the_user(messages: Sequence[Message], tool_format: ToolFormat, role: str = "tool") -> list[Message]:
    """Messages of the role as one user message, merged with the next user message."""
    made: list[Message] = []
    moved_before = False
    for message in messages:
        moved = message.role == role
        if moved:
            wrapped = role == "tool" and tool_format.name != "words"
            content = f"<tool_response>\n{message.content}\n</tool_response>" if wrapped else message.content
            message = Message(role="user", content=content)
        if message.role == "user" and made and made[-1].role == "user" and (moved or moved_before):
            made[-1] = replace(made[-1], content=f"{made[-1].content}\n{message.content}")
        else:
            made.append(message)
        moved_before = moved or (moved_before and message.role == "user")
    return made


def _one_by_one(messages: Sequence[Message]) -> list[Message]:
    """Several calls of a message as messages of their own, each before its reply."""
    made, rest = list[Message](), list(messages)
    while rest:
        message = rest.pop(0)
        if len(message.tool_calls) < 2:
            made.append(message)
            continue
        replies = list(takewhile(lambda one: one.role == "tool", rest))
        del rest[: len(replies)]
        for call in message.tool_calls:
            made.append(replace(message, tool_calls=(call,)))
            message = replace(message, content="", reasoning=None)
            reply = next((one for one in replies if one.call_id == call.id), replies[0] if replies else None)
            if reply is not None:
                replies.remove(reply)
                made.append(reply)
        made += replies
    return made


def _changes(render: Callable[[], str], text: str) -> bool:
    try:
        return render() != text
    except Exception:  # the template reads it, and cannot take it
        return True
