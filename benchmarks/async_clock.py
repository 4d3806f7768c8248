"""`benchmarks/async.py` in virtual time: the product's schedule, independent of machine and noise.

    python benchmarks/async_clock.py

192 completions per batch with a long tail, four to 64 tokens. The duration of an engine step is proportional to the
running completions ("token") or constant ("step"); training takes half as long as sampling a batch alone. When places
are free, waiting completions of the older batch start first, or, for comparison, in request order, which matters for
episodes with several turns. Prints seconds per step / those of sampling alone.
"""

from __future__ import annotations

import asyncio
import random
from bisect import insort
from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace, TracebackType
from typing import Any, Self, TypeVar

from rlvr.core.rollout import RolloutSchedule
from rlvr.samplers.base import Checked
from rlvr.samplers.uniform import Uniform
from rlvr.types import Example, Group

T = TypeVar("T")
BATCH, STEPS = 192, 30
ROWS = (  # slowed by, concurrent completions, turns of an episode, whether the older batch goes first
    *(("step", BATCH, 1, True), ("token", BATCH, 1, True), ("token", BATCH // 2, 1, True)),
    *(("token", BATCH // 4, 1, True), ("token", BATCH // 4, 3, False), ("token", BATCH // 4, 3, True)),
    *(("step", BATCH // 4, 3, False), ("step", BATCH // 4, 3, True)),
)
EXAMPLE = Example(id="", messages=(), answer="")


class Clock:
    """Source, engine and executor in one: completions occupy places of an engine whose steps advance the clock."""

    def __init__(self, kind: str, slots: int, turns: int, older_first: bool) -> None:
        self._kind, self._slots, self._turns, self._older_first = kind, slots, turns, older_first
        self.settings = SimpleNamespace(prompts_per_step=BATCH)
        self.model = SimpleNamespace(engine=self)
        self._loop = asyncio.new_event_loop()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []  # step, tokens, result
        self._running: list[tuple[int, asyncio.Future[None]]] = []
        self.now = 0.0

    async def sample(self, indices: Sequence[int], *, step: int) -> list[Group]:
        """As `RolloutSource.sample`; a prompt is an episode here."""
        await asyncio.gather(*(self._episode(index, step) for index in indices))
        return [Group(example=EXAMPLE, episodes=())] * len(indices)

    async def _episode(self, index: int, step: int) -> None:
        draw = random.Random(index)
        for _ in range(self._turns):
            end, length = self._loop.create_future(), 4 + min(60, int(draw.expovariate(1 / 12)))
            insort(self._waiting, (step * self._older_first, length, end), key=lambda one: one[0])
            await end

    def _step(self) -> bool:
        """One step of the engine; False if it is idle."""
        free = self._slots - len(self._running)
        self._running += [(length, end) for _, length, end in self._waiting[:free]]
        del self._waiting[:free]
        self.now += len(self._running) if self._kind == "token" else 1
        for length, end in self._running:
            if length == 1:
                end.set_result(None)
        self._running = [(length - 1, end) for length, end in self._running if length > 1]
        self._settle()
        return bool(self._running or self._waiting)

    def _settle(self) -> None:
        """Let episodes notice their ends and request their next turns."""

        async def others() -> None:
            for _ in range(4):
                await asyncio.sleep(0)

        self._loop.run_until_complete(others())

    def work(self, seconds: float) -> None:
        """The trainer's work: the engine continues meanwhile."""
        end = self.now + seconds
        while self.now < end and self._step():
            pass
        self.now = max(self.now, end)

    # -------------------------------------------------------------------------------------------------- an executor

    def start(self, work: Coroutine[Any, Any, T]) -> Callable[[], T]:
        """Begin the work; waiting for its result runs the clock."""
        task = self._loop.create_task(work)
        self._settle()

        def wait() -> T:
            while not task.done():
                self._step()
            return task.result()

        return wait

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """See `Executor.run`."""
        return self.start(work)()

    def call(self, function: Callable[[], T], *, patience_s: float | None = None) -> T:
        """See `Executor.call`."""
        return function()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.close()

    # -------------------------------------------------------------------------------------------------- an engine

    def load_weights(self, version: int) -> None:
        """Nothing that takes time."""

    def close(self) -> None:
        """Nothing to free."""


def seconds_a_step(row: tuple[str, int, int, bool], bound: int, training: float) -> float:
    """Mean over all steps of a run."""
    clock: Any = Clock(*row)
    schedule = RolloutSchedule(
        source=clock, executor=clock, prompts=Checked(Uniform()), max_error_share=0.0, max_staleness=bound
    )
    with schedule:
        for step in range(STEPS):
            schedule.next_batch(step, last=STEPS)
            clock.work(training)
            schedule.advance(step + 1)
    return clock.now / STEPS


def main() -> None:
    print("| slowed by | at a time | turns | first | max_staleness=0 | 1 | 2 |\n|---|---|---|---|---|---|---|")
    for row in ROWS:
        kind, slots, turns, older_first = row
        alone = seconds_a_step((kind, slots, turns, True), 0, 0.0)
        ratios = " | ".join(f"{seconds_a_step(row, bound, alone / 2) / alone:.2f}" for bound in (0, 1, 2))
        print(f"| {kind} | {slots} | {turns} | {'older' if older_first else 'asked'} | {ratios} |", flush=True)


if __name__ == "__main__":
    main()
