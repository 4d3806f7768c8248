"""Messages to token ids and back; the only module that tokenizes text.

Append-only: a prompt is rendered once; text after a completion is encoded separately and appended to the sampled ids,
which are never decoded and re-encoded.

    encode_prompt(user "<boe> 3 4 + =")        [1, 10, 11, 4, 3]
    ... the engine samples                     [14, 2]                 "7 <eoe>"
    encode_reply(next messages)                [...]                   the next prompt concatenates all three
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from inspect import signature
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from rlvr.chat.coding import Coder
from rlvr.chat.formats import FORMATS, read_message
from rlvr.chat.history import RewriteFinder, behind, written
from rlvr.chat.spelling import TextStream
from rlvr.chat.template import QUESTION, Template, call_of, described
from rlvr.chat.tool_calls import Tools
from rlvr.errors import ConfigError, UserError
from rlvr.reasoning import THINK, Marks
from rlvr.types import Message, StopReason

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_MAX_PROMPTS = 64  # cached first prompts
_CALL_END = "<|eom_id|>"  # Llama 3.1 may end a call with it; its template knows it but renders another end
_ANSWER = Message(role="assistant", content="")
_USER_REPLY = (Message(role="user", content="x"),)
_TOOL_REPLY = (Message(role="tool", content="x", name="probe", call_id="call_0"),)


class Chat:
    """Renders with the tokenizer's chat template, or as plain text without one.

    `end_ids` are the tokenizer's own end tokens. `stop_ids` are these, those of the model's config and its generation
    config (which differ for base models), the tokens with which the template ends an answer or a tool call, and the
    task's stop words.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        stop_words: Iterable[str] = (),
        *,
        model: PreTrainedModel | None = None,
        tool_format: str = "auto",
    ) -> None:
        """`tool_format` is a name of `FORMATS`, or `auto`. ConfigError if a stop word is not exactly one token."""
        self._tokenizer = tokenizer
        self._coder = Coder(tokenizer)
        self._ends: dict[bool, int] = {}  # of completions without and with calls
        self._prompts: dict[tuple[object, ...], tuple[Tools, tuple[int, ...]]] = {}
        self.template = Template(tokenizer, tool_format) if tokenizer.chat_template else None  # of words: none
        self._history = RewriteFinder(self.template) if self.template else None
        vocabulary = tokenizer.get_vocab()
        if tool_format == "auto":
            tool_format = "words" if FORMATS["words"].open in vocabulary else "hermes"
        self.tool_format = self.template.format if self.template else FORMATS[tool_format]
        self._call_end = vocabulary.get(self.tool_format.close) if self.tool_format.name == "words" else None
        words = {_word_id(tokenizer, word) for word in stop_words}
        turn_ends, self._closing = self._turn_ends(self.template) if self.template else (set(), frozenset())
        self.end_ids = frozenset(end_ids(tokenizer, None))
        self.stop_ids: frozenset[int] = frozenset(words | end_ids(tokenizer, model) | turn_ends)

    def with_variables(self, variables: Mapping[str, Any]) -> Chat:
        """It with the template's own variables set; one that the template does not read changes nothing.

        UserError names one that is no variable but what a prompt is made of: `messages`, an end token, or `documents`
        that the template would drop.
        """
        if not variables:
            return self
        ours = {"messages", *signature(self._tokenizer.apply_chat_template).parameters}
        ours |= self._tokenizer.special_tokens_map.keys()
        if self.template and re.search(r"\bdocuments\b", self.template.source):
            ours.remove("documents")
        if refused := [name for name in variables if name in ours]:
            raise UserError(f"{refused[0]} is not for the chat template alone; leave it out.")
        if self.template is None:
            return self
        chat = copy(self)
        chat.template = self.template.with_variables(variables)
        chat._history, chat._prompts = RewriteFinder(chat.template), {}
        return chat

    def note(self, messages: Sequence[Message]) -> str | None:
        """A note for the user if the prompt's rendering is unusual."""
        if self.template is None and {message.role for message in messages} != {"user"}:
            return "the tokenizer has no chat template: messages are joined line by line, their roles are not marked"
        if self.template and not self.template.can.system and any(message.role == "system" for message in messages):
            return "the chat template takes no system message: its text goes before the first user message"
        roles = [message.role for message in messages]
        if self.template and not self.template.can.late_system and "system" in roles[len(_leading(roles)) :]:
            return "the chat template shows no system message behind the first one: its text is said by the user"
        return None

    def encode_prompt(self, messages: Sequence[Message], tools: Tools = ()) -> tuple[int, ...]:
        """The first prompt, up to the completion. Plain text has no explanation of a taught tool format."""
        if any(message.tool_calls for message in messages):
            return self._encode_prompt(messages, tools)
        # a group's episodes share the prompt; schemas are not hashable, so they are cached by identity and kept alive
        key = (*messages, *map(id, tools))
        if key not in self._prompts:
            self._prompts[key] = (tuple(tools), self._encode_prompt(messages, tools))
            if len(self._prompts) > _MAX_PROMPTS:
                del self._prompts[next(iter(self._prompts))]
        return self._prompts[key][1]

    def _encode_prompt(self, messages: Sequence[Message], tools: Tools) -> tuple[int, ...]:
        if self.template:
            return self._coder.encode(self.template.render(messages, tools=tools))
        if tools and not self.tool_format.is_taught:
            messages = described(messages, self.tool_format, tools)
        return self.encode_text(self._plain(messages, tools))

    @property
    def marks(self) -> Marks:
        return self.template.marks if self.template else THINK

    @property
    def opened(self) -> bool:
        return self.template is not None and self.template.can.opened

    def encode_text(self, text: str) -> tuple[int, ...]:
        """A text to continue: without a template, after the tokenizer's beginning token."""
        ids = self._coder.encode(text)
        bos: Any = self._tokenizer.bos_token_id
        if bos is None or ids[:1] == (bos,) or self._tokenizer.encode("", add_special_tokens=True)[:1] != [bos]:
            return ids
        return (bos, *ids)

    def encode(self, text: str) -> tuple[int, ...]:
        """The text's own tokens."""
        return self._coder.encode(text)

    @property
    def document_start(self) -> tuple[int, ...]:
        """What stands before the first word of a text: the tokenizer's beginning token, else its end token."""
        bos, eos = self._tokenizer.bos_token_id, self._tokenizer.eos_token_id
        return tuple(one for one in (bos, eos) if isinstance(one, int))[:1]

    def next_prompt(
        self,
        prompt_ids: tuple[int, ...],
        completion_ids: tuple[int, ...],
        conversation: Sequence[Message],
        reply: Sequence[Message],
        tools: Tools = (),
    ) -> tuple[int, ...]:
        """Prompt and completion unchanged, then the reply and the header of the next completion.

        `conversation` is every message so far, ending with the completion. If the template rewrites history because of
        the reply, the whole conversation is rendered again.
        """
        if self._history and self._history.rewritten(conversation, reply, tools):
            return self._encode_prompt([*conversation, *reply], tools)
        said = conversation[-1] if conversation else None
        return prompt_ids + completion_ids + self.encode_reply(reply, last_id=completion_ids[-1], said=said)

    def parse(self, completion_ids: Sequence[int], stop_reason: StopReason, tools: Tools = ()) -> Message:
        """The assistant's message of a completion: its text without the stop token and without calls of `tools`.

        Without tools, and within reasoning, no call is parsed. A malformed call stays in the text and has a `problem`;
        a call cut off by a limit is plain text.
        """
        finished = stop_reason is StopReason.STOP
        keeps_stop = tools and finished and completion_ids[-1] == self._call_end  # it is part of the call
        text = self.decode(completion_ids[:-1] if finished and not keeps_stop else completion_ids)
        if not tools:
            return Message(role="assistant", content=text)
        return read_message(text, self.marks, self.tool_format, tools, finished=finished, opened=self.opened)

    def encode_reply(
        self, messages: Sequence[Message], *, last_id: int | None = None, said: Message | None = None
    ) -> tuple[int, ...]:
        """The tokens after a completion: end of turn, messages, header of the next turn.

        `last_id` is the completion's last token (None: the end of turn): a sampled end of turn is not repeated. `said`
        is the completion as a message: after calls, some templates continue differently.
        """
        if self.template is None:
            return self._coder.encode(self._plain(messages, ()))
        said = said or _ANSWER
        ids = self._coder.encode(behind(self.template, said, messages))
        if self.template.calls_in(said):  # the end of the call was sampled
            ids = ids[next((index for index, token in enumerate(ids) if token in self.stop_ids), 0) :]
        ended = ids[:1] and ids[0] in self.stop_ids | self._closing and last_id in (None, ids[0])
        ended = ended or (ids[:1] and {ids[0], last_id} <= self._closing)
        return ids[1:] if ended else ids

    def encode_completion(self, completion: Message | str, tools: Tools = ()) -> tuple[int, ...]:
        """The tokens of a completion, end token included, as if they were sampled after a prompt: a text as it stands,
        a message as the template writes it.

        UserError if the tokenizer has no end token, or the text goes on after one.
        """
        if isinstance(completion, str):
            ids = self._coder.encode(completion)
        elif self.template is None:
            ids = self._coder.encode(self._plain([completion], tools))
        else:
            ids = self._coder.encode(written(self.template, completion, tools))
            ids = ids[: next((place + 1 for place, token in enumerate(ids) if token in self.stop_ids), None)]
        if not self.stop_ids.isdisjoint(ids[:-1]):
            raise UserError("a completion goes on after its end token: take the end token out of the text.")
        if ids and ids[-1] in self.stop_ids:
            return ids
        message = _ANSWER if isinstance(completion, str) else completion
        kind = bool(message.tool_calls)
        if kind not in self._ends:
            self._ends[kind] = self._end_of(message)
        return (*ids, self._ends[kind])

    def _end_of(self, message: Message) -> int:
        """The token that ends a completion: the template's, else the tokenizer's."""
        if self.template is not None:
            # GLM has none: the header of the next message ends the completion
            for reply in ((), _TOOL_REPLY if message.tool_calls else _USER_REPLY):
                ids = self._coder.encode(behind(self.template, message, reply, header=False))
                if (end := next((token for token in ids if token in self.stop_ids), None)) is not None:
                    return end
        own: Any = self._tokenizer.eos_token_id
        if own is None:
            raise UserError("the tokenizer names no end token: set warm_start.enabled=false, or use another model.")
        return own

    def decode(self, ids: Sequence[int]) -> str:
        return self._coder.decode(ids)

    def stream(self) -> TextStream:
        return self._coder.stream()

    def spell(self, token: int, previous: int | None) -> bytes:
        return self._coder.spell(token, previous)

    def _plain(self, messages: Sequence[Message], tools: Tools) -> str:
        lines = [THINK.around(message.reasoning or "", message.content) for message in messages]
        for index, message in enumerate(messages):
            if message.tool_calls:
                lines[index] = " ".join(filter(None, [lines[index], self.tool_format.write(message.tool_calls, tools)]))
        return "\n".join(lines)

    def _turn_ends(self, template: Template) -> tuple[set[int], frozenset[int]]:
        """The special tokens that end an answer or a call, and those that the template puts after an answer.

        GPT-OSS has two of the latter, after the last answer and after earlier ones. GLM has none: the header of the
        next message ends the answer.
        """
        words = self._tokenizer.added_tokens_decoder.items()
        special = {token for token, word in words if word.special}
        call_ends = {token for token, word in words if word.content == _CALL_END and _CALL_END in template.source}

        def first(completion: Message, reply: Sequence[Message]) -> set[int]:
            """The token after `said`, if it is a special one."""
            if template.tried([QUESTION, completion, *reply]) is None:
                return set()
            text = behind(template, completion, reply, header=False)
            without = behind(template, completion, (), header=False) if reply and completion.tool_calls else ""
            return set(self._coder.encode(text.removeprefix(without))[:1]) & special

        last, earlier = first(_ANSWER, ()), first(_ANSWER, _USER_REPLY)
        ends = (last or earlier) | call_ends
        if template.native:
            closing = self._coder.encode(behind(template, call_of("x"), (), header=False).rstrip())
            ends |= set(closing[-1:]) & special
            ends |= set() if last else first(call_of("x"), _TOOL_REPLY)
        return ends, frozenset(last | earlier | call_ends)


def _leading(roles: Sequence[str]) -> list[str]:
    return list(takewhile(lambda role: role == "system", roles))


def end_ids(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel | None) -> set[int]:
    """All end-of-sequence ids of tokenizer, config and generation config."""
    named: list[Any] = [tokenizer.eos_token_id]
    if model is not None:
        named.append(model.config.get_text_config().eos_token_id)
        named.append(getattr(model.generation_config, "eos_token_id", None))
    return {token for value in named if value is not None for token in ([value] if isinstance(value, int) else value)}


def _word_id(tokenizer: PreTrainedTokenizerBase, word: str) -> int:
    token = tokenizer.get_vocab().get(word)
    if token is None or tokenizer.encode(word, add_special_tokens=False) != [token]:
        raise ConfigError(
            f"the stop word {word!r} is not one token of the tokenizer {tokenizer.name_or_path!r}: "
            "use a model whose tokenizer has it, or model=scratch."
        )
    return token
