"""Completions for one request: sampled together with everybody else's, watched as their tokens come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rlvr.chat.rendering import Chat
from rlvr.engines.base import Alternatives
from rlvr.engines.local import LocalEngine
from rlvr.serve.errors import ApiError
from rlvr.serve.transcript import Transcript
from rlvr.types import Completion, SamplingParams, StopReason

RETRY_S = 1
"""A client that found the queue full should wait so long."""


@dataclass(frozen=True, kw_only=True)
class Served:
    """The model behind the endpoint. `names[0]` is the one that answers carry."""

    names: tuple[str, ...]
    engine: LocalEngine
    chat: Chat
    vocabulary_size: int
    max_context_tokens: int
    capacity: int  # completions that may run or wait


@dataclass(frozen=True, kw_only=True)
class Task:
    """One completion to be sampled."""

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    stops: tuple[str, ...] = ()
    num_alternatives: int | None = None
    stream: bool = False  # text is wanted as it comes


@dataclass(kw_only=True)
class Choice:
    """What has been sampled for a task so far. Lists have one entry a token, the stop token included."""

    index: int
    prompt_index: int
    task: Task
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    alternatives: Alternatives | None = None
    transcript: Transcript | None = None
    stop_reason: StopReason | None = None  # None: it goes on
    at_text: bool = False  # a stop text ended it, no stop token
    told: int = 0  # tokens that a stream has spoken of
    offset: int = 0  # characters of their words

    def text(self, chat: Chat) -> str:
        """All of it, without the stop token or stop text. The choice must be over."""
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
        """Room for so many completions while the block lasts; ApiError where there is none."""
        if self.draining:
            raise ApiError(503, "the server is shutting down.", retry_s=RETRY_S)
        if self.active + count > self._served.capacity:
            raise ApiError(
                429, f"the queue is full: {self.active} completions run or wait; try again.", retry_s=RETRY_S
            )
        self.active += count
        self._idle.clear()
        try:
            yield
        finally:
            self.active -= count
            if not self.active:
                self._idle.set()

    async def drain(self, seconds: float) -> None:
        """Refuse new requests and wait for the others; after `seconds` those end, too."""
        self.draining = True
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            self._served.engine.close()
            await self._idle.wait()

    async def sample(self, choices: Sequence[Choice]) -> None:
        """Until all are over. Cancel it to give them up."""
        await self._all(choices, None)

    async def watch(self, choices: Sequence[Choice]) -> AsyncGenerator[None]:
        """As `sample`; an item whenever there is something new to see."""
        news = asyncio.Event()
        sampling = asyncio.ensure_future(self._all(choices, news.set))
        sampling.add_done_callback(lambda _: news.set())
        try:
            while not sampling.done():
                await news.wait()
                news.clear()
                yield
            await sampling
            yield  # what came while the last item was dealt with
        finally:
            sampling.cancel()
            await asyncio.wait([sampling])

    async def _all(self, choices: Sequence[Choice], tell: Callable[[], None] | None) -> None:
        if len(choices) == 1:
            await self._one(choices[0], tell)
            return
        tasks = [asyncio.ensure_future(self._one(choice, tell)) for choice in choices]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _one(self, choice: Choice, tell: Callable[[], None] | None) -> None:
        task = choice.task
        if task.num_alternatives:
            choice.alternatives = Alternatives(count=task.num_alternatives)
        watched = bool(task.stops) or task.stream
        if watched:
            choice.transcript = Transcript(self._served.chat.decode, task.stops)
        see = _Watcher(choice, tell) if watched or tell else None
        generation = asyncio.create_task(
            self._served.engine.generate(task.prompt_ids, task.sampling, on_token=see, alternatives=choice.alternatives)
        )
        if see is not None:
            see.generation = generation
        try:
            completion = await generation
        except asyncio.CancelledError:
            if not choice.at_text:
                if self.draining and not asyncio.current_task().cancelling():  # type: ignore[union-attr]
                    raise ApiError(503, "the server is shutting down.", retry_s=RETRY_S) from None
                raise
            choice.stop_reason = StopReason.STOP
        else:
            choice.token_ids, choice.logprobs = list(completion.token_ids), list(completion.behavior_logprobs)
            choice.stop_reason = completion.stop_reason
        if choice.transcript is not None:
            choice.transcript.finish()
            choice.at_text = choice.transcript.stopped
        if tell is not None:
            tell()


class _Watcher:
    """Hears of each token within the engine's step."""

    def __init__(self, choice: Choice, tell: Callable[[], None] | None) -> None:
        self._choice, self._tell = choice, tell
        self.generation: asyncio.Task[Completion] | None = None

    def __call__(self, token: int, logprob: float) -> None:
        choice = self._choice
        if choice.at_text:  # the step in which a request begins samples two tokens
            return
        choice.token_ids.append(token)
        choice.logprobs.append(logprob)
        if choice.transcript is not None and token not in choice.task.sampling.stop_ids:
            choice.transcript.add(token)
            if choice.transcript.stopped:
                choice.at_text = True
                assert self.generation is not None
                self.generation.cancel()
        if self._tell is not None:
            self._tell()
