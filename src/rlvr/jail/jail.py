"""A jail: one process that forks a child for each program, and the host's side of both."""

import contextlib
import json
import os
import selectors
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import PurePosixPath
from typing import Literal

from rlvr.errors import UserError
from rlvr.jail.outcome import Limits, Outcome
from rlvr.jail.ways import WAYS, Way, command, remedy

USUAL = Limits()
_START_S, _GRACE_S = 30.0, 10.0
_MAX_ERRORS = 8_000
_CLEAN = {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1"}
"""All that the environment of a jail holds."""
_XCPU, _ALRM, _PROF, _KILL = -24, -14, -27, -9  # exit codes of children


class JailError(Exception):
    """The jail did not start, or its process ended."""


class Jail(contextlib.AbstractContextManager["Jail"]):
    """Runs one program after another, isolated by `way`; for one thread.

        with Jail("namespaces") as jail:
            jail.run("print(int(input()) + 1)", stdin="4")      # Outcome(status="ended", output="5\\n")

    JailError if it cannot start. Whatever a program does, the next one finds nothing of it.
    """

    def __init__(self, way: Way) -> None:
        self.way: Way = way
        self._start()

    def run(
        self, program: str, *, stdin: str = "", files: Mapping[str, str] | None = None, limits: Limits = USUAL
    ) -> Outcome:
        """Run the text of a Python program as `__main__`, in a process of its own; `files` are in its folder.

        Never raises for anything that a program does. If the jail's own process ends, which no program can make it do,
        it is started again, and the program is run once more.
        """
        files = dict(files or {})
        if any(PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts for name in files):
            return Outcome(status="error", message="names of files must lead into the program's own folder")
        if files and self.way not in ("bwrap", "namespaces"):
            return Outcome(status="error", message=f"isolation={self.way} has no place for files")
        request = json.dumps({"program": program, "stdin": stdin, "files": files}).encode()
        reason = ""
        for _ in range(2):
            try:
                return self._attempt(request, limits)
            except (OSError, ValueError, JailError) as error:
                reason = f"{type(error).__name__}: {error}"
                self.close()
                try:
                    self._start()
                except JailError as failure:
                    return Outcome(status="error", message=str(failure))
        return Outcome(status="error", message=f"the jail ended twice: {reason}")

    def close(self) -> None:
        self._control.close()  # the warden and its children end
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=2)
        self._process.kill()
        self._process.wait()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        try:
            line = command(self.way)
        except OSError as error:
            raise JailError(str(error)) from error
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                line,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=_CLEAN,
                cwd="/",
                start_new_session=True,  # Ctrl-C at the terminal must not reach it
            )
        assert self._process.stderr is not None
        with self._process.stderr as errors:
            try:
                failed = self._reply(_START_S)["failed"]
            except (OSError, ValueError, JailError):
                self._process.kill()
                failed = errors.read().decode(errors="replace").strip().rpartition("\n")[2] or "it did not start"
        if failed:
            self.close()
            raise JailError(failed)

    def _reply(self, timeout_s: float) -> dict[str, object]:
        self._control.settimeout(timeout_s)
        text = self._control.recv(1 << 16)
        if not text:
            raise JailError("its process ended")
        return json.loads(text)

    def _attempt(self, request: bytes, limits: Limits) -> Outcome:
        link, link_there = socket.socketpair()
        errors, errors_there = socket.socketpair()
        started = time.monotonic()
        with link, errors:
            with link_there, errors_there:
                socket.send_fds(
                    self._control, [json.dumps(asdict(limits)).encode()], [link_there.fileno(), errors_there.fileno()]
                )
            link.settimeout(limits.wall_s + _GRACE_S)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the report says why
                link.sendall(request)
                link.shutdown(socket.SHUT_WR)
            output, stderr, too_much = _read(link, errors, limits)
        report = self._reply(max(0.0, limits.wall_s - (time.monotonic() - started)) + _GRACE_S)
        return _outcome(report, output.decode(errors="replace"), stderr.decode(errors="replace"), too_much, limits)


def _read(link: socket.socket, errors: socket.socket, limits: Limits) -> tuple[bytearray, bytearray, bool]:
    """What a program writes to output and errors until it ends or writes too much."""
    output, stderr = bytearray(), bytearray()
    deadline = time.monotonic() + limits.wall_s + _GRACE_S
    with selectors.DefaultSelector() as selector:
        selector.register(link, selectors.EVENT_READ)
        selector.register(errors, selectors.EVENT_READ)
        while selector.get_map():
            events = selector.select(deadline - time.monotonic())
            if time.monotonic() > deadline:
                raise JailError("its process does not answer")
            for key, _ in events:
                try:
                    text = os.read(key.fd, 1 << 16)
                except ConnectionResetError:  # it ended before it read its input
                    text = b""
                if not text:
                    selector.unregister(key.fileobj)
                elif key.fileobj is link:
                    output += text
                else:
                    stderr += text
                    del stderr[:-_MAX_ERRORS]
            if len(output) > limits.output_bytes:
                return output, stderr, True
    return output, stderr, False


def _outcome(report: Mapping[str, object], output: str, stderr: str, too_much: bool, limits: Limits) -> Outcome:
    code, cpu_s = report["code"], report["cpu_s"]
    assert isinstance(cpu_s, float)
    message = next((line.strip() for line in reversed(stderr.splitlines()) if line.strip()), "")[:300]
    if too_much:
        return Outcome(status="raised", message=f"wrote more than {limits.output_bytes:,} bytes")
    if report["late"] or code in (_XCPU, _ALRM, _PROF) or (code == _KILL and cpu_s >= limits.cpu_s):
        return Outcome(status="timed out", output=output, message=message)
    if message.startswith("MemoryError") or code == _KILL:
        return Outcome(status="out of memory", output=output, message=message)
    if code != 0:
        return Outcome(status="raised", output=output, message=message or f"ended with code {code}")
    return Outcome(status="ended", output=output, message=message)


@cache
def chosen_way(isolation: Way | Literal["auto"]) -> Way:
    """The way that `isolation` stands for on this machine: tried, not guessed.

    UserError if it does not work here, with the remedy of this system.
    """
    if isolation == "none":
        return isolation
    reasons = []
    for way in WAYS if isolation == "auto" else (isolation,):
        try:
            Jail(way).close()
        except JailError as error:
            reasons.append(f"{way}: {error}")
        else:
            return way
    raise UserError(f"no way of isolating programs works here ({'; '.join(reasons)}): {remedy()}")
