"""Shared by the commands as Python functions: a thread of their own, errors of the caller's line."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import wraps
from typing import ParamSpec, TypeVar

from rlvr.errors import UserError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Stopped = Callable[[], bool]


def errors_from_here(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """A UserError has a traceback of the caller's line and this one: its sentence is about the caller's arguments."""

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            return function(*args, **kwargs)
        except UserError as error:
            raise error.with_traceback(None) from None

    return call


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
