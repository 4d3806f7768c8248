"""Where rollouts and evaluations run: here and now, or in a thread of their own while the trainer works."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Self, TypeVar

import torch

T = TypeVar("T")

PATIENCE_S = 2.0
"""Seconds to wait for the rollout thread on a hard stop: it may be in a push that waits for a server."""


def patience(kind: type[BaseException] | None) -> float | None:
    """Seconds to wait at the end of a block that was left with this; None: as long as it takes."""
    return None if kind is None or issubclass(kind, Exception) else PATIENCE_S


class Executor:
    """Everything in the calling thread and on one event loop; started work runs when its result is asked for."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def start(self, work: Coroutine[Any, Any, T]) -> Callable[[], T]:
        """Begin the work, if that is possible; call what comes back for its result, which waits for it."""
        return lambda: self._runner.run(work)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of the work."""
        return self.start(work)()

    def call(self, function: Callable[[], T], *, patience_s: float | None = None) -> T:
        """Call a function where the coroutines run, between two of their steps.

        TimeoutError if that does not happen within `patience_s` (None: wait as long as it takes).
        """
        return function()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._runner.close()


class Background(Executor):
    """A thread with an event loop: what is started runs while the caller does something else.

    Errors of the work, SystemExit too, are raised where its result is asked for; the loop goes on until the block ends.
    Then everything that still runs is cancelled. A block left by SystemExit or KeyboardInterrupt waits `PATIENCE_S` for
    that at most: the thread ends with the process.
    """

    def __init__(self, *, num_threads: int) -> None:
        """`num_threads` is what torch computes with in that thread."""
        self._num_threads = num_threads
        self._thread = threading.Thread(target=self._serve, name="rollouts", daemon=True)
        self._ready: Future[asyncio.AbstractEventLoop] = Future()
        self._over = asyncio.Event()

    def start(self, work: Coroutine[Any, Any, T]) -> Callable[[], T]:
        return asyncio.run_coroutine_threadsafe(work, self._ready.result()).result

    def call(self, function: Callable[[], T], *, patience_s: float | None = None) -> T:
        async def call() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self._ready.result()).result(patience_s)

    def __enter__(self) -> Self:
        torch.get_num_threads()  # a thread that never asked gets the number that any other one has set last
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._ready.result().call_soon_threadsafe(self._over.set)
        self._thread.join(patience(kind))

    def _serve(self) -> None:
        torch.set_num_threads(self._num_threads)  # of this thread: OpenMP keeps the number for each
        with asyncio.Runner() as runner:
            self._ready.set_result(runner.get_loop())
            while not self._over.is_set():
                with suppress(SystemExit, KeyboardInterrupt):  # of a task: they stop a loop beside ending the task
                    runner.run(self._over.wait())
