"""Processes that can be killed, for verifiers that may hang, eat memory or crash.

    this process                     root                                        runners
    a thread a worker -- fork, kill -->  imports what verifiers need, forks runners
                      -- calls, JSON back ------------------------------------>  run one call after another

A runner leads a process group that dies with it by SIGKILL; what left the group becomes a child of the root, which ends
it. A bad call costs only itself: the next runner is forked within milliseconds, and a call that dies in a runner which
earlier calls may have damaged is tried once more in a fresh one. The root is a fresh interpreter: no runner has a copy
of the trainer's memory, threads or locks, and the user's `__main__` never runs twice (multiprocessing's forkserver
would run it, and would not find what left its group). Nothing is unpickled that a runner wrote.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import importlib
import json
import os
import pickle
import queue
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal

import cloudpickle

from rlvr.errors import UserError
from rlvr.imports import described

_BOOT = "import json, sys; sys.path[:], *a = json.loads(sys.argv[1]); from rlvr.rewards.sandbox import root; root(*a)"
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""A worker is one core's work; the buffers of more threads would also use up its address space."""
_LOAD_TIMEOUT_S = 120.0  # to import a function's module, or start a process: many times what a busy machine needs
_SWEEP_S = 1.0
_MAX_REPLY_BYTES = 1 << 19
_NUMBER_BYTES = 8
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # of Linux's prctl


@dataclass(frozen=True, kw_only=True, slots=True)
class CallResult:
    """How a call ended: `CallResult(status="ok", value=1.0)`, `CallResult(status="crash", message="its process died")`.

    - `ok`: `value` is what the function returned, as plain data.
    - `exception`: it raised, could not be loaded, or returned something that is not plain data.
    - `timeout`, `memory`, `crash`: it was killed at its deadline, hit the memory limit, ended its process.
    - `closed`: the sandbox was closed before.
    """

    status: Literal["ok", "exception", "timeout", "memory", "crash", "closed"]
    value: Any = None
    message: str = ""


_CLOSED = CallResult(status="closed", message="the sandbox was closed")
_DIED = CallResult(status="crash", message="its process died")
_NO_START = CallResult(status="crash", message="no verifier process starts; stderr says why")


def packed(function: object) -> bytes:
    """`function` for a process that may not be able to import it, or UserError."""
    try:
        return cloudpickle.dumps(function)
    except Exception as error:
        name = getattr(function, "__qualname__", type(function).__name__)
        raise UserError(
            f"function {name} cannot be sent to another process ({error}); let it use no open files, locks or models "
            "from outside, or put it into a module and name it as package.module:function."
        ) from error


