"""Killable processes for verifiers that may hang, exhaust memory or crash.

    this process                     root                                        runners
        a thread per worker -- fork, kill --> imports verifiers' modules, forks runners
                            -- calls, JSON back ------------------------------------>  run one call after another

A runner leads a process group, killed as a whole by SIGKILL; processes that left the group become children of the root,
which kills them. The root is a fresh interpreter: runners have no copy of the trainer's memory, threads or locks, and
the user's `__main__` does not run again (multiprocessing's forkserver would run it, and could not find processes
outside the group).
"""

import asyncio
import contextlib
import ctypes
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
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal

import cloudpickle

from rlvr.errors import UserError
from rlvr.imports import described
from rlvr.quiet import hide_library_warnings

_BOOT = "import json, sys; sys.path[:], *a = json.loads(sys.argv[1]); from rlvr.rewards.sandbox import root; root(*a)"
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""A worker uses one core; more threads would also use up its address space with buffers."""
_LOAD_TIMEOUT_S = 120.0  # to start a process and import a module, with a large margin
_SWEEP_S = 1.0
_MAX_REPLY_BYTES = 1 << 19
_NUMBER_BYTES = 8
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # options of Linux's prctl


@dataclass(frozen=True, kw_only=True, slots=True)
class CallResult:
    """Result of a call: `CallResult(status="ok", value=1.0)`, `CallResult(status="crash", message="its process died")`.

    `ok`: `value` is plain data; `exception`: it raised, could not be loaded, or returned something else; `timeout`,
    `memory`, `crash`: its process was killed or ended; `closed`: the sandbox was already closed.
    """

    status: Literal["ok", "exception", "timeout", "memory", "crash", "closed"]
    value: Any = None
    message: str = ""


_CLOSED = CallResult(status="closed", message="the sandbox was closed")
_DIED = CallResult(status="crash", message="its process died")
_NO_START = CallResult(status="crash", message="its process ended before the call began; stderr says why")


def packed(function: object) -> bytes:
    """Pickle `function` for a process that may not be able to import it; UserError if impossible."""
    try:
        return cloudpickle.dumps(function)
    except Exception as error:  # user objects may raise anything
        name = getattr(function, "__qualname__", type(function).__name__)
        raise UserError(
            f"function {name} cannot be sent to another process ({error}); let it use no open files, locks or models "
            "from outside, or put it into a module and name it as package.module:function."
        ) from error


class Sandbox(contextlib.AbstractContextManager["Sandbox"]):
    """Runs functions in `num_workers` processes, at most `timeout_s` seconds and `max_memory_mb` of address space each.

        with Sandbox(num_workers=2, timeout_s=5.0, max_memory_mb=1024) as sandbox:
            result = await sandbox.call(function, "an argument")   # CallResult(status="ok", value=...)

    Nothing starts before the first call, and no process outlives `close` or this program, however it ends. Thread-safe,
    for any event loop. Workers' stdout goes to stderr. macOS enforces no memory limit.
    """

    def __init__(self, *, num_workers: int, timeout_s: float, max_memory_mb: int) -> None:
        self._num_workers, self._timeout_s, self._max_memory_mb = num_workers, timeout_s, max_memory_mb
        self._preloads: dict[str, None] = {}
        self._lock, self._closed = threading.Lock(), False
        self._calls = queue.SimpleQueue[tuple[bytes, Future[CallResult]] | None]()
        self._threads: list[threading.Thread] = []
        self._root: tuple[subprocess.Popen[bytes], socket.socket] | None = None

    def preload(self, module: str) -> None:
        """Import `module` in the root before it forks runners, if it has not started yet."""
        self._preloads[module] = None

    async def call(self, function: Callable[..., object] | bytes, *args: object) -> CallResult:
        """`function(*args)` in a worker; never raises for failures of the call.

        `function` is a callable or the result of `packed`, and returns JSON-compatible data. Loading it (importing its
        module) does not count towards its deadline.
        """
        return await asyncio.wrap_future(self.submit(function, *args))

    def submit(self, function: Callable[..., object] | bytes, *args: object) -> Future[CallResult]:
        """`call` for programs without an event loop."""
        future: Future[CallResult] = Future()
        future.set_running_or_notify_cancel()
        name = function if isinstance(function, bytes) else packed(function)
        request = pickle.dumps((name, packed(args)))
        with self._lock:
            if self._closed:
                raise RuntimeError("the sandbox is closed")
            if len(self._threads) < self._num_workers:
                self._threads.append(threading.Thread(target=self._work, args=(len(self._threads),), daemon=True))
                self._threads[-1].start()
            self._calls.put((request, future))
        return future

    def close(self) -> None:
        """End all processes; unfinished calls return `closed`."""
        with self._lock:
            self._closed = True
            self._end_root()
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self, number: int) -> None:
        """Run one call after another. Retries once if an earlier call may have damaged the runner, or another runner's
        call killed the root."""
        link: socket.socket | None = None  # to the runner
        while (call := self._calls.get()) is not None:
            request, future = call
            result = _NO_START
            for _ in range(3):
                was_used = link is not None
                if link is None:
                    try:
                        link, theirs = socket.socketpair()
                    except OSError as error:  # too many open files
                        result = CallResult(status="crash", message=described(error))
                        break
                    with theirs:
                        self._tell_root(number, theirs)
                result, is_last = _ask(link, request, self._timeout_s)
                if is_last:
                    link.close()
                    link = None
                    self._tell_root(number)
                if result is not _NO_START and not (was_used and result.status in ("memory", "crash")):
                    break
            future.set_result(_CLOSED if self._closed and result.status != "ok" else result)
        if link is not None:
            link.close()

    def _tell_root(self, number: int, *links: socket.socket) -> None:
        """Have the root kill the runner of worker `number` and, if a link to read calls from is passed, fork another
        one."""
        with self._lock, contextlib.suppress(OSError):  # the root and its runners have just died
            if links and not self._closed and (self._root is None or self._root[0].poll() is not None):
                self._end_root()
                self._root = self._start_root()
            if self._root is not None:
                socket.send_fds(self._root[1], [number.to_bytes(_NUMBER_BYTES)], [link.fileno() for link in links])

    def _start_root(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair()
        path = [os.path.abspath(entry) for entry in [*sys.path, os.getcwd()]]
        arguments = json.dumps([path, theirs.fileno(), list(self._preloads), self._max_memory_mb])
        with theirs:
            process = subprocess.Popen(
                [sys.executable, *(f"-W{option}" for option in sys.warnoptions), "-u", "-c", _BOOT, arguments],
                env=os.environ | _ONE_THREAD,
                stdin=subprocess.DEVNULL,
                stdout=2,  # keep verifiers' output off stdout
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C at the terminal must not reach it
            )
        return process, ours

    def _end_root(self) -> None:
        if self._root is not None:
            process, control = self._root
            control.close()
            try:
                process.wait(timeout=10)  # the root ends its runners
            except subprocess.TimeoutExpired:  # it hangs in an import
                process.kill()
                process.wait()


def _ask(link: socket.socket, request: bytes, timeout_s: float) -> tuple[CallResult, bool]:
    """The result of a call in the runner at `link`, and whether the runner must be replaced.

    The untrusted runner sends lines of JSON: `"loaded"` once the function is loaded, then the fields of a `CallResult`,
    with `"last": true` if no further call should run in that process.
    """
    what, seconds, died = "could not be loaded", _LOAD_TIMEOUT_S, _NO_START
    try:
        link.settimeout(seconds)
        link.sendall(request)
        with link.makefile("rb") as lines:
            reply = json.loads(lines.readline(_MAX_REPLY_BYTES))
            if reply == "loaded":
                what, seconds, died = "timed out", timeout_s, _DIED
                link.settimeout(seconds)
                reply = json.loads(lines.readline(_MAX_REPLY_BYTES))
        is_last = reply.pop("last", False)
        return CallResult(**reply), is_last
    except TimeoutError:
        return CallResult(status="timeout", message=f"{what} after {seconds:g} s"), True
    except Exception:  # it died, or its answer is invalid
        return died, True


def root(control_fd: int, preloads: list[str], max_memory_mb: int) -> None:
    """The process that forks and kills runners; ends them all when the other end of its socket closes."""
    hide_library_warnings()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # orphans become children of this process
    for module in preloads:
        with contextlib.suppress(Exception):  # a call that needs the module will report the error
            importlib.import_module(module)
    control, runners = socket.socket(fileno=control_fd), dict[int, int]()
    control.settimeout(_SWEEP_S)
    while True:
        with contextlib.suppress(TimeoutError):
            message, links, *_ = socket.recv_fds(control, _NUMBER_BYTES, 1)
            if not message:
                break
            number = int.from_bytes(message)
            if number in runners:
                _kill(runners.pop(number))
            for link in links:
                if (pid := os.fork()) == 0:
                    try:
                        control.close()
                        _run(socket.socket(fileno=link), max_memory_mb)
                    finally:
                        os._exit(0)
                os.close(link)
                runners[number] = pid
        _kill_strays(set(runners.values()))
    for pid in runners.values():
        _kill(pid)
    while _kill_strays(set()):  # children of a killed stray become strays
        pass


def _kill(pid: int) -> None:
    for end in (os.killpg, os.kill):  # its group may not exist yet
        with contextlib.suppress(OSError):
            end(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _kill_strays(runners: set[int]) -> set[int]:
    """Kill orphans that left their group. Linux only: elsewhere they are not found."""
    strays = set[int]()
    with contextlib.suppress(OSError), open(f"/proc/self/task/{os.getpid()}/children") as file:
        strays = {int(word) for word in file.read().split()} - runners
    for pid in strays:
        _kill(pid)
    return strays


def end_with_parent(number: int) -> None:
    """This process gets the signal `number` when its parent ends. Linux only."""
    _prctl(_PR_SET_PDEATHSIG, number)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _run(link: socket.socket, max_memory_mb: int) -> None:
    """The runner: one call after another, until it is killed."""
    os.setsid()
    end_with_parent(signal.SIGKILL)
    for kind, value in ((resource.RLIMIT_AS, max_memory_mb << 20), (resource.RLIMIT_CORE, 0)):
        with contextlib.suppress(ValueError, OSError):  # macOS refuses or ignores limits of the address space
            resource.setrlimit(kind, (value, value))  # also the hard limit, so that no call can raise it
    os.register_at_fork(after_in_child=link.close)  # a forked child must not answer for its parent
    functions: dict[bytes, Callable[..., object]] = {}
    own_pid = os.getpid()
    with open(link.fileno(), "rb", closefd=False) as requests:
        while True:
            try:
                function, arguments = pickle.load(requests)
                if function not in functions:
                    functions[function] = pickle.loads(function)
                link.sendall(b'"loaded"\n')
                value = functions[function](*pickle.loads(arguments))
                json.dumps(value)
                reply: dict[str, Any] = {"status": "ok", "value": value}
            except MemoryError:
                reply = {"status": "memory", "message": f"needed more than {max_memory_mb} MB of memory", "last": True}
            except BaseException as error:  # also SystemExit and KeyboardInterrupt: they only end the call
                reply = {"status": "exception", "message": described(error)}
            if os.getpid() != own_pid:  # the call forked, and this is the child
                return
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, os.WNOHANG)
                reply["last"] = True  # the call left a process behind
            link.sendall(json.dumps(reply).encode() + b"\n")
