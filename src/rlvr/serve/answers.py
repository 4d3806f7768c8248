"""The answers of both endpoints: complete ones, and stream chunks."""

import json
import math
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rlvr.chat.rendering import Chat
from rlvr.serve.prompt_logprobs import Likely
from rlvr.serve.sampling import UNFINISHED, Choice
from rlvr.types import StopReason, ToolSchema

Json = dict[str, Any]
Tokens = list[tuple[str, float]]
"""Token texts and logprobs."""
LEAST_LOGPROB = -9999.0
"""Stands for a probability of 0: JSON has no infinity."""


@dataclass(frozen=True, kw_only=True)
class Answer(ABC):
    """Common data of a request's choices, and their JSON form.

    With tools, a stream holds the text back until the completion is finished: it may be a call. With `must_call` the
    whole completion is one, as JSON; without `many_calls` only the first one counts.
    """

    chat: Chat
    model: str
    with_ids: bool
    tools: tuple[ToolSchema, ...] = ()
    must_call: bool = False
    many_calls: bool = True
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    prefix: ClassVar[str]
    kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def whole(self, choices: Sequence[Choice]) -> Json:
        """The answer to a request that does not stream."""
        entries = []
        for choice in choices:
            text, calls = self._parsed(choice) if self.tools else (choice.text(self.chat), [])
            entries.append(self._entry(choice, self._content(text, calls, whole=True), 0, called=bool(calls)))
        return self._head(self.kind) | {"choices": entries, "usage": usage(choices)}

    def chunk(self, choices: Sequence[Json], counts: Json | None = None) -> Json:
        more = {} if counts is None else {"usage": counts}
        return self._head(self.chunk_kind) | {"choices": list(choices)} | more

    def opening(self, choice: Choice) -> Json | None:
        return None

    def news(self, choice: Choice) -> Json | None:
        """The next stream entry of a choice; None if there is no news."""
        assert choice.transcript is not None
        begin, calls = choice.told, []
        if not self.tools:
            text = choice.transcript.take()
        elif choice.stop_reason is None:
            return None
        else:
            text, calls = self._parsed(choice)
        wants_tokens = self.with_ids or choice.num_alternatives is not None
        if not (text or choice.stop_reason or (wants_tokens and len(choice.token_ids) > begin)):
            return None
        choice.told = len(choice.token_ids)
        return self._entry(choice, self._content(text, calls, whole=False), begin, called=bool(calls))

    @abstractmethod
    def _content(self, text: str | None, calls: list[Json], *, whole: bool) -> Json:
        """Text and calls, of the whole choice or new in a stream."""

    @abstractmethod
    def _logprobs(self, choice: Choice, drawn: Tokens, likely: Sequence[Tokens]) -> Json:
        """Logprobs of the sampled tokens, and of the likeliest ones at each position."""

    def _head(self, kind: str) -> Json:
        return {"id": f"{self.prefix}-{self.id}", "object": kind, "created": self.created, "model": self.model}

    def _entry(self, choice: Choice, words: Json, begin: int, *, called: bool) -> Json:
        """The choice from token `begin` on."""
        reason = None
        if choice.stop_reason is not None:
            reason = "stop" if choice.stop_reason is StopReason.STOP or choice.at_text else "length"
        ids, logprobs = choice.token_ids[begin:], None
        if choice.num_alternatives is not None:
            seen: list[Likely] = [((), ())] * len(ids)
            if choice.alternatives:
                seen = choice.alternatives.seen[begin : begin + len(ids)]
            drawn = self._words(ids, choice.logprobs[begin:])
            if choice.prompt_seen is not None:
                before, tops = choice.prompt_seen
                drawn = self._words(choice.prompt_ids, [math.nan, *before]) + drawn
                seen = [((), ()), *tops, *seen]
            logprobs = self._logprobs(choice, drawn, [self._words(*tokens) for tokens in seen])
        finish_reason = "tool_calls" if called and reason == "stop" else reason
        entry = {"index": choice.index, **words, "logprobs": logprobs, "finish_reason": finish_reason}
        if self.with_ids and begin == 0:
            entry["prompt_token_ids"] = list(choice.prompt_ids)
        return entry | ({"token_ids": ids} if self.with_ids else {})

    def _words(self, ids: Sequence[int], logprobs: Sequence[float]) -> Tokens:
        pairs = zip(ids, logprobs, strict=True)
        return [(self.chat.decode([token]), _finite(value)) for token, value in pairs]

    def _parsed(self, choice: Choice) -> tuple[str | None, list[Json]]:
        """The text before a stop text (None if there are only calls), and the calls."""
        assert choice.stop_reason is not None
        if self.must_call:
            text = choice.text(self.chat)
            with suppress(ValueError, KeyError, RecursionError):  # it was cut off
                called = json.loads(text)
                return None, [self._call(choice, called["name"], called["arguments"])]
            return text, []
        reason = StopReason.LENGTH if choice.at_text else choice.stop_reason
        said = self.chat.parse(choice.token_ids, reason, self.tools)
        places = [place for stop in choice.stops if (place := said.content.find(stop)) >= 0]
        text = said.content[: min(places)] if places else said.content
        fine = [call for call in said.tool_calls if call.problem is None]  # malformed ones are only text
        fine = fine if self.many_calls else fine[:1]
        calls = [self._call(choice, call.name, call.arguments, number) for number, call in enumerate(fine)]
        return (text or None) if calls else text, calls

    def _call(self, choice: Choice, name: str, arguments: Any, number: int = 0) -> Json:
        function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
        return {"id": f"call_{self.id[:12]}_{choice.index}_{number}", "type": "function", "function": function}