class Sandbox(contextlib.AbstractContextManager["Sandbox"]):
    """Runs functions in `num_workers` processes, at most `timeout_s` seconds and `max_memory_mb` of address space each.

        with Sandbox(num_workers=2, timeout_s=5.0, max_memory_mb=1024) as sandbox:
            result = await sandbox.call(function, "an argument")   # CallResult(status="ok", value=...)

    Nothing starts before the first call, and no process outlives `close` or the end of this program, however it ends.
    It may be used from any thread and several event loops. Loading a function (importing its module) does not count
    towards its deadline. What a worker prints goes to stderr. macOS enforces no limit of the address space.
    """

    def __init__(self, *, num_workers: int, timeout_s: float, max_memory_mb: int) -> None:
        self._timeout_s, self._max_memory_mb = timeout_s, max_memory_mb
        self._preloads: dict[str, None] = {}
        self._lock, self._closed = threading.Lock(), False
        self._calls = queue.SimpleQueue[tuple[bytes, Future[CallResult]] | None]()
        names = [f"sandbox {number}" for number in range(num_workers)]
        self._threads = [
            threading.Thread(target=self._work, args=(i,), name=n, daemon=True) for i, n in enumerate(names)
        ]
        self._root: tuple[subprocess.Popen[bytes], socket.socket] | None = None

    def preload(self, module: str) -> None:
        """Import `module` where workers are forked from, if none is yet."""
        self._preloads[module] = None

    async def call(self, function: Callable[..., object] | bytes, *args: object) -> CallResult:
        """`function(*args)` in a worker; never raises for what the call does.

        `function` is a callable or what `packed` made of it, and returns plain data: what JSON can carry. UserError if
        it cannot be sent to another process.
        """
        return await asyncio.wrap_future(self.submit(function, *args))

    def submit(self, function: Callable[..., object] | bytes, *args: object) -> Future[CallResult]:
        """`call` for programs without an event loop."""
        future: Future[CallResult] = Future()
        future.set_running_or_notify_cancel()
        name = function if isinstance(function, bytes) else packed(function)
        try:
            request = pickle.dumps((name, cloudpickle.dumps(args)))
        except Exception as error:  # foreign objects fail in any way they like
            future.set_result(CallResult(status="exception", message=f"its arguments cannot be sent: {error}"[:500]))
            return future
        with self._lock:
            if self._closed:
                raise RuntimeError("the sandbox is closed")
            for thread in self._threads:
                if thread.ident is None:
                    thread.start()
            self._calls.put((request, future))
        return future

    def close(self) -> None:
        """End all processes; calls that are not done come back as `closed`."""
        with self._lock:
            self._closed = True
            if self._root is not None:
                self._end_root(*self._root)
        started = [thread for thread in self._threads if thread.ident is not None]
        for _ in started:
            self._calls.put(None)
        for thread in started:
            thread.join()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self, number: int) -> None:
        worker = _Worker(number, self._fork, self._timeout_s)
        while (call := self._calls.get()) is not None:
            request, future = call
            result = _CLOSED if self._closed else worker.answer(request)
            future.set_result(_CLOSED if self._closed and result.status != "ok" else result)
        worker.end()

    def _fork(self, number: int, *links: socket.socket) -> None:
        """Have the runner of worker `number` killed and, with a link to read calls from, another one forked."""
        with self._lock:
            if links and (self._root is None or self._root[0].poll() is not None) and not self._closed:
                if self._root is not None:
                    self._end_root(*self._root)
                self._root = self._start_root()
            if self._root is not None:
                link_fds = [link.fileno() for link in links]
                socket.send_fds(self._root[1], [number.to_bytes(_NUMBER_BYTES)], link_fds)

    def _start_root(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair()
        path = [os.path.abspath(entry) for entry in [*sys.path, os.getcwd()]]
        arguments = json.dumps([path, theirs.fileno(), list(self._preloads), self._max_memory_mb])
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-u", "-c", _BOOT, arguments],
                env=os.environ | _ONE_THREAD,
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a verifier prints must not mix with results on stdout
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C at the terminal does not reach it
            )
        return process, ours

    @staticmethod
    def _end_root(process: subprocess.Popen[bytes], control: socket.socket) -> None:
        control.close()
        try:
            process.wait(timeout=10)  # it ends its runners
        except subprocess.TimeoutExpired:  # it hangs in an import
            process.kill()
            process.wait()


class _Worker:
    """Has calls run by a runner, which it trusts in nothing.

    The runner says `"loading"` and `"loaded"` of a function that it does not know, then how the call ended: the fields
    of a `CallResult`, with `"last": true` if no further call should run in that process. All in lines of JSON, with the
    call's own random token: what another call wrote there is no answer.
    """

    def __init__(self, number: int, fork: Callable[..., None], timeout_s: float) -> None:
        self._number, self._fork, self._timeout_s = number, fork, timeout_s
        self._link: socket.socket | None = None  # to the runner; None: there is none
        self._read = b""

    def answer(self, request: bytes) -> CallResult:
        """How the call ended; one that ends a runner which earlier calls may have damaged is tried once more, and so is
        one under whose runner another call killed the root."""
        result = _NO_START
        for _ in range(3):
            was_used = self._link is not None
            result = self._attempt(request)
            if result is not _NO_START and not (was_used and result.status in ("memory", "crash")):
                break
        return result

    def _attempt(self, request: bytes) -> CallResult:
        seconds, is_last, died = self._timeout_s, True, _DIED
        try:
            if self._link is None:
                seconds, died = _LOAD_TIMEOUT_S, _NO_START
                self._link, theirs = socket.socketpair()
                with theirs:
                    self._fork(self._number, theirs)
            token, found = os.urandom(8).hex(), None
            self._link.settimeout(_LOAD_TIMEOUT_S)
            self._link.sendall(token.encode() + request)
            while not isinstance(found, dict):
                seconds = {None: seconds, "loading": _LOAD_TIMEOUT_S, "loaded": self._timeout_s}[found]
                whose, found = json.loads(self._line(self._link, seconds))
                died = _DIED
                if whose != token:
                    raise ValueError("an answer to no call")
            is_last = found.pop("last", False)
            return CallResult(**found)
        except (TimeoutError, BlockingIOError):
            what = "timed out" if seconds == self._timeout_s else "could not be loaded"
            return CallResult(status="timeout", message=f"{what} after {seconds:g} s")
        except Exception:  # it died, or what it wrote is no answer
            return died
        finally:
            if is_last:
                self.end()

    def _line(self, link: socket.socket, seconds: float) -> bytes:
        """The next line. An answer that is there counts, however late a busy trainer looks for it."""
        end = time.monotonic() + seconds
        while b"\n" not in self._read:
            link.settimeout(max(0.0, end - time.monotonic()))
            block = link.recv(1 << 16)
            if not block or len(self._read) > 2 * _MAX_REPLY_BYTES:
                raise EOFError
            self._read += block
        line, _, self._read = self._read.partition(b"\n")
        return line

    def end(self) -> None:
        """End the runner and its group."""
        if self._link is not None:
            self._link.close()
            self._link, self._read = None, b""
            with contextlib.suppress(OSError):  # the root has died, and its runners with it
                self._fork(self._number)


