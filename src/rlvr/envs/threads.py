"""Threads for tools that block: a call that hangs costs its thread, never the event loop or the program's end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from rlvr.errors import UserError

T = TypeVar("T")


class TimeIsUpError(Exception):
    """A call took longer than it may. No TimeoutError: that is what the call itself may raise."""


@dataclass(eq=False, slots=True)
class _Job:
    call: Callable[[], object]
    timeout_s: float
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[tuple[Any, BaseException | None]]
    deadline: float | None = None  # from the moment it runs: waiting for a thread is nobody's fault


@dataclass(eq=False, slots=True)
class _Worker:
    job: _Job | None = None
    hangs: bool = False


class ToolThreads:
    """Up to `max_threads` daemon threads that run calls in the order they came.

    A call that is still running `timeout_s` seconds after its start is written off with its thread, which gets a
    successor. Python cannot end a thread: with `max_hanging` of them the next call is a UserError, which ends the run.
    Threads start when they are needed and end after `idle_s` seconds without work, so there is nothing to close.
    """

    def __init__(self, *, max_threads: int = 4, max_hanging: int = 64, idle_s: float = 2.0) -> None:
        self._max_threads, self._max_hanging, self._idle_s = max_threads, max_hanging, idle_s
        self._jobs: deque[_Job] = deque()
        self._workers: set[_Worker] = set()
        self._num_idle = 0
        self._changed = threading.Condition()

    @property
    def num_threads(self) -> int:
        """Threads that have not ended, hanging ones included."""
        return len(self._workers)

    async def run(self, name: str, call: Callable[[], T], timeout_s: float) -> T:
        """What `call` returns or raises; TimeIsUpError after `timeout_s` seconds in a thread. `name` is the tool's.

        Raises UserError, naming the tool, if too many calls hang already.
        """
        loop = asyncio.get_running_loop()
        job = _Job(call, timeout_s, loop, loop.create_future())
        self._submit(name, job)
        timer = loop.call_later(timeout_s, self._look_after, job)
        try:
            value, error = await job.future
        finally:
            timer.cancel()
        if error is not None:
            raise error
        return value

    def _submit(self, name: str, job: _Job) -> None:
        with self._changed:
            self._write_off()
            num_hanging = sum(worker.hangs for worker in self._workers)
            if num_hanging >= self._max_hanging:
                raise UserError(
                    f"{num_hanging} calls of tools, such as {name!r}, hang in their threads: "
                    "give what they wait for a time limit of its own."
                )
            self._jobs.append(job)
            if self._num_idle:
                self._changed.notify()
            self._add_worker()

    def _look_after(self, job: _Job) -> None:
        """On the event loop, when a job's time should be over: end the waiting, or look again later."""
        if job.future.done():
            return
        now = time.monotonic()
        if job.deadline is not None and job.deadline <= now:
            job.future.set_result((None, TimeIsUpError()))
        else:
            rest = job.timeout_s if job.deadline is None else job.deadline - now
            job.loop.call_later(rest, self._look_after, job)
        with self._changed:
            self._write_off()
            self._add_worker()

    def _write_off(self) -> None:
        now = time.monotonic()
        for worker in self._workers:
            deadline = worker.job.deadline if worker.job is not None else None
            worker.hangs = deadline is not None and deadline <= now

    def _add_worker(self) -> None:
        """One more thread if jobs wait for one and the limit allows it."""
        num_usable = sum(not worker.hangs for worker in self._workers)
        if len(self._jobs) > self._num_idle and num_usable < self._max_threads:
            worker = _Worker()
            self._workers.add(worker)
            threading.Thread(target=self._work, args=(worker,), name="rlvr-tool", daemon=True).start()

    def _work(self, worker: _Worker) -> None:
        try:
            while (job := self._next_job(worker)) is not None:
                outcome: tuple[object, BaseException | None]
                try:
                    outcome = (job.call(), None)
                except Exception as error:  # a tool's: the thread lives on, the caller gets it
                    outcome = (None, error)
                except BaseException as error:  # sys.exit() in a tool must not end the program
                    outcome = (None, RuntimeError(f"{type(error).__name__}: {error}"))
                with suppress(RuntimeError):  # the loop is closed: nobody waits
                    job.loop.call_soon_threadsafe(_deliver, job.future, outcome)
                with self._changed:
                    worker.job = None
                    if worker.hangs:  # it has a successor
                        return
        finally:
            with self._changed:
                self._workers.discard(worker)

    def _next_job(self, worker: _Worker) -> _Job | None:
        """The next job that somebody still waits for; None after a while without one."""
        with self._changed:
            while True:
                while self._jobs:
                    job = self._jobs.popleft()
                    if not job.future.done():
                        job.deadline = time.monotonic() + job.timeout_s
                        worker.job = job
                        return job
                self._num_idle += 1
                woken = self._changed.wait(self._idle_s)
                self._num_idle -= 1
                if not woken and not self._jobs:
                    self._workers.discard(worker)
                    return None


def _deliver(
    future: asyncio.Future[tuple[object, BaseException | None]], outcome: tuple[object, BaseException | None]
) -> None:
    if not future.done():
        future.set_result(outcome)
