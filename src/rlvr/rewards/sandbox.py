"""Processes that can be killed, for verifiers that may hang, eat memory or crash.

    this process            root                                        runners
    threads  -- calls -->   imports what verifiers need, forks runners  run one call after another
             <-- JSON --    and kills each at its call's deadline

A runner leads a process group that dies with it by SIGKILL; what left the group becomes a child of the root, which ends
it. A bad call costs only itself: the next runner is forked within milliseconds, and a call that dies in a runner which
earlier calls may have damaged is tried once more in a fresh one. The root is a fresh interpreter: no runner has a copy
of the trainer's memory, threads or locks, the user's `__main__` never runs twice, and a busy trainer delays nobody.
Nothing is unpickled that a runner wrote.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import importlib
import itertools
import json
import os
import pickle
import resource
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
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
_MAX_REPLY_BYTES = 1 << 19
_HEADER = struct.Struct("!QQ")
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
        self._limits = (num_workers, timeout_s, max_memory_mb)
        self._preloads: dict[str, None] = {}
        self._lock, self._closed = threading.Lock(), False
        self._link: socket.socket | None = None  # to the root
        self._receiver = threading.Thread()
        self._numbers, self._waiting = itertools.count(), dict[int, Future[CallResult]]()

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
            try:
                self._link = self._link or self._start_root()
            except (OSError, RuntimeError):  # there is no such program, or no memory for it or a thread
                traceback.print_exc()
                future.set_result(_NO_START)
                return future
            number = next(self._numbers)
            self._waiting[number] = future
            with contextlib.suppress(OSError):  # it has died, as the thread that receives will find
                self._link.sendall(_HEADER.pack(number, len(request)) + request)
        return future

    def close(self) -> None:
        """End all processes; calls that are not done come back as `closed`."""
        with self._lock:
            self._closed = True
            if self._link is not None:
                with contextlib.suppress(OSError):  # it has died
                    self._link.shutdown(socket.SHUT_RDWR)
        if self._receiver.ident is not None:
            self._receiver.join()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start_root(self) -> socket.socket:
        link, theirs = socket.socketpair()
        path = [os.path.abspath(entry) for entry in [*sys.path, os.getcwd()]]
        arguments = json.dumps([path, theirs.fileno(), list(self._preloads), *self._limits])
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-u", "-c", _BOOT, arguments],
                env=os.environ | _ONE_THREAD,
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a verifier prints must not mix with results on stdout
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C at the terminal does not reach it
            )
        self._receiver = threading.Thread(target=self._receive, args=(link, process), name="sandbox", daemon=True)
        self._receiver.start()
        return link

    def _receive(self, link: socket.socket, process: subprocess.Popen[bytes]) -> None:
        """A thread, as long as a root lives; the calls that it leaves undone have failed."""
        failed = _NO_START
        link.settimeout(_LOAD_TIMEOUT_S)
        with link, link.makefile("rb") as lines, contextlib.suppress(OSError):
            while (line := lines.readline()).endswith(b"\n"):  # else it died, maybe in the middle of a line
                link.settimeout(None)
                failed = CallResult(status="crash", message="its process died")
                for number, reply in json.loads(line).items():
                    self._waiting.pop(int(number)).set_result(CallResult(**reply))
        try:
            process.wait(timeout=10)  # it ends its runners
        except subprocess.TimeoutExpired:  # it hangs in an import
            process.kill()
            process.wait()
        with self._lock:
            self._link, undone, self._waiting = None, self._waiting, {}
        for future in undone.values():
            future.set_result(_CLOSED if self._closed else failed)


def root(control_fd: int, preloads: list[str], num_workers: int, timeout_s: float, max_memory_mb: int) -> None:
    """The process that forks runners: `Sandbox` starts it, and it ends when the other end of its socket closes."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what has lost its parent becomes a child of this process
    for module in preloads:
        with contextlib.suppress(Exception):  # a call that needs the module will say what is wrong with it
            importlib.import_module(module)
    gc.freeze()  # a collection in a runner then leaves the pages of these objects shared
    workers = [_Worker(timeout_s, max_memory_mb) for _ in range(num_workers)]
    asyncio.run(_serve(socket.socket(fileno=control_fd), workers))


