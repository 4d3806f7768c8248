"""Shared by the commands as Python functions: a thread of their own."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

Result = TypeVar("Result")
Stopped = Callable[[], bool]


def in_a_thread(work: Callable[[Stopped], Result]) -> Result:
    """Call `work(stopped)` in its own thread; returns its result or raises its error.

    A notebook's thread already has a running event loop, and no second one can start there. Ctrl-C reaches the waiting
    thread, which asks the other to end (`stopped`), waits for it, and raises KeyboardInterrupt. A second Ctrl-C does
    not wait.
    """
    done: Future[Result] = Future()
    stop = threading.Event()

    def run() -> None:
        try:
            done.set_result(work(stop.is_set))
        except BaseException as error:
            done.set_exception(error)

    try:
        threading.Thread(target=run, name="rlvr", daemon=True).start()
        return done.result()
    except KeyboardInterrupt:
        print("rlvr: stopping after this step; once more stops at once", file=sys.stderr, flush=True)
        stop.set()
        wait([done])
        raise