@dataclass(frozen=True, kw_only=True)
class TextAnswer(Answer):
    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def _entry(self, choice: Choice, words: Json, begin: int, *, called: bool) -> Json:
        shown = {"text": (choice.echo or "") + words["text"]}
        return super()._entry(choice, shown, begin, called=called)

    def _content(self, text: str | None, calls: list[Json], *, whole: bool) -> Json:
        return {"text": text}

    def _logprobs(self, choice: Choice, drawn: Tokens, likely: Sequence[Tokens]) -> Json:
        offsets = []
        for word, _ in drawn:
            offsets.append(choice.offset)
            choice.offset += len(word)
        return {
            "tokens": [word for word, _ in drawn],
            "token_logprobs": [_known(value) for _, value in drawn],
            "top_logprobs": [
                None if math.isnan(pair[1]) else dict(reversed([*tops, pair]))
                for tops, pair in zip(likely, drawn, strict=True)
            ],
            "text_offset": offsets,
        }


@dataclass(frozen=True, kw_only=True)
class ChatAnswer(Answer):
    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def opening(self, choice: Choice) -> Json | None:
        delta = {"role": "assistant", "content": ""}
        return {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _content(self, text: str | None, calls: list[Json], *, whole: bool) -> Json:
        if whole:
            message = {"role": "assistant", "content": text, "refusal": None}
            return {"message": message | ({"tool_calls": calls} if calls else {})}
        numbered = [{"index": index} | call for index, call in enumerate(calls)]
        return {"delta": ({"content": text} if text else {}) | ({"tool_calls": numbered} if calls else {})}

    def _logprobs(self, choice: Choice, drawn: Tokens, likely: Sequence[Tokens]) -> Json:
        pairs = zip(drawn, likely, strict=True)
        tokens = [_token(*pair) | {"top_logprobs": [_token(*other) for other in tops]} for pair, tops in pairs]
        return {"content": tokens, "refusal": None}


def _finite(value: float) -> float:
    return value if math.isnan(value) else max(value, LEAST_LOGPROB)


def _known(value: float) -> float | None:
    """The first token of a prompt has no logprob."""
    return None if math.isnan(value) else value


def _token(word: str, logprob: float) -> Json:
    """`bytes` is null for part of a character: its text does not determine its bytes."""
    known = None if UNFINISHED in word else list(word.encode())
    return {"token": word, "logprob": logprob, "bytes": known}


def usage(choices: Sequence[Choice]) -> Json:
    """Token counts; a prompt counts once, however many completions it has."""
    prompts = {choice.prompt_index: len(choice.prompt_ids) for choice in choices}
    prompt, completion = sum(prompts.values()), sum(len(choice.token_ids) for choice in choices)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
