"""Messages to token ids and back: the only place where text becomes tokens.

Append-only: a prompt is rendered once, and what follows a completion is encoded by itself and put behind the sampled
ids. Sampled ids are never decoded and encoded again.

    encode_prompt(user "<boe> 3 4 + =")        [1, 10, 11, 4, 3]
    ... the engine samples                     [14, 2]                 "7 <eoe>"
    encode_reply(next messages)                [...]                   the next prompt is all three, in this order
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rlvr.chat.coding import Coder
from rlvr.chat.formats import FORMATS, HERMES, WORDS, read_message
from rlvr.chat.history import History, behind
from rlvr.chat.reasoning import THINK
from rlvr.chat.template import QUESTION, Template, call_of, described
from rlvr.chat.tool_calls import ToolFormat
from rlvr.errors import ConfigError
from rlvr.types import Message, StopReason, ToolSchema

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


_MAX_PROMPTS = 64
"""First prompts that are remembered."""


class Chat:
    """Renders with the tokenizer's chat template where it has one, else as plain text.

    `stop_ids` end a completion: every end token that the tokenizer, the model's config or its generation config names
    (base models list another one than their tokenizer), the one with which the template ends an answer or a tool call,
    and the task's stop words. What the template has no words for (system messages, tools, tool messages) is said in
    words that it has: see `Template`.
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
        self._prompts: OrderedDict[tuple[object, ...], tuple[Sequence[ToolSchema], tuple[int, ...]]] = OrderedDict()
        self._template = Template(tokenizer, tool_format) if tokenizer.chat_template else None
        self._history = History(self._template) if self._template else None
        self._special = {token for token, word in tokenizer.added_tokens_decoder.items() if word.special}
        self.tool_format: ToolFormat = (
            self._template.format if self._template else _plain_format(tool_format, tokenizer)
        )
        words = {_word_id(tokenizer, word) for word in stop_words}
        self.stop_ids: frozenset[int] = frozenset(words | end_ids(tokenizer, model) | self._turn_ends())
        self._closing = self._answer_ends()
        self._call_end = tokenizer.get_vocab().get(WORDS.close) if self.tool_format is WORDS else None

    def note(self, messages: Sequence[Message]) -> str | None:
        """What a user should know about how a prompt like this is rendered; None where all is as usual."""
        if self._template is None and {message.role for message in messages} != {"user"}:
            return "the tokenizer has no chat template: messages are joined line by line, their roles are not marked"
        if self._template and not self._template.can.system and any(message.role == "system" for message in messages):
            return "the chat template takes no system message: its text stands before the first user message"
        return None

    def encode_prompt(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> tuple[int, ...]:
        """The first prompt, up to where the model speaks. In plain text `words` are not explained: they are learnt."""
        if any(message.tool_calls for message in messages):
            return self._encode_prompt(messages, tools)
        # the episodes of a group ask for the same prompt; schemas cannot be hashed, and stay alive as long as their ids
        key = (*messages, *map(id, tools))
        if key not in self._prompts:
            self._prompts[key] = (tuple(tools), self._encode_prompt(messages, tools))
            if len(self._prompts) > _MAX_PROMPTS:
                self._prompts.popitem(last=False)
        return self._prompts[key][1]

    def _encode_prompt(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> tuple[int, ...]:
        if self._template:
            return self._encode(self._template.render(messages, tools=tools))
        if tools and self.tool_format is not WORDS:
            messages = described(messages, self.tool_format, tools)
        return self.encode_text(self._plain(messages, tools))

    def encode_text(self, text: str) -> tuple[int, ...]:
        """A text to be continued as it is: without a template, behind the token that begins a text."""
        return self._begin(self._encode(text))

    def next_prompt(
        self,
        prompt_ids: tuple[int, ...],
        completion_ids: tuple[int, ...],
        conversation: Sequence[Message],
        reply: Sequence[Message],
        tools: Sequence[ToolSchema] = (),
    ) -> tuple[int, ...]:
        """Prompt and completion as they are, then the reply and the header of the next completion.

        `conversation` is everything said so far, the completion as its last message. Where the template takes back
        some of it because of the reply, it is rendered anew from its messages.
        """
        if self._history and self._history.rewritten(conversation, reply, tools):
            return self._encode_prompt([*conversation, *reply], tools)
        said = conversation[-1] if conversation else None
        return prompt_ids + completion_ids + self.encode_reply(reply, last_id=completion_ids[-1], said=said)

    def parse(
        self, completion_ids: Sequence[int], stop_reason: StopReason, tools: Sequence[ToolSchema] = ()
    ) -> Message:
        """The assistant's message in a completion: its text without the stop token and without calls of `tools`.

        Nothing within reasoning is a call, and without tools nothing is. What is malformed stays in the text, and is a
        call with a problem; a call that was cut off by a limit is only text.
        """
        finished = stop_reason is StopReason.STOP
        text = self.decode(completion_ids[:-1] if finished else completion_ids)
        if not tools:
            return Message(role="assistant", content=text)
        if finished and completion_ids[-1] == self._call_end:
            text = self.decode(completion_ids)  # the stop token is a part of the call
        marks = self._template.marks if self._template else THINK
        opened = self._template is not None and self._template.can.opened
        return read_message(text, marks, self.tool_format, tools, finished=finished, opened=opened)

    def encode_reply(
        self, messages: Sequence[Message], *, last_id: int | None = None, said: Message | None = None
    ) -> tuple[int, ...]:
        """What comes after a completion: the end of its turn, the messages, the header of the next turn.

        The completion ended with the token `last_id`; the template's own end of turn is left out if it is that token
        (None: it is), for then it was sampled and is already there. `said` is the completion as a message: behind one
        that calls tools some templates go on differently.
        """
        if self._template is None:
            return self._encode(self._plain(messages, ()))
        said = said or Message(role="assistant", content="")
        ids = self._encode(behind(self._template, said, messages))
        if self._template.calls_in(said):  # what closes the call was sampled
            ids = ids[next((index for index, token in enumerate(ids) if token in self.stop_ids), 0) :]
        ended = ids[:1] and ids[0] in self.stop_ids | self._closing and last_id in (None, ids[0])
        ended = ended or (ids[:1] and {ids[0], last_id} <= self._closing)
        return ids[1:] if ended else ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids, special tokens included."""
        return self._coder.decode(ids)

    def _encode(self, text: str) -> tuple[int, ...]:
        return self._coder.encode(text)

    def _begin(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """Plain text after the beginning token that the tokenizer puts before a text, unless it is there already."""
        bos: Any = self._tokenizer.bos_token_id
        if bos is None or ids[:1] == (bos,):
            return ids
        begun = self._tokenizer.encode("", add_special_tokens=True)[:1] == [bos]
        return (bos, *ids) if begun else ids

    def _plain(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> str:
        """The messages line by line, with the calls that they make."""
        lines = [message.content for message in messages]
        for index, message in enumerate(messages):
            if message.tool_calls:
                lines[index] = " ".join(filter(None, [lines[index], self.tool_format.write(message.tool_calls, tools)]))
        return "\n".join(lines)

    def _turn_ends(self) -> set[int]:
        """The special tokens with which the template ends an answer or a call.

        GLM ends neither: there the header of whatever comes next is the end.
        """
        if self._template is None:
            return set()
        answer, native = Message(role="assistant", content=""), self._template.native
        ends = self._first(answer, ()) or self._first(answer, _REPLIES["user"])
        if native and not self._first(answer, ()):
            ends |= self._first(call_of("x"), _REPLIES["tool"])
        if native:
            closing = self._encode(behind(self._template, call_of("x"), (), header=False).rstrip())
            ends |= set(closing[-1:]) & self._special
        return ends | self._call_ends()

    def _call_ends(self) -> set[int]:
        """Llama 3.1 may end a call with `<|eom_id|>`, which its template knows, and has another end in its place."""
        if _CALL_END not in str(self._tokenizer.chat_template):
            return set()
        return {token for token, word in self._tokenizer.added_tokens_decoder.items() if word.content == _CALL_END}

    def _answer_ends(self) -> frozenset[int]:
        """The tokens that the template has behind an answer, in the end and on the way: GPT-OSS has two."""
        answer = Message(role="assistant", content="")
        return frozenset(self._first(answer, ()) | self._first(answer, _REPLIES["user"]) | self._call_ends())

    def _first(self, said: Message, reply: Sequence[Message]) -> set[int]:
        """The token that comes behind `said`, if it is a special one."""
        if self._template is None or self._template.tried([QUESTION, said, *reply]) is None:
            return set()
        text = behind(self._template, said, reply, header=False)
        without = behind(self._template, said, (), header=False) if reply and said.tool_calls else ""
        return set(self._encode(text.removeprefix(without))[:1]) & self._special


_CALL_END = "<|eom_id|>"
_REPLIES = {
    "user": (Message(role="user", content="x"),),
    "tool": (Message(role="tool", content="x", name="probe", call_id="call_0"),),
}


def end_ids(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel | None) -> set[int]:
    """Every end-of-sequence id that tokenizer, config and generation config name: each one, several or none."""
    named: list[Any] = [tokenizer.eos_token_id]
    if model is not None:
        named.append(model.config.get_text_config().eos_token_id)
        named.append(getattr(model.generation_config, "eos_token_id", None))
    return {token for value in named if value is not None for token in ([value] if isinstance(value, int) else value)}


def _plain_format(name: str, tokenizer: PreTrainedTokenizerBase) -> ToolFormat:
    """Without a template `auto` means words where the vocabulary has a word for a call, else Hermes' tags."""
    if name != "auto":
        return FORMATS[name]
    return WORDS if WORDS.open in tokenizer.get_vocab() else HERMES


def _word_id(tokenizer: PreTrainedTokenizerBase, word: str) -> int:
    token = tokenizer.get_vocab().get(word)
    if token is None or tokenizer.encode(word, add_special_tokens=False) != [token]:
        raise ConfigError(
            f"the stop word {word!r} is not one token of the tokenizer {tokenizer.name_or_path!r}: "
            "use a model whose tokenizer has it, or model=scratch."
        )
    return token
