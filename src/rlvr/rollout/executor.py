"""Where rollouts and evaluations run: here and now, or in a thread of their own while the trainer works."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

import torch

T = TypeVar("T")


class Executor(Protocol):
    """Runs coroutines on one event loop; engine and environments are touched there alone."""

    def start(self, work: Coroutine[Any, Any, T]) -> Callable[[], T]:
        """Begin the work, if that is possible; call what comes back for its result, which waits for it."""
        ...

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of the work."""
        ...

    def call(self, function: Callable[[], T]) -> T:
        """Call a function where the coroutines run, between two of their steps."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Inline:
    """Everything in the calling thread; started work runs when its result is asked for."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def start(self, work: Coroutine[Any, Any, T]) -> Callable[[], T]:
        """See `Executor.start`."""
        return lambda: self.run(work)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """See `Executor.run`."""
        return self._runner.run(work)

    def call(self, function: Callable[[], T]) -> T:
        """See `Executor.call`."""
        return function()

    def __enter__(self) -> Self:
        self._runner.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.__exit__(kind, error, trace)


class Background:
    """A thread with an event loop: what is started runs while the caller does something else."""

    def __init__(self, *, num_threads: int | None = None) -> None:
        """`num_threads` is what torch computes with in that thread; None: as everywhere."""
        self._num_threads = num_threads
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="rollouts", daemon=True)

    def start(self, work: Coroutine[Any, Any, T]) -> Callable[[], T]:
        """See `Executor.start`."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """See `Executor.run`."""
        return self.start(work)()

    def call(self, function: Callable[[], T]) -> T:
        """See `Executor.call`."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(function())
            except BaseException as error:
                done.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return done.result()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _serve(self) -> None:
        if self._num_threads is not None:
            torch.set_num_threads(self._num_threads)  # of this thread: OpenMP keeps the number for each
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()


async def _cancel_others() -> None:
    """End what nobody waits for any more."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
