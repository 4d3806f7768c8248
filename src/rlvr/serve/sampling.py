"""The completions of one request: sampled in the batch of all requests, their text watched as its tokens come."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rlvr.chat.rendering import Chat
from rlvr.core.engine import LocalEngine
from rlvr.core.engine.base import Alternatives
from rlvr.serve.schemas import ApiError
from rlvr.types import SamplingParams, StopReason

UNFINISHED = "\ufffd"
MAX_WAITING = 16
"""Tokens that may hold a character back: longer than any character; invalid bytes are then given out as they are."""


class Transcript:
    """The text of one completion: `add` its tokens, `take` what is certain so far, `finish` where nothing follows.

    No half of a character, and nothing that may turn out to be a stop text, is given out:

    tokens      "The" " caf" "\\xc3" "\\xa9" " EN" "D" ...         stop text "END"
    given       "The" " caf" ""     "é"    " "   ""   over
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = ()) -> None:
        self._decode = decode
        self._stops = stops
        self._longest_stop = max(map(len, stops), default=1)
        self._ids: list[int] = []
        self._shown = 0  # tokens whose text is in `text`
        self._context = 0  # decoding starts here: the text of a token may depend on the one before it
        self._taken = 0  # characters
        self._finished = False
        self.text = ""
        self.stopped = False  # a stop text came; `text` ends before it

    def add(self, token: int) -> None:
        self._ids.append(token)
        more = self._undecoded()
        if more and (not more.endswith(UNFINISHED) or len(self._ids) - self._shown >= MAX_WAITING):
            self._append(more)
            self._context, self._shown = self._shown, len(self._ids)

    def finish(self) -> None:
        if not self.stopped and not self._finished:
            self._append(self._undecoded())
        self._finished = True

    def take(self) -> str:
        """The certain text that was not taken yet."""
        held = 0 if self.stopped or self._finished else max((_overlap(self.text, s) for s in self._stops), default=0)
        end = max(self._taken, len(self.text) - held)
        taken, self._taken = self.text[self._taken : end], end
        return taken

    def _undecoded(self) -> str:
        known = self._decode(self._ids[self._context : self._shown])
        return self._decode(self._ids[self._context :])[len(known) :]

    def _append(self, more: str) -> None:
        begin = max(0, len(self.text) - self._longest_stop + 1)
        self.text += more
        places = [place for stop in self._stops if (place := self.text.find(stop, begin)) >= 0]
        if places:
            self.text = self.text[: min(places)]
            self.stopped = True


def _overlap(text: str, stop: str) -> int:
    """The length of the longest beginning of `stop`, not all of it, that `text` ends with."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)


RETRY_S = 1
"""Told to a client that found the queue full."""


@dataclass(frozen=True, kw_only=True)
class Served:
    """The model behind the endpoint. `names[0]` is the one in answers."""

    names: tuple[str, ...]
    engine: LocalEngine
    chat: Chat
    vocabulary_size: int
    max_context_tokens: int
    capacity: int  # completions that may run or wait


@dataclass(kw_only=True)
class Choice:
    """One completion of a request, and what has been sampled of it. Lists have one entry per token, stop included."""

    index: int
    prompt_index: int
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    stops: tuple[str, ...] = ()
    num_alternatives: int | None = None
    stream: bool = False  # text is wanted as it comes

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    alternatives: Alternatives | None = None
    transcript: Transcript | None = None
    stop_reason: StopReason | None = None  # None: it goes on
    told: int = 0  # tokens already in the stream
    offset: int = 0  # characters of their words

    @property
    def at_text(self) -> bool:
        return self.transcript is not None and self.transcript.stopped

    def text(self, chat: Chat) -> str:
        """The whole text, without the stop token or stop text. The choice must be over."""
        if self.transcript is not None:
            return self.transcript.text
        ended = self.stop_reason is StopReason.STOP
        return chat.decode(self.token_ids[:-1] if ended else self.token_ids)


class Pool:
    """Samples choices, and takes no more than the queue holds."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self.active = 0
        self.draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def places(self, count: int) -> Iterator[None]:
        """Reserve places for `count` completions while the block lasts; ApiError if there is no room."""
        if self.draining:
            raise _shutting_down()
        if self.active + count > self._served.capacity:
            message = f"the queue is full: {self.active} completions run or wait; try again."
            raise ApiError(429, message, retry_s=RETRY_S)
        self.active += count
        self._idle.clear()
        try:
            yield
        finally:
            self.active -= count
            if not self.active:
                self._idle.set()

    async def drain(self, seconds: float) -> None:
        """Refuse new requests and wait for the others; after `seconds` those are aborted."""
        self.draining = True
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            self._served.engine.close()
            await self._idle.wait()

    async def sample(self, choices: Sequence[Choice]) -> AsyncGenerator[None]:
        """Sample until all are over; yields whenever there is something new. Close it to abort them."""
        news, over = asyncio.Event(), False
        tasks = [asyncio.ensure_future(self._one(choice, news)) for choice in choices]
        for task in tasks:
            task.add_done_callback(lambda _: news.set())
        try:
            while not over:
                await news.wait()
                news.clear()
                over = all(task.done() for task in tasks)
                for task in tasks:
                    if task.done():
                        task.result()
                yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _one(self, choice: Choice, news: asyncio.Event) -> None:
        if choice.num_alternatives:
            choice.alternatives = Alternatives(count=choice.num_alternatives)
        if watched := bool(choice.stops) or choice.stream:
            choice.transcript = Transcript(self._served.chat.decode, choice.stops)

        def see(token: int, logprob: float) -> None:
            """Called within the engine's step."""
            assert choice.transcript is not None
            if choice.at_text:  # the step in which a request begins samples two tokens
                return
            choice.token_ids.append(token)
            choice.logprobs.append(logprob)
            if token not in choice.sampling.stop_ids:
                choice.transcript.add(token)
            if choice.at_text:
                generation.cancel()
            news.set()

        on_token = see if watched else None
        generation = asyncio.ensure_future(
            self._served.engine.generate(
                choice.prompt_ids, choice.sampling, on_token=on_token, alternatives=choice.alternatives
            )
        )
        try:
            completion = await generation
        except asyncio.CancelledError:
            if not choice.at_text:
                if self.draining and not asyncio.current_task().cancelling():  # type: ignore[union-attr]
                    raise _shutting_down() from None
                raise
            choice.stop_reason = StopReason.STOP
        else:
            choice.token_ids, choice.logprobs = list(completion.token_ids), list(completion.behavior_logprobs)
            choice.stop_reason = completion.stop_reason
        if choice.transcript is not None:
            choice.transcript.finish()


def _shutting_down() -> ApiError:
    return ApiError(503, "the server is shutting down.", retry_s=RETRY_S)
