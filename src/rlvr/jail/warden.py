"""The process in the jail that forks one child a program, and reports how it ended.

    host                                     warden                                child
    limits, two ends of sockets  ---------->  forks, keeps the deadline  --------->  reads program and input from its
    program and input, output and errors  <---------------------------------------->  end, loses all rights, runs it
    {"code": 0, "late": false}   <----------  when the child has ended

The warden never reads a program or what one wrote: it does not even hold the text of an earlier one that a later one
could look for in its memory. Runs inside the jail: imports only the standard library.
"""

import atexit
import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
import types
from typing import Any

from rlvr.jail.confine import (
    Kernel,
    enter_landlock,
    enter_namespaces,
    guard_memory,
    limit,
    lose_rights,
    own_tmp,
)

_PRELOADED = (
    "ast", "bisect", "collections", "contextlib", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions",
    "functools", "heapq", "io", "itertools", "json", "math", "operator", "queue", "random", "re", "statistics",
    "string", "threading", "traceback", "typing",
)  # fmt: skip
"""Modules that programs import: loaded once, before forks."""
_MAX_MESSAGE = 1 << 16


def main(way: str, shown: list[str], hidden: list[str]) -> None:
    """Enter the jail by `way`; then one program after another, until the host closes its end."""
    control = socket.socket(fileno=0)
    for module in _PRELOADED:
        __import__(module)
    try:
        kernel = Kernel()
        if way == "namespaces":
            enter_namespaces(kernel, shown, hidden)
        if way == "landlock":
            enter_landlock(kernel, shown)
        if way != "none":
            guard_memory(kernel)
    except (OSError, KeyError) as error:
        control.sendall(json.dumps({"failed": str(error)}).encode())
        return
    control.sendall(b'{"failed": ""}')
    gc.collect()
    gc.freeze()
    signals, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        message, ends, *_ = socket.recv_fds(control, _MAX_MESSAGE, 2)
        if not message:
            return
        limits = json.loads(message)
        if (child := os.fork()) == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number in (signals, wake):
                os.close(number)
            control.detach()  # its number, 0, becomes the program's input
            _become(kernel, way, limits, *ends)
        report = _watch(child, signals, ends[0], limits["wall_s"], has_group=way == "none")
        for end in ends:
            os.close(end)
        control.sendall(json.dumps(report).encode())


def _watch(child: int, signals: int, end: int, wall_s: float, *, has_group: bool) -> dict[str, Any]:
    """Wait for the child; kill it at its deadline, or when the host no longer listens."""
    deadline, late = time.monotonic() + wall_s, False
    poll = select.poll()
    poll.register(signals, select.POLLIN)
    poll.register(end, 0)  # hung up
    while True:
        pid, status, usage = os.wait4(child, os.WNOHANG)
        if pid:
            break
        events = dict(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
        late = late or time.monotonic() >= deadline
        if late or end in events:
            os.kill(child, signal.SIGKILL)
            _, status, usage = os.wait4(child, 0)
            break
        if signals in events:
            os.read(signals, 512)
    if has_group:
        with contextlib.suppress(OSError):  # it is empty
            os.killpg(child, signal.SIGKILL)
    return {"code": os.waitstatus_to_exitcode(status), "late": late, "cpu_s": usage.ru_utime + usage.ru_stime}


def _become(kernel: Kernel, way: str, limits: dict[str, Any], link: int, errors: int) -> None:
    """Run the program that comes over `link` in this process, which ends with it."""
    with open(link, "rb", closefd=False) as file:
        request = json.loads(file.read())
    in_own_tmp = way in ("namespaces", "bwrap")
    if in_own_tmp:
        own_tmp(kernel, limits["file_mb"] << 22)
        os.chdir("/tmp")
    for name, text in request["files"].items():
        os.makedirs(os.path.join("/tmp", os.path.dirname(name)), exist_ok=True)
        with open(os.path.join("/tmp", name), "x", encoding="utf-8") as file:
            file.write(text)
    given = _file_of(request["stdin"])
    for number, target in ((given, 0), (link, 1), (errors, 2)):
        os.dup2(number, target)
    os.closerange(3, 256)
    if way == "none":
        os.setsid()
    limit(**{name: limits[name] for name in ("cpu_s", "memory_mb", "file_mb", "open_files")})
    if way != "none":
        lose_rights(kernel, host_files=not in_own_tmp)
    text = {"encoding": "utf-8", "errors": "replace", "closefd": False}
    sys.stdin, sys.stdout, sys.stderr = open(0, **text), open(1, "w", **text), open(2, "w", 1, **text)  # noqa: SIM115
    sys.argv = ["program.py"]
    os._exit(_executed(request["program"]))


def _executed(program: str) -> int:
    """The exit status of a program run as `__main__`, with what an interpreter does at its end, but for freeing memory:
    that takes longer than most programs."""
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    code = 0
    try:
        exec(compile(program, "program.py", "exec"), module.__dict__)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as an interpreter does
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # closed by the program
            code = code or 1
    return code & 0xFF


def _file_of(text: str) -> int:
    """An open file with this text, at its beginning; nothing in the file system."""
    is_linux = sys.platform == "linux"
    number = os.memfd_create("stdin") if is_linux else os.dup(tempfile.TemporaryFile().fileno())  # noqa: SIM115
    with open(number, "wb", closefd=False) as file:
        file.write(text.encode("utf-8", "replace"))
    os.lseek(number, 0, os.SEEK_SET)
    return number
