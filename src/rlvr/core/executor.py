"""Executors of rollouts and evaluations: the calling thread, or a background thread for asynchronous training."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Self, TypeVar

import torch

T = TypeVar("T")

PATIENCE_S = 2.0
"""Seconds to wait for the rollout thread on a hard stop; it may block in a weight push to a server."""


def patience(kind: type[BaseException] | None) -> float | None:
    """Seconds to wait when a block ends with this exception type; None: no limit."""
    return None if kind is None or issubclass(kind, Exception) else PATIENCE_S


class Executor:
    """Runs everything in the calling thread; started work runs when its result is requested."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def start(self, work: Coroutine[Any, Any, T]) -> Callable[[], T]:
        """Start the work if possible; the returned function waits for its result."""
        return lambda: self._runner.run(work)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.start(work)()

    def call(self, function: Callable[[], T], *, patience_s: float | None = None) -> T:
        """Call a function on the event loop's thread, between two steps of its coroutines.

        Raises TimeoutError after `patience_s` (None: no limit).
        """
        return function()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._runner.close()


class Background(Executor):
    """A thread with an event loop: started work runs while the caller continues.

    Errors of the work, including SystemExit, are raised where its result is requested. When the block ends, running
    work is cancelled; after SystemExit or KeyboardInterrupt at most `PATIENCE_S` is spent on that (the thread is a
    daemon).
    """

    def __init__(self, *, num_threads: int) -> None:
        """`num_threads`: torch threads of the event-loop thread."""
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
        torch.get_num_threads()  # fixes this thread's number: an unread one follows other threads' settings
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._ready.result().call_soon_threadsafe(self._over.set)
        self._thread.join(patience(kind))

    def _serve(self) -> None:
        torch.set_num_threads(self._num_threads)  # per thread in OpenMP
        with asyncio.Runner() as runner:
            self._ready.set_result(runner.get_loop())
            while not self._over.is_set():
                with suppress(SystemExit, KeyboardInterrupt):  # raised in a task, they also stop the loop
                    runner.run(self._over.wait())
