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
from rlvr.chat.spelling import Characters
from rlvr.serve.prompt_logprobs import Likely
from rlvr.serve.sampling import Choice
from rlvr.types import StopReason, ToolSchema

Json = dict[str, Any]
LEAST_LOGPROB = -9999.0
"""Stands for a probability of 0: JSON has no infinity."""


@dataclass(frozen=True, kw_only=True)
class Token:
    """What a token adds to the text, in bytes: it may be a part of a character."""

    id: int
    spelled: bytes
    logprob: float

    @property
    def text(self) -> str | None:
        """None if the bytes are no text."""
        try:
            return self.spelled.decode()
        except UnicodeDecodeError:
            return None

    @property
    def escaped(self) -> str:
        return "".join(chr(byte) if 0x20 <= byte < 0x7F else f"\\x{byte:02x}" for byte in self.spelled)


@dataclass(frozen=True, kw_only=True)
class Place:
    """A token of an answer, and the likeliest ones there."""

    token: Token
    likely: Sequence[Token]


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
    def _logprobs(self, choice: Choice, before: Sequence[Place], drawn: Sequence[Place]) -> Json:
        """Logprobs of the prompt's tokens, if they are a part of the answer, and of the sampled ones."""

    def _head(self, kind: str) -> Json:
        return {"id": f"{self.prefix}-{self.id}", "object": kind, "created": self.created, "model": self.model}

    def _entry(self, choice: Choice, words: Json, begin: int, *, called: bool) -> Json:
        """The choice from token `begin` on."""
        reason = None
        if choice.stop_reason is not None:
            reason = "stop" if choice.stop_reason is StopReason.STOP or choice.at_text else "length"
        ids, logprobs = choice.token_ids[begin:], None
        if choice.num_alternatives is not None:
            seen: Sequence[Likely] = [((), ())] * len(ids)
            if choice.alternatives:
                seen = choice.alternatives.seen[begin : begin + len(ids)]
            drawn = self._places(ids, choice.logprobs[begin:], seen, (None, *choice.token_ids)[begin])
            logprobs = self._logprobs(choice, self._prompt_places(choice), drawn)
        finish_reason = "tool_calls" if called and reason == "stop" else reason
        entry = {"index": choice.index, **words, "logprobs": logprobs, "finish_reason": finish_reason}
        if self.with_ids and begin == 0:
            entry["prompt_token_ids"] = list(choice.prompt_ids)
        return entry | ({"token_ids": ids} if self.with_ids else {})

    def _prompt_places(self, choice: Choice) -> list[Place]:
        if choice.prompt_seen is None:
            return []
        values, tops = [math.nan, *choice.prompt_seen[0]], [((), ()), *choice.prompt_seen[1]]
        hidden, shown = slice(choice.unshown), slice(choice.unshown, None)
        ids = choice.prompt_ids
        return [place for part in (hidden, shown) for place in self._places(ids[part], values[part], tops[part], None)]

    def _places(
        self, ids: Sequence[int], values: Sequence[float], likely: Sequence[Likely], previous: int | None
    ) -> list[Place]:
        """The tokens behind `previous`; None: at the beginning of a text."""

        def token(number: int, value: float, behind: int | None) -> Token:
            return Token(id=number, spelled=self.chat.spell(number, behind), logprob=_finite(value))

        return [
            Place(token=token(number, value, behind), likely=[token(*pair, behind) for pair in zip(*tops, strict=True)])
            for number, value, tops, behind in zip(ids, values, likely, [previous, *ids][: len(ids)], strict=True)
        ]

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

    def _logprobs(self, choice: Choice, before: Sequence[Place], drawn: Sequence[Place]) -> Json:
        """Places are those in the answer's text, of a part of a character that of the character."""
        offsets = [0] * min(choice.unshown, len(before))
        offsets += [choice.characters.place(place.token.spelled) for place in before[choice.unshown :]]
        if before:
            choice.characters = Characters(begin=len(choice.echo or ""))
        offsets += [choice.characters.place(place.token.spelled) for place in drawn]
        places = [*before, *drawn]
        return {
            "tokens": [_key(place.token) for place in places],
            "token_logprobs": [_known(place.token.logprob) for place in places],
            "top_logprobs": [None if math.isnan(place.token.logprob) else _by_key(place) for place in places],
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

    def _logprobs(self, choice: Choice, before: Sequence[Place], drawn: Sequence[Place]) -> Json:
        tokens = [_entry(place.token) | {"top_logprobs": list(map(_entry, place.likely))} for place in drawn]
        return {"content": tokens, "refusal": None}


def _finite(value: float) -> float:
    return value if math.isnan(value) else max(value, LEAST_LOGPROB)


def _known(value: float) -> float | None:
    """The first token of a prompt has no logprob."""
    return None if math.isnan(value) else value


def _key(token: Token) -> str:
    """A token in /v1/completions; OpenAI writes bytes that are no text so."""
    return f"bytes:{token.escaped}" if token.text is None else token.text


def _by_key(place: Place) -> dict[str, float]:
    """Logprobs of the sampled token and the likeliest ones; one with the text of another is named by its id."""
    logprobs = {_key(place.token): place.token.logprob}
    for token in place.likely:
        if token.id != place.token.id:
            key = _key(token)
            logprobs[f"token_id:{token.id}" if key in logprobs else key] = token.logprob
    return logprobs


def _entry(token: Token) -> Json:
    """A token in the chat endpoint."""
    text = token.escaped if token.text is None else token.text
    return {"token": text, "logprob": token.logprob, "bytes": list(token.spelled)}


def usage(choices: Sequence[Choice]) -> Json:
    """Token counts; a prompt counts once, however many completions it has."""
    prompts = {choice.prompt_index: len(choice.prompt_ids) for choice in choices}
    prompt, completion = sum(prompts.values()), sum(len(choice.token_ids) for choice in choices)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