# ------------------------------------------------------------------------------------------------------ other processes


def root(control_fd: int, preloads: list[str], max_memory_mb: int) -> None:
    """The process that forks and kills runners; it ends them all when the other end of its socket closes."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what has lost its parent becomes a child of this process
    for module in preloads:
        with contextlib.suppress(Exception):  # a call that needs the module will say what is wrong with it
            importlib.import_module(module)
    gc.freeze()  # a collection in a runner then leaves the pages of these objects shared
    control, runners, swept = socket.socket(fileno=control_fd), dict[int, int](), time.monotonic()
    control.settimeout(_SWEEP_S)
    while True:
        with contextlib.suppress(TimeoutError):
            message, links, *_ = socket.recv_fds(control, _NUMBER_BYTES, 1)
            if not message:
                break
            number = int.from_bytes(message)
            if number in runners:
                _kill(runners.pop(number))
            if links:
                runners[number] = _fork(control, links[0], max_memory_mb)
        if time.monotonic() - swept > _SWEEP_S:
            swept = time.monotonic()
            _kill_strays(set(runners.values()))
    for pid in runners.values():
        _kill(pid)
    _kill_strays(set())


def _fork(control: socket.socket, link: int, max_memory_mb: int) -> int:
    if (pid := os.fork()) == 0:
        try:
            control.close()
            _run(socket.socket(fileno=link), max_memory_mb)
        finally:
            os._exit(0)
    os.close(link)
    return pid


def _kill(pid: int) -> None:
    for end in (os.killpg, os.kill):  # it may not have made its group yet
        with contextlib.suppress(OSError):
            end(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _kill_strays(runners: set[int]) -> None:
    """End what left its group and lost its parent. Linux only: elsewhere such a process is not found."""
    for _ in range(100):  # the children of a killed stray become strays in their turn
        try:
            with open(f"/proc/self/task/{os.getpid()}/children") as file:
                strays = {int(word) for word in file.read().split()} - runners
        except OSError:
            return
        for pid in strays:
            with contextlib.suppress(PermissionError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        if not strays:
            return


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _run(link: socket.socket, max_memory_mb: int) -> None:
    """The runner: one call after another, until it is killed."""
    os.setsid()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for kind, value in ((resource.RLIMIT_AS, max_memory_mb << 20), (resource.RLIMIT_CORE, 0)):
        with contextlib.suppress(ValueError, OSError):  # macOS refuses or ignores limits of the address space
            resource.setrlimit(kind, (value, value))  # hard, too: no call can lift it again
    os.register_at_fork(after_in_child=link.close)  # a forked child must not answer for its parent
    functions: dict[bytes, Callable[..., object]] = {}
    own_pid = os.getpid()
    with open(link.fileno(), "rb", closefd=False) as requests:
        while True:
            token = requests.read(16).decode()

            def say(message: object, token: str = token) -> None:
                link.sendall(json.dumps([token, message]).encode() + b"\n")

            reply: dict[str, Any]
            try:
                reply = _reply(say, functions, *pickle.load(requests))
            except MemoryError:
                reply = {"status": "memory", "message": f"needed more than {max_memory_mb} MB of memory", "last": True}
            except BaseException as error:  # SystemExit and KeyboardInterrupt of a call, too, are only that call's
                reply = {"status": "exception", "message": described(error)}
            if os.getpid() != own_pid:  # the call forked, and this is the child that came back
                return
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, os.WNOHANG)
                reply["last"] = True  # the call left a process of its own
            say(reply)


def _reply(
    say: Callable[[object], None], functions: dict[bytes, Callable[..., object]], function: bytes, arguments: bytes
) -> dict[str, Any]:
    if function not in functions:
        say("loading")
        functions[function] = pickle.loads(function)
        say("loaded")
    value = functions[function](*pickle.loads(arguments))
    try:
        size = len(json.dumps(value))
    except (TypeError, ValueError) as error:
        message = f"returned a {type(value).__name__} that is not plain data: {error}"[:500]
        return {"status": "exception", "message": message}
    if size > _MAX_REPLY_BYTES:
        message = f"returned {size:,} bytes, more than the {_MAX_REPLY_BYTES:,} allowed"
        return {"status": "exception", "message": message}
    return {"status": "ok", "value": value}
