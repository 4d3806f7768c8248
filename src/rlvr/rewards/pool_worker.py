"""What runs in the processes of a `VerifierPool`: one nursery, which forks the workers. Only the standard library.

The nursery is started as a fresh interpreter, so no worker holds a copy of the trainer's memory, threads or locks, and
the user's `__main__` is never imported a second time. It imports what the verifiers need once; a worker is then forked
within milliseconds. It alone starts, kills and reaps workers: a process id cannot be reused while it still means
something here.

    pool -control socket-> nursery    lines of JSON: {"spawn": 3} (with a socket), {"kill": 3}, {"preload": "module"}
    pool <-a socket each-> worker     frames: a length, then a pickle (to the worker) or JSON (from it)

A worker runs text that a model wrote through foreign code, so the pool never unpickles what a worker sends.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import pickle
import resource
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any

MAX_REPLY_BYTES = 1 << 20
HEADER = struct.Struct("!I")
_SWEEP_S = 1.0
_MAX_SWEEPS = 100  # a killed orphan's children become orphans in their turn
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def main(control_fd: int, parent_pid: int, max_memory_mb: int) -> None:
    """The nursery's life: it ends, and everything it started with it, when the pool's end of the socket closes."""
    control = socket.socket(fileno=control_fd)
    nursery = _Nursery(control, max_memory_mb)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the pool's affair
    # noted and not raised: when the pool dies, the signal may well come while `kill_all` is at work
    signal.signal(signal.SIGTERM, lambda *_: nursery.stop())
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # daemons that workers leave behind become children of this process
    try:
        if os.getppid() == parent_pid:
            nursery.serve()
    finally:
        nursery.kill_all()


class _Nursery:
    """Starts and kills workers on the pool's command."""

    def __init__(self, control: socket.socket, max_memory_mb: int) -> None:
        self._control = control
        self._max_memory_mb = max_memory_mb
        self._pids: dict[int, int] = {}
        self._children = f"/proc/self/task/{os.getpid()}/children"
        self._stopped = False

    def serve(self) -> None:
        """Obey until the control socket ends, or for a second more after `stop`."""
        buffer, fds = b"", []
        while not self._stopped:
            if not select.select([self._control], [], [], _SWEEP_S)[0]:
                self._sweep()
                continue
            data, new_fds, _, _ = socket.recv_fds(self._control, 1 << 16, 64)
            if not data:
                return
            fds += new_fds
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                self._obey(json.loads(line), fds)

    def stop(self) -> None:
        """End soon."""
        self._stopped = True

    def _obey(self, command: dict[str, Any], fds: list[int]) -> None:
        if "spawn" in command:
            self._spawn(command["spawn"], fds.pop(0))
        elif "kill" in command:
            self._kill(command["kill"])
            self._sweep()
        else:
            with contextlib.suppress(Exception):  # a call that needs the module will say what is wrong with it
                importlib.import_module(command["preload"])
            gc.collect()
            gc.freeze()  # a collection in a worker then leaves the pages of these objects shared

    def _spawn(self, index: int, fd: int) -> None:
        pid = os.fork()
        if pid == 0:
            self._control.close()
            _start_worker(fd, self._max_memory_mb)
        os.close(fd)
        self._pids[index] = pid

    def _kill(self, index: int) -> None:
        """End a worker and its process group: what it forked, too."""
        pid = self._pids.pop(index, None)
        if pid is None:  # it was forked by a nursery that has died
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # it may have left the group, or not yet made it
        os.waitpid(pid, 0)

    def _sweep(self) -> None:
        """End what left its worker's group and lost its parent. Linux only: elsewhere such a process is not found."""
        for _ in range(_MAX_SWEEPS):
            orphans = self._orphans()
            for pid in orphans:
                with contextlib.suppress(PermissionError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
            if not orphans:
                return

    def _orphans(self) -> set[int]:
        try:
            with open(self._children) as file:
                children = {int(word) for word in file.read().split()}
        except OSError:
            return set()
        return children - set(self._pids.values())

    def kill_all(self) -> None:
        """Leave nothing behind."""
        for index in list(self._pids):
            self._kill(index)
        self._sweep()


def _prctl(option: int, value: int) -> None:
    """Linux's per-process switches; other systems have none of them."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _start_worker(fd: int, max_memory_mb: int) -> None:
    """Turn the forked process into a worker; never returns."""
    status = 1
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        connection = socket.socket(fileno=fd)
        os.register_at_fork(after_in_child=lambda: _drop(connection))  # a forked child must not answer for its parent
        _limit(resource.RLIMIT_AS, max_memory_mb << 20)
        _limit(resource.RLIMIT_CORE, 0)
        _Worker(connection).serve()
        status = 0
    finally:
        os._exit(status)


def _drop(connection: socket.socket) -> None:
    if connection.fileno() >= 0:
        os.close(connection.detach())


def _limit(kind: int, value: int) -> None:
    """Soft and hard, so that a call cannot lift it again. macOS refuses or ignores limits of the address space."""
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(kind, (value, value))


class _Worker:
    """Answers calls, one after another, in the order they came.

    To the worker: `(id, function, arguments)`, the last two pickled. From it: `{"ready": its process id}` once,
    `{"id": 7, "began": true}` when a function it did not know has been loaded, and one `{"id": 7, "status": ...,
    "value": ..., "message": ...}` a call, with `"replace": true` if no further call should run in this process.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._reader = connection.makefile("rb")
        self._functions: dict[bytes, Callable[..., object]] = {}
        self._pid = os.getpid()

    def serve(self) -> None:
        """Until the pool closes its end."""
        self._send({"ready": self._pid})
        while header := self._reader.read(HEADER.size):
            call_id, function, arguments = pickle.loads(self._reader.read(*HEADER.unpack(header)))
            reply = self._answer(call_id, function, arguments)
            if os.getpid() != self._pid:  # the call forked, and this is the child that came back
                return
            self._send({"id": call_id, **reply})

    def _send(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode()
        self._connection.sendall(HEADER.pack(len(data)) + data)

    def _answer(self, call_id: int, function: bytes, arguments: bytes) -> dict[str, Any]:
        reply: dict[str, Any]
        try:
            if function not in self._functions:
                self._functions[function] = pickle.loads(function)
                self._send({"id": call_id, "began": True})
            reply = _ok(self._functions[function](*pickle.loads(arguments)))
        except MemoryError:
            reply = {"status": "memory"}
        except BaseException as error:  # SystemExit and KeyboardInterrupt of a call, too, are only that call's
            reply = {"status": "exception", "message": _describe(error)}
        if _has_children():
            reply["replace"] = True
        return reply


def _ok(value: object) -> dict[str, Any]:
    """The reply that carries `value`, or one that says why it cannot be sent."""
    try:
        size = len(json.dumps(value))
    except (TypeError, ValueError) as error:
        return {
            "status": "exception",
            "message": f"returned a {type(value).__name__} that is not plain data: {error}"[:500],
        }
    if size > MAX_REPLY_BYTES // 2:
        return {
            "status": "exception",
            "message": f"returned {size:,} bytes, more than the {MAX_REPLY_BYTES // 2:,} allowed",
        }
    return {"status": "ok", "value": value}


def _describe(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:500]
    except Exception:  # its own __str__ fails
        return type(error).__name__


def _has_children() -> bool:
    """True if a process that a call started is still running. What has ended is reaped here."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def load(path: str) -> Callable[..., object]:
    """`"package.module:function"` -> the function. The pool pickles importable functions as a call of this."""
    module, _, name = path.partition(":")
    found: Any = importlib.import_module(module)
    for attribute in name.split("."):
        found = getattr(found, attribute)
    return found