async def _serve(control: socket.socket, workers: Sequence[_Worker]) -> None:
    calls: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
    reader, writer = await asyncio.open_connection(sock=control)
    writer.write(b"{}\n")  # it is there

    async def work(worker: _Worker) -> None:
        while True:
            number, request = await calls.get()
            reply = await worker.answer(request)
            writer.write(json.dumps({number: reply}).encode() + b"\n")

    async def sweep() -> None:
        while True:
            await asyncio.sleep(1.0)
            _end_strays({worker.pid for worker in workers})

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(sweep())
            for worker in workers:
                group.create_task(work(worker))
            while True:
                number, size = _HEADER.unpack(await reader.readexactly(_HEADER.size))
                calls.put_nowait((number, await reader.readexactly(size)))
    except* (EOFError, ConnectionError):
        pass
    finally:
        for worker in workers:
            worker.end()
        _end_strays(set())


class _Worker:
    """Has calls run by a runner, which it trusts in nothing.

    The runner says `"loading"` and `"loaded"` of a function that it does not know, then how the call ended: the fields
    of a `CallResult`, with `"last": true` if no further call should run in that process. All in lines of JSON, with the
    call's own random token: what another call wrote there is no answer.
    """

    def __init__(self, timeout_s: float, max_memory_mb: int) -> None:
        self._timeout_s, self._max_memory_mb = timeout_s, max_memory_mb
        self.pid = 0  # of the runner; 0: there is none

    async def answer(self, request: bytes) -> dict[str, Any]:
        """How the call ended; one that ends a runner which earlier calls may have damaged is tried once more."""
        was_used = self.pid != 0
        reply = await self._attempt(request)
        return await self._attempt(request) if was_used and reply["status"] in ("memory", "crash") else reply

    async def _attempt(self, request: bytes) -> dict[str, Any]:
        seconds, is_last = self._timeout_s, True
        try:
            if self.pid == 0:
                await self._start()
                seconds = _LOAD_TIMEOUT_S
            token, found = os.urandom(8).hex(), None
            self._writer.write(token.encode() + request)
            while not isinstance(found, dict):
                seconds = {None: seconds, "loading": _LOAD_TIMEOUT_S, "loaded": self._timeout_s}[found]
                async with asyncio.timeout(seconds):
                    whose, found = json.loads(await self._reader.readline())
                if whose != token:
                    raise ValueError("an answer to no call")
            is_last = found.get("last", False)
            return {"status": found["status"], "value": found.get("value"), "message": found.get("message", "")}
        except TimeoutError:
            what = "timed out" if seconds == self._timeout_s else "could not be loaded"
            return {"status": "timeout", "message": f"{what} after {seconds:g} s"}
        except Exception:  # it died, or what it wrote is no answer
            return {"status": "crash", "message": "its process died"}
        finally:
            if is_last:
                self.end()

    async def _start(self) -> None:
        ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _run(theirs, self._max_memory_mb)
            finally:
                os._exit(0)
        theirs.close()
        self._reader, self._writer = await asyncio.open_connection(sock=ours, limit=2 * _MAX_REPLY_BYTES)
        # asyncio's buffer of 256 KB for each read costs a tenth of all that the root does
        self._writer.transport.max_size = 1 << 14  # pyright: ignore[reportAttributeAccessIssue]

    def end(self) -> None:
        """End the runner and its group."""
        if self.pid:
            self._writer.transport.abort()
            for end in (os.killpg, os.kill):  # it may not have made its group yet
                with contextlib.suppress(OSError):
                    end(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0


def _end_strays(runners: set[int]) -> None:
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
    for name in os.listdir("/dev/fd"):  # the root's sockets, among them those to other runners
        with contextlib.suppress(OSError):
            if int(name) != link.fileno() and stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                os.close(int(name))
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
