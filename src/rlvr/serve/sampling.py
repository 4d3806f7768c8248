"""The completions of one request: sampled in the engine's batch, with stop texts checked as tokens arrive."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rlvr.chat.rendering import Chat
from rlvr.chat.spelling import Characters, TextStream
from rlvr.core.engine import LocalEngine
from rlvr.core.engine.base import Alternatives
from rlvr.core.policy import Policy
from rlvr.serve.constraints import Constraint, Constraints
from rlvr.serve.prompt_logprobs import Seen, prompt_logprobs
from rlvr.serve.schemas import ApiError
from rlvr.types import Completion, Message, SamplingParams, StopReason


class Transcript:
    """The text of one completion: `add` its tokens, `take` the final text so far, `finish` at the end.

    Incomplete characters, and text that may become a stop text, are held back:

    tokens      "The" " caf" "\\xc3" "\\xa9" " EN" "D" ...         stop text "END"
    given       "The" " caf" ""     "é"    " "   ""   over
    """

    def __init__(self, stream: TextStream, stops: Sequence[str] = ()) -> None:
        self._stream = stream
        self._stops = stops
        self._longest_stop = max(map(len, stops), default=1)
        self._taken = 0  # characters
        self._finished = False
        self.text = ""
        self.stopped = False  # found a stop text; `text` ends before it

    def add(self, token: int) -> None:
        if more := self._stream.add(token):
            self._append(more)

    def finish(self) -> None:
        if not self.stopped and not self._finished:
            self._append(self._stream.finish())
        self._finished = True

    def take(self) -> str:
        """The final text that was not taken yet."""
        held = 0 if self.stopped or self._finished else max((_overlap(self.text, s) for s in self._stops), default=0)
        end = max(self._taken, len(self.text) - held)
        taken, self._taken = self.text[self._taken : end], end
        return taken

    def _append(self, more: str) -> None:
        begin = max(0, len(self.text) - self._longest_stop + 1)
        self.text += more
        places = [place for stop in self._stops if (place := self.text.find(stop, begin)) >= 0]
        if places:
            self.text = self.text[: min(places)]
            self.stopped = True


def _overlap(text: str, stop: str) -> int:
    """Length of the longest proper prefix of `stop` that ends `text`."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)


RETRY_S = 1
"""Seconds in Retry-After when the queue is full."""


@dataclass(frozen=True, kw_only=True)
class Served:
    """The served model. `names[0]` is the one in answers."""

    names: tuple[str, ...]
    engine: LocalEngine
    policy: Policy
    has_own_head: bool  # whether the trainer's logits are the model's
    chat: Chat
    constraints: Constraints
    vocabulary_size: int
    max_context_tokens: int
    capacity: int  # limit of running and waiting completions
    form: Callable[[str], tuple[Message, ...]] | None = None  # a question as a model of words learned to read it


@dataclass(kw_only=True)
class Choice:
    """One completion of a request and its tokens so far. Lists have one entry per token, stop included."""

    index: int
    prompt_index: int
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    stops: tuple[str, ...] = ()
    num_alternatives: int | None = None
    stream: bool = False  # the client streams
    constraint: Constraint | None = None
    echo: str | None = None  # the prompt's text, if it is a part of the answer
    unshown: int = 0  # tokens before it in the prompt, as a beginning token
    prompt_seen: Seen | None = None  # with `echo` and `num_alternatives`

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    alternatives: Alternatives | None = None
    transcript: Transcript | None = None
    stop_reason: StopReason | None = None  # None: not finished
    told: int = 0  # streamed tokens
    characters: Characters = field(default_factory=Characters)  # of the tokens whose places were told

    @property
    def at_text(self) -> bool:
        return self.transcript is not None and self.transcript.stopped

    def take(self, completion: Completion) -> None:
        self.token_ids, self.logprobs = list(completion.token_ids), list(completion.behavior_logprobs)
        self.stop_reason = completion.stop_reason
        if self.constraint is not None and self.constraint.gave_up:  # cut off, as by max_tokens
            self.stop_reason = StopReason.LENGTH
            del self.token_ids[-1:], self.logprobs[-1:]

    def text(self, chat: Chat) -> str:
        """The whole text of a finished choice, without the stop token or stop text."""
        if self.transcript is not None:
            return self.transcript.text
        ended = self.stop_reason is StopReason.STOP
        return chat.decode(self.token_ids[:-1] if ended else self.token_ids)


class Pool:
    """Samples choices, up to the queue's capacity."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self.active = 0
        self.draining = False
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def places(self, count: int) -> Iterator[None]:
        """Reserve places for `count` completions during the block; ApiError if there is no room."""
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

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests and wait for the running ones; abort them after `timeout_s`."""
        self.draining = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            self._closed = True
            self._served.engine.close()
            await self._idle.wait()

    async def sample(self, choices: Sequence[Choice]) -> AsyncGenerator[None]:
        """Read the prompts to echo, then sample until all choices are finished; yields on progress. Close it to abort
        them."""
        await self._see_prompts([choice for choice in choices if choice.echo is not None])
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

    async def _see_prompts(self, choices: Sequence[Choice]) -> None:
        """One pass after the other, each a step of the event loop as those of the engine."""
        if not choices or choices[0].num_alternatives is None:
            return
        prompts = {choice.prompt_index: choice.prompt_ids for choice in choices}
        seen = dict[int, Seen]()
        served, count = self._served, choices[0].num_alternatives
        for found in prompt_logprobs(served.policy, list(prompts.values()), count, batched=served.has_own_head):
            seen |= found
            await asyncio.sleep(0)
            if self._closed:
                raise _shutting_down()
        for choice in choices:
            choice.prompt_seen = seen[choice.prompt_index]

    async def _one(self, choice: Choice, news: asyncio.Event) -> None:
        if choice.num_alternatives:
            choice.alternatives = Alternatives(count=choice.num_alternatives)
        if watched := bool(choice.stops) or choice.stream:
            choice.transcript = Transcript(self._served.chat.stream(), choice.stops)

        def see(token: int, logprob: float) -> None:
            """Called within the engine's step."""
            assert choice.transcript is not None
            if choice.at_text:  # a request's first step samples two tokens
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
                choice.prompt_ids,
                choice.sampling,
                on_token=on_token,
                alternatives=choice.alternatives,
                allowed=choice.constraint,
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
            choice.take(completion)
        if choice.transcript is not None:
            choice.transcript.finish()


def _shutting_down() -> ApiError:
    return ApiError(503, "the server is shutting down.", retry_s=RETRY_S)
