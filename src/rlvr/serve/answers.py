"""What a client gets: whole answers, and the chunks of a stream."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from rlvr.chat.rendering import Chat
from rlvr.serve.messages import api_calls
from rlvr.serve.sampling import Choice
from rlvr.serve.transcript import UNFINISHED
from rlvr.types import Message, StopReason, ToolSchema

Json = dict[str, Any]
LEAST_LOGPROB = -9999.0
"""For a probability of 0: JSON has no infinity."""


@dataclass(frozen=True, kw_only=True)
class Answer(ABC):
    """What the choices of a request have in common, and how a choice is worded."""

    chat: Chat
    model: str
    with_logprobs: bool
    with_ids: bool
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    prefix: ClassVar[str]
    kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def whole(self, choices: Sequence[Choice]) -> Json:
        """The answer to a request that does not stream."""
        return self._head(self.kind) | {"choices": [self.choice(one) for one in choices], "usage": usage(choices)}

    def chunk(self, choices: Sequence[Json], counts: Json | None = None) -> Json:
        """One event of a stream."""
        more = {} if counts is None else {"usage": counts}
        return self._head(self.chunk_kind) | {"choices": list(choices)} | more

    @abstractmethod
    def choice(self, choice: Choice) -> Json:
        """A choice that is over."""

    def opening(self, choice: Choice) -> Json | None:
        """What a stream begins with, if anything."""
        return None

    @abstractmethod
    def news(self, choice: Choice) -> Json | None:
        """What a stream has to say of a choice beyond what it said before; None if nothing."""

    def _head(self, kind: str) -> Json:
        return {"id": f"{self.prefix}-{self.id}", "object": kind, "created": self.created, "model": self.model}

    def _ids(self, choice: Choice, begin: int) -> Json:
        if not self.with_ids:
            return {}
        prompt = {"prompt_token_ids": list(choice.task.prompt_ids)} if begin == 0 else {}
        return prompt | {"token_ids": choice.token_ids[begin:]}

    def _word(self, token: int) -> str:
        return self.chat.decode([token])

    def _likely(self, choice: Choice, begin: int) -> list[list[tuple[str, float]]]:
        """Words and logprobs of the likeliest tokens at each position."""
        count = len(choice.token_ids)
        seen = choice.alternatives.seen[begin:count] if choice.alternatives else [((), ())] * (count - begin)
        return [
            [(self._word(token), max(value, LEAST_LOGPROB)) for token, value in zip(ids, values, strict=True)]
            for ids, values in seen
        ]

    def _drawn(self, choice: Choice, begin: int) -> list[tuple[str, float]]:
        pairs = zip(choice.token_ids[begin:], choice.logprobs[begin:], strict=True)
        return [(self._word(token), max(value, LEAST_LOGPROB)) for token, value in pairs]


@dataclass(frozen=True, kw_only=True)
class TextAnswer(Answer):
    """Of /v1/completions."""

    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def choice(self, choice: Choice) -> Json:
        """Text and the rest."""
        return self._entry(choice, choice.text(self.chat), 0)

    def news(self, choice: Choice) -> Json | None:
        """Its new text; at its end the reason, too."""
        assert choice.transcript is not None
        text, begin = choice.transcript.take(), choice.told
        wants_tokens = (self.with_ids or self.with_logprobs) and len(choice.token_ids) > begin
        if not (text or wants_tokens or choice.stop_reason):
            return None
        choice.told = len(choice.token_ids)
        return self._entry(choice, text, begin)

    def _entry(self, choice: Choice, text: str, begin: int) -> Json:
        entry = {
            "index": choice.index,
            "text": text,
            "logprobs": self._logprobs(choice, begin) if self.with_logprobs else None,
            "finish_reason": finish_reason(choice),
        }
        return entry | self._ids(choice, begin)

    def _logprobs(self, choice: Choice, begin: int) -> Json:
        drawn = self._drawn(choice, begin)
        offsets = []
        for word, _ in drawn:
            offsets.append(choice.offset)
            choice.offset += len(word)
        top = [dict(reversed([*likely, pair])) for likely, pair in zip(self._likely(choice, begin), drawn, strict=True)]
        return {
            "tokens": [word for word, _ in drawn],
            "token_logprobs": [value for _, value in drawn],
            "top_logprobs": top,
            "text_offset": offsets,
        }


@dataclass(frozen=True, kw_only=True)
class ChatAnswer(Answer):
    """Of /v1/chat/completions. With tools a stream holds back what is said until it is known to be no call."""

    tools: tuple[ToolSchema, ...] = ()

    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def choice(self, choice: Choice) -> Json:
        """The message and the rest."""
        said, calls = self._said(choice)
        message: Json = {"role": "assistant", "content": said, "refusal": None}
        if calls:
            message["tool_calls"] = calls
        return self._entry(choice, {"message": message}, 0, called=bool(calls))

    def opening(self, choice: Choice) -> Json | None:
        """Who speaks."""
        delta = {"role": "assistant", "content": ""}
        return {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}

    def news(self, choice: Choice) -> Json | None:
        """New words; at its end the calls and the reason."""
        assert choice.transcript is not None
        begin, calls = choice.told, []
        if self.tools:
            if choice.stop_reason is None:
                return None
            text, calls = self._said(choice)
        else:
            text = choice.transcript.take()
        wants_tokens = (self.with_ids or self.with_logprobs) and len(choice.token_ids) > begin
        if not (text or wants_tokens or choice.stop_reason):
            return None
        choice.told = len(choice.token_ids)
        delta: Json = {"content": text} if text else {}
        if calls:
            delta["tool_calls"] = [{"index": index} | call for index, call in enumerate(calls)]
        return self._entry(choice, {"delta": delta}, begin, called=bool(calls))

    def _said(self, choice: Choice) -> tuple[str | None, list[Json]]:
        """The text, None beside calls if there is none, and the calls."""
        if not self.tools:
            return choice.text(self.chat), []
        assert choice.stop_reason is not None
        reason = StopReason.LENGTH if choice.at_text else choice.stop_reason
        said = self._without_stops(choice, self.chat.parse(choice.token_ids, reason, self.tools))
        calls = api_calls(said.tool_calls, f"{self.id[:12]}_{choice.index}")
        return (said.content or None) if calls else said.content, calls

    def _without_stops(self, choice: Choice, said: Message) -> Message:
        places = [place for stop in choice.task.stops if (place := said.content.find(stop)) >= 0]
        return replace(said, content=said.content[: min(places)]) if places else said

    def _entry(self, choice: Choice, words: Json, begin: int, *, called: bool) -> Json:
        reason = finish_reason(choice)
        entry = {
            "index": choice.index,
            **words,
            "logprobs": self._logprobs(choice, begin) if self.with_logprobs else None,
            "finish_reason": "tool_calls" if called and reason == "stop" else reason,
        }
        return entry | self._ids(choice, begin)

    def _logprobs(self, choice: Choice, begin: int) -> Json:
        tokens = [
            _token(*pair) | {"top_logprobs": [_token(*other) for other in likely]}
            for pair, likely in zip(self._drawn(choice, begin), self._likely(choice, begin), strict=True)
        ]
        return {"content": tokens, "refusal": None}


def _token(word: str, logprob: float) -> Json:
    """`bytes` is null for a part of a character: its bytes are not known from its text."""
    known = None if UNFINISHED in word else list(word.encode())
    return {"token": word, "logprob": logprob, "bytes": known}


def finish_reason(choice: Choice) -> str | None:
    """In the API's words; None while it goes on."""
    if choice.stop_reason is None:
        return None
    return "stop" if choice.stop_reason is StopReason.STOP or choice.at_text else "length"


def usage(choices: Sequence[Choice]) -> Json:
    """Tokens: a prompt counts once, however many completions it has."""
    prompts = {choice.prompt_index: len(choice.task.prompt_ids) for choice in choices}
    prompt, completion = sum(prompts.values()), sum(len(choice.token_ids) for choice in choices)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
