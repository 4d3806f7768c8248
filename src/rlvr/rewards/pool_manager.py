"""The thread behind a `VerifierPool`: hands calls to workers, watches deadlines, replaces what died.

Calls are pipelined: a worker holds a few beside the one it runs, so that it never waits for this thread, which shares
the interpreter lock with the trainer. Only the first of them can be at fault when a worker dies; the others go back to
the head of the queue. Near the end of the queue nothing is held back behind a call that may hang.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import selectors
import signal
import socket
import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal

from rlvr.rewards.pool_nursery import Nursery
from rlvr.rewards.pool_worker import HEADER, MAX_REPLY_BYTES

_MAX_QUEUED = 4
"""Calls a worker may hold, the running one included."""
_LOAD_TIMEOUT_S = 120.0
"""For importing a function's module, and for the start of a process: many times what a busy machine needs."""
_MAX_FAILED_STARTS = 3

Status = Literal["ok", "exception", "timeout", "memory", "crash", "closed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CallResult:
    """How a call ended: `CallResult(status="ok", value=1.0)`, `CallResult(status="crash", message="its process died")`.

    - `ok`: `value` is what the function returned, as plain data.
    - `exception`: it raised, could not be loaded, or returned something that is not plain data.
    - `timeout`, `memory`, `crash`: it was killed at its deadline, hit the memory limit, ended its process.
    - `closed`: the pool was closed before.
    """

    status: Status
    value: Any = None
    message: str = ""


@dataclass(kw_only=True, slots=True, eq=False)
class Call:
    """One call on its way."""

    id: int
    function: bytes
    arguments: bytes
    future: Future[CallResult] = field(default_factory=Future)
    retried: bool = False


@dataclass(kw_only=True, slots=True, eq=False)
class _Worker:
    """A worker as seen from here: `calls[0]` is the one it runs, by `deadline` at the latest."""

    index: int
    connection: socket.socket
    deadline: float | None
    pid: int | None = None  # known when it is ready
    num_answered: int = 0
    calls: deque[Call] = field(default_factory=deque)
    known: set[bytes] = field(default_factory=set)
    inbox: bytearray = field(default_factory=bytearray)
    outbox: bytearray = field(default_factory=bytearray)


class PoolManager:
    """Owns the thread, the nursery and the workers of one pool. Only `submit`, `preload` and `close` are for others."""

    def __init__(self, *, num_workers: int, timeout_s: float, max_memory_mb: int) -> None:
        self._num_workers = num_workers
        self._timeout_s = timeout_s
        self._max_memory_mb = max_memory_mb
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._submitted: deque[Call] = deque()
        self._preloads: list[str] = []
        self._nursery: Nursery | None = None
        self._workers: dict[int, _Worker] = {}
        self._pending: deque[Call] = deque()
        self._num_spawned = 0
        self._num_failed_starts = 0

    def preload(self, module: str) -> None:
        """Import `module` in the nursery, from the next start of it on."""
        if module not in self._preloads:
            self._preloads.append(module)

    def submit(self, call: Call) -> None:
        """Queue a call; its future is completed by the manager's thread."""
        with self._lock:
            if self._closed:
                raise RuntimeError("the verifier pool is closed")
            self._submitted.append(call)
            if self._thread is None:
                self._start()
        self._notify()

    def _start(self) -> None:
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(target=self._run, name="verifier-pool", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and all processes."""
        with self._lock:
            self._closed = True
        if self._thread is None:
            return
        self._notify()
        self._thread.join()
        for end in (self._wake, self._woken, self._selector):
            end.close()

    def _notify(self) -> None:
        with contextlib.suppress(OSError):  # full: it has been woken; closed: there is nobody left to wake
            self._wake.send(b"!")

    # The thread

    def _run(self) -> None:
        self._selector.register(self._woken, selectors.EVENT_READ, self._on_wake)
        try:
            while not self._closed:
                self._dispatch()
                for key, _ in self._selector.select(self._seconds_left()):
                    key.data()
                self._enforce_deadlines()
        finally:
            self._stop()

    def _on_wake(self) -> None:
        self._woken.recv(1 << 16)

    def _stop(self) -> None:
        with self._lock:
            self._closed = True
        self._fail_all(CallResult(status="closed", message="the verifier pool was closed"))
        for worker in self._workers.values():
            worker.connection.close()
        if self._nursery is not None:
            self._nursery.end()

    def _fail_all(self, result: CallResult) -> None:
        """Complete every call there is."""
        for worker in self._workers.values():
            self._pending.extend(worker.calls)
            worker.calls.clear()
        while self._submitted:
            self._pending.append(self._submitted.popleft())
        while self._pending:
            self._complete(self._pending.popleft(), result)

    def _complete(self, call: Call, result: CallResult) -> None:
        if call.future.running() or call.future.set_running_or_notify_cancel():
            call.future.set_result(result)

    # Handing out

    def _dispatch(self) -> None:
        while self._submitted:
            self._pending.append(self._submitted.popleft())
        num_free = sum(not worker.calls for worker in self._workers.values())
        while num_free < len(self._pending) and len(self._workers) < self._num_workers:
            self._spawn()
            num_free += 1
        for depth in range(_MAX_QUEUED):
            for worker in self._workers.values():
                if len(self._pending) <= depth * self._num_workers:
                    return
                if worker.pid is not None and len(worker.calls) == depth:
                    self._hand_out(worker)

    def _hand_out(self, worker: _Worker) -> None:
        """Give the worker the next call that nobody has canceled."""
        while self._pending:
            call = self._pending.popleft()
            if call.future.running() or call.future.set_running_or_notify_cancel():
                worker.calls.append(call)
                self._transmit(worker, call)
                return

    def _transmit(self, worker: _Worker, call: Call) -> None:
        data = pickle.dumps((call.id, call.function, call.arguments))
        worker.outbox += HEADER.pack(len(data)) + data
        if worker.calls[0] is call:
            self._start_clock(worker)
        self._write(worker)

    def _start_clock(self, worker: _Worker) -> None:
        """The worker's first call begins now."""
        if not worker.calls:
            worker.deadline = None
            return
        seconds = self._timeout_s if worker.calls[0].function in worker.known else _LOAD_TIMEOUT_S
        worker.deadline = time.monotonic() + seconds

    def _write(self, worker: _Worker) -> None:
        """Send what the socket takes; the rest when it takes more. That a worker has died shows when reading."""
        with contextlib.suppress(OSError):
            del worker.outbox[: worker.connection.send(worker.outbox)]
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.outbox else 0)
        if self._selector.get_key(worker.connection).events != events:
            self._selector.modify(worker.connection, events, lambda: self._on_event(worker))

    # Starting and ending processes

    def _spawn(self, call: Call | None = None) -> None:
        """Start a worker, whose first call will be `call`."""
        nursery = self._nursery or self._start_nursery()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        worker = _Worker(index=self._num_spawned, connection=ours, deadline=time.monotonic() + _LOAD_TIMEOUT_S)
        worker.calls.extend([call] if call else [])
        self._num_spawned += 1
        self._workers[worker.index] = worker
        self._selector.register(ours, selectors.EVENT_READ, lambda: self._on_event(worker))
        nursery.tell({"spawn": worker.index}, (theirs.fileno(),))
        theirs.close()

    def _start_nursery(self) -> Nursery:
        self._nursery = Nursery(self._max_memory_mb)
        self._selector.register(self._nursery.control, selectors.EVENT_READ, self._on_nursery_death)
        for module in self._preloads:
            self._nursery.tell({"preload": module})
        return self._nursery

    def _on_nursery_death(self) -> None:
        """It never says anything: its socket is readable when it has died, and the workers with it."""
        assert self._nursery is not None
        self._selector.unregister(self._nursery.control)
        self._nursery.end()
        self._nursery = None
        for worker in list(self._workers.values()):
            if worker.pid is not None:
                with contextlib.suppress(OSError):
                    os.killpg(worker.pid, signal.SIGKILL)
            self._lose(worker)

    def _lose(self, worker: _Worker) -> None:
        """A worker died: its first call may be the reason, if it had begun."""
        if worker.pid is not None:
            self._blame(worker, CallResult(status="crash", message="its process died"))
            return
        self._retire(worker)
        self._num_failed_starts += 1
        if self._num_failed_starts >= _MAX_FAILED_STARTS:
            self._num_failed_starts = 0
            self._fail_all(CallResult(status="crash", message="no verifier process starts; stderr says why"))

    def _blame(self, worker: _Worker, result: CallResult) -> None:
        """End a worker. Its first call gets `result`, or another try if earlier calls may have harmed the worker."""
        call = worker.calls.popleft() if worker.calls else None
        again = call is not None and worker.num_answered > 0 and not call.retried
        self._retire(worker)
        if call is None:
            return
        if again:
            call.retried = True
            self._spawn(call)
        else:
            self._complete(call, result)

    def _retire(self, worker: _Worker) -> None:
        """End a worker and what it forked; its calls wait for another one."""
        del self._workers[worker.index]
        self._selector.unregister(worker.connection)
        worker.connection.close()
        if self._nursery is not None:
            self._nursery.tell({"kill": worker.index})
        self._pending.extendleft(reversed(worker.calls))

    # Listening

    def _on_event(self, worker: _Worker) -> None:
        if worker.index not in self._workers:
            return  # ended by an event before this one
        if worker.outbox:
            self._write(worker)
        self._read(worker)

    def _read(self, worker: _Worker) -> None:
        try:
            data = worker.connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose(worker)
            return
        worker.inbox += data
        while worker.index in self._workers and len(worker.inbox) >= HEADER.size:
            (size,) = HEADER.unpack_from(worker.inbox)
            if size > MAX_REPLY_BYTES:
                self._lose(worker)
                return
            if len(worker.inbox) < HEADER.size + size:
                return
            data = bytes(worker.inbox[HEADER.size : HEADER.size + size])
            del worker.inbox[: HEADER.size + size]
            try:
                self._on_message(worker, json.loads(data))
            except (ValueError, LookupError, TypeError):  # foreign code wrote into the worker's socket
                self._lose(worker)

    def _on_message(self, worker: _Worker, message: dict[str, Any]) -> None:
        if worker.pid is None:
            worker.pid, worker.deadline = int(message["ready"]), None
            self._num_failed_starts = 0
            for call in worker.calls:
                self._transmit(worker, call)
        elif message["id"] != worker.calls[0].id:
            raise ValueError("not an answer to the call that it runs")
        elif "began" in message:
            worker.known.add(worker.calls[0].function)
            self._start_clock(worker)
        elif message["status"] == "memory":
            result = CallResult(status="memory", message=f"needed more than {self._max_memory_mb} MB of memory")
            self._blame(worker, result)
        else:
            result = CallResult(
                status=message["status"], value=message.get("value"), message=message.get("message", "")
            )
            call = worker.calls.popleft()
            worker.num_answered += 1
            self._start_clock(worker)
            if message.get("replace"):
                self._retire(worker)
            self._complete(call, result)

    # Deadlines

    def _seconds_left(self) -> float | None:
        """Until the next deadline."""
        deadlines = [worker.deadline for worker in self._workers.values() if worker.deadline is not None]
        return max(min(deadlines) - time.monotonic(), 0.0) if deadlines else None

    def _enforce_deadlines(self) -> None:
        now = time.monotonic()
        for worker in [worker for worker in self._workers.values() if worker.deadline is not None]:
            if worker.deadline is not None and worker.deadline <= now:
                self._read(worker)  # this thread may have slept while the answer came
            if worker.index in self._workers and worker.deadline is not None and worker.deadline <= now:
                self._end_late(worker)

    def _end_late(self, worker: _Worker) -> None:
        if worker.pid is None:
            assert self._nursery is not None
            self._nursery.process.kill()  # it hangs in an import: its end is the end of its workers
            worker.deadline = None
            return
        call = worker.calls.popleft()
        loading = call.function not in worker.known
        what = (
            f"could not be loaded within {_LOAD_TIMEOUT_S:g} s" if loading else f"timed out after {self._timeout_s:g} s"
        )
        self._retire(worker)
        self._complete(call, CallResult(status="timeout", message=what))
