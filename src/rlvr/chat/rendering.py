"""Messages to token ids and back: the only place where text becomes tokens.

Append-only: a prompt is rendered once, and what follows a completion is encoded by itself and put behind the sampled
ids. Sampled ids are never decoded and encoded again.

    encode_prompt(user "<boe> 3 4 + =")        [1, 10, 11, 4, 3]
    ... the engine samples                     [14, 2]                 "7 <eoe>"
    encode_reply(next messages)                [...]                   the next prompt is all three, in this order
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlvr.chat.reasoning import pieces
from rlvr.chat.tool_calls import Reading, ToolFormat
from rlvr.chat.tool_formats import choose_format
from rlvr.errors import ConfigError, UserError
from rlvr.types import Message, StopReason, ToolSchema

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_PLACE = "rlvr-completion-goes-here"  # stands for the completion while a template is asked what follows one


class Chat:
    """Renders with the tokenizer's chat template where it has one, else as plain text.

    `stop_ids` end a completion: every end token that the tokenizer, the model's config or its generation config names
    (base models list another one than their tokenizer), the one with which the template ends an answer, and the task's
    stop words. A system message never gets lost: where a template refuses it or leaves it out (Gemma 2, Mistral), its
    text stands before that of the first user message, as Gemma's documentation has it.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        stop_words: Iterable[str] = (),
        *,
        model: PreTrainedModel | None = None,
        tool_format: str = "auto",
    ) -> None:
        """ConfigError if a stop word is not exactly one token."""
        self._tokenizer = tokenizer
        self.tool_format: ToolFormat = choose_format(tool_format, tokenizer)
        self._has_template = bool(tokenizer.chat_template)
        self._takes_system = not self._has_template or self._renders_system()
        words = {_word_id(tokenizer, word) for word in stop_words}
        self.stop_ids: frozenset[int] = frozenset(words | end_ids(tokenizer, model) | self._turn_end())

    def note(self, messages: Sequence[Message]) -> str | None:
        """What a user should know about how a prompt like this is rendered; None where all is as usual."""
        if not self._has_template and {message.role for message in messages} != {"user"}:
            return "the tokenizer has no chat template: messages are joined line by line, their roles are not marked"
        if not self._takes_system and any(message.role == "system" for message in messages):
            return "the chat template takes no system message: its text stands before the first user message"
        return None

    def encode_prompt(self, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> tuple[int, ...]:
        """The first prompt, up to where the model speaks."""
        if self._has_template:
            return self._encode(self._render(messages))
        return self._begin(self._encode(_plain(messages)))

    def next_prompt(
        self,
        prompt_ids: tuple[int, ...],
        completion_ids: tuple[int, ...],
        conversation: Sequence[Message],
        reply: Sequence[Message],
        tools: Sequence[ToolSchema] = (),
    ) -> tuple[int, ...]:
        """Prompt and completion as they are, then the reply and the header of the next completion."""
        return prompt_ids + completion_ids + self.encode_reply(reply, last_id=completion_ids[-1])

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
        reading = Reading()
        for piece, is_reasoning in pieces(text):
            if is_reasoning:
                reading.text.append(piece)
            else:
                self.tool_format.read(piece, reading, finished=finished, tools=tools)
        content = "".join(reading.text)
        return Message(
            role="assistant",
            content=content.strip() if reading.calls else content,
            tool_calls=tuple(reading.calls),
        )

    def encode_reply(self, messages: Sequence[Message], *, last_id: int | None = None) -> tuple[int, ...]:
        """What comes after a completion: the end of its turn, the messages, the header of the next turn.

        The completion ended with the token `last_id`; the template's own end of turn is left out if it is that token
        (None: it is), for then it was sampled and is already there.
        """
        if not self._has_template:
            return self._encode(_plain(messages))
        ids = self._encode(self._after_an_answer(*messages))
        ended = ids[:1] and ids[0] in self.stop_ids and last_id in (None, ids[0])
        return ids[1:] if ended else ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids, special tokens included."""
        text = self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text

    def _encode(self, text: str) -> tuple[int, ...]:
        try:
            return tuple(self._tokenizer.encode(text, add_special_tokens=False))
        except Exception as error:  # tokenizers raises bare Exceptions; a word-level one does so for unknown words
            name = self._tokenizer.name_or_path
            raise UserError(f"the tokenizer {name!r} cannot encode {text[:200]!r}: use a model made for it.") from error

    def _begin(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """Plain text after the beginning token that the tokenizer puts before a text, unless it is there already."""
        bos: Any = self._tokenizer.bos_token_id
        if bos is None or ids[:1] == (bos,):
            return ids
        begun = self._tokenizer.encode("", add_special_tokens=True)[:1] == [bos]
        return (bos, *ids) if begun else ids

    def _after_an_answer(self, *messages: Message, header: bool = True) -> str:
        """What the template puts behind a completion: the end of its turn, the messages, the header of the next."""
        question = Message(role="user", content="x")
        answer = Message(role="assistant", content=_PLACE)
        return self._render([question, answer, *messages], header=header).rpartition(_PLACE)[2]

    def _turn_end(self) -> set[int]:
        """The token with which the template ends an answer, if it is a special one."""
        if not self._has_template:
            return set()
        first = self._encode(self._after_an_answer(header=False))[:1]
        special = {token for token, word in self._tokenizer.added_tokens_decoder.items() if word.special}
        return set(first) & special

    def _renders_system(self) -> bool:
        """Whether the text of a system message gets into the prompt."""
        question = Message(role="user", content="x")
        try:
            return _PLACE in self._apply([Message(role="system", content=_PLACE), question], header=True)
        except Exception:  # raised by the template itself, through jinja2
            return False

    def _render(self, messages: Sequence[Message], *, header: bool = True) -> str:
        if not self._takes_system:
            messages = _folded(messages)
        try:
            return self._apply(messages, header=header)
        except Exception as error:  # jinja2
            roles = ", ".join(message.role for message in messages)
            raise UserError(
                f"the chat template of {self._tokenizer.name_or_path!r} cannot render the messages {roles} ({error}): "
                "change the prompt, or use another model."
            ) from error

    def _apply(self, messages: Sequence[Message], *, header: bool) -> str:
        conversation: list[dict[str, str]] = [{"role": m.role, "content": m.content} for m in messages]
        text: Any = self._tokenizer.apply_chat_template(conversation, add_generation_prompt=header, tokenize=False)
        return text


def end_ids(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel | None) -> set[int]:
    """Every end-of-sequence id that tokenizer, config and generation config name: each one, several or none."""
    named: list[Any] = [tokenizer.eos_token_id]
    if model is not None:
        named.append(model.config.get_text_config().eos_token_id)
        named.append(getattr(model.generation_config, "eos_token_id", None))
    return {token for value in named if value is not None for token in ([value] if isinstance(value, int) else value)}


def _folded(messages: Sequence[Message]) -> list[Message]:
    """System text in front of the first user message."""
    system = [message.content for message in messages if message.role == "system"]
    rest = [message for message in messages if message.role != "system"]
    if not system or not rest:
        return list(messages)
    first = replace(rest[0], content="\n\n".join([*system, rest[0].content]))
    return [first, *rest[1:]]


def _plain(messages: Sequence[Message]) -> str:
    return "\n".join(message.content for message in messages)


def _word_id(tokenizer: PreTrainedTokenizerBase, word: str) -> int:
    token = tokenizer.get_vocab().get(word)
    if token is None or tokenizer.encode(word, add_special_tokens=False) != [token]:
        raise ConfigError(
            f"the stop word {word!r} is not one token of the tokenizer {tokenizer.name_or_path!r}: "
            "use a model whose tokenizer has it, or model=scratch."
        )
    return token
