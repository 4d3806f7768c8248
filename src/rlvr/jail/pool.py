"""Jails for many callers: a thread and a jail of its own for each of a few workers."""

import atexit
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from typing import Any, TypeVar

from rlvr.jail.jail import Jail
from rlvr.jail.ways import Way

T = TypeVar("T")


class Jails:
    """`num` jails, started when there is work for them; calls wait for a free one."""

    def __init__(self, way: Way, num: int) -> None:
        self._way: Way = way
        self._num = num
        self._calls = queue.SimpleQueue[tuple[Callable[[Jail], Any], Future[Any]] | None]()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def submit(self, function: Callable[[Jail], T]) -> Future[T]:
        """`function(jail)` in one of the threads; its exception, or that of a jail that does not start."""
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            if len(self._threads) < self._num:
                self._threads.append(threading.Thread(target=self._work, daemon=True))
                self._threads[-1].start()
        self._calls.put((function, future))
        return future

    def close(self) -> None:
        """End the jails when they have finished what they run."""
        with self._lock:
            for _ in self._threads:
                self._calls.put(None)
            for thread in self._threads:
                thread.join(timeout=2.0)  # one that runs a program ends with this process
            self._threads.clear()

    def _work(self) -> None:
        jail: Jail | None = None
        while (call := self._calls.get()) is not None:
            function, future = call
            try:
                jail = jail or Jail(self._way)
                future.set_result(function(jail))
            except Exception as error:
                future.set_exception(error)
        if jail is not None:
            jail.close()


@cache
def jails(way: Way, num: int) -> Jails:
    """The jails that all rewards of this process share."""
    pool = Jails(way, num)
    atexit.register(pool.close)
    return pool
