"""Threads for blocking tools and searches: a hanging call costs its thread, not the event loop or the shutdown."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from rlvr.errors import UserError

T = TypeVar("T")

QUICK_S = 0.05
"""The event loop blocks for answers within this time."""


class TimeIsUpError(Exception):
    """A call exceeded its time limit. Not TimeoutError, which the call itself may raise."""


class CallThreads:
    """Runs each call in its own daemon thread; at most `max_threads` at once, in submission order.

    A call that exceeds its time is abandoned with its thread, and the next may start. Python cannot end a thread: at
    `max_hanging` of them the next call is a UserError, which ends the run.

    The event loop blocks for quick calls, so the engine's batches, and the last bit of a logprob, do not depend on the
    clock. After three late answers in a row, calls count as slow and no longer block the loop.
    """

    def __init__(self, *, max_threads: int = 4, max_hanging: int = 64) -> None:
        self._max_threads, self._max_hanging = max_threads, max_hanging
        self._hanging: set[threading.Thread] = set()
        self._late = 0  # answers in a row
        self._places: dict[asyncio.AbstractEventLoop, asyncio.Semaphore] = {}  # a semaphore belongs to its loop

    async def run(self, name: str, call: Callable[[], T], timeout_s: float | None = None) -> T:
        """The result of `call`; TimeIsUpError after `timeout_s` seconds in a thread. `name` is for errors.

        Raises UserError, naming the tool, if too many calls hang.
        """
        loop = asyncio.get_running_loop()
        for over in [one for one in self._places if one.is_closed()]:
            del self._places[over]
        async with self._places.setdefault(loop, asyncio.Semaphore(self._max_threads)):
            self._hanging = {thread for thread in self._hanging if thread.is_alive()}
            if len(self._hanging) >= self._max_hanging:
                raise UserError(
                    f"{len(self._hanging)} calls, such as {name!r}, hang in their threads: "
                    "give what they wait for a time limit of its own."
                )
            outcome: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
            thread = threading.Thread(target=_work, args=(call, loop, outcome), name="rlvr-call", daemon=True)
            thread.start()
            if self._late < 3:
                thread.join(QUICK_S if timeout_s is None else min(QUICK_S, timeout_s))
                self._late = self._late + 1 if thread.is_alive() else 0
            try:
                await asyncio.wait({outcome}, timeout=timeout_s)
            finally:
                if not outcome.done():
                    self._hanging.add(thread)
        if not outcome.done():
            raise TimeIsUpError
        value, error = outcome.result()
        if error is not None:
            raise error
        return value


def _work(call: Callable[[], object], loop: asyncio.AbstractEventLoop, outcome: asyncio.Future[Any]) -> None:
    value, failure = None, None
    try:
        value = call()
    except Exception as error:  # raised by the tool; passed to the caller
        failure = error
    except BaseException as error:  # sys.exit() in a tool must not end the program
        failure = RuntimeError(f"{type(error).__name__}: {error}")
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(outcome.set_result, (value, failure))
