"""A child process that answers every line with a line, and a time limit for each answer."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlvr import registry
from rlvr.settings import dumped
from rlvr.tracking.trackers.base import Tracker


class TrackerError(Exception):
    """A tracker failed, or takes too long; the message is a clause: `no answer to `log` within 60 s`."""


class TrackerProcess:
    """One tracker's `worker`, with what it prints in `log`.

    It has a session of its own: Ctrl-C in the terminal is for the run, which then tells the tracker how it ended.
    """

    def __init__(self, tracker: Tracker, log: Path) -> None:
        folders = json.dumps([os.getcwd(), *registry.folders])
        worker = ("rlvr.tracking.trackers.worker", tracker.name, json.dumps(dumped(tracker)), folders)
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-W", "ignore", "-m", *worker],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._in, False)
        self._rest = b""

    def ask(self, message: Mapping[str, Any] | None, limit_s: float) -> dict[str, Any]:
        """The answer to a message, or, without one, the next line.

        Raises:
            TrackerError: an error of the tracker, no answer within `limit_s`, or the process has ended.
        """
        deadline = time.monotonic() + limit_s
        try:
            if message is not None:
                self._write((json.dumps(message) + "\n").encode(), deadline)
            answer = json.loads(self._read(deadline))
        except TimeoutError:
            what = f" to `{message['kind']}`" if message is not None else ""
            raise TrackerError(f"no answer{what} within {limit_s:g} s") from None
        except (OSError, ValueError):
            raise TrackerError("its process has ended") from None
        if "error" in answer:
            raise TrackerError(answer["error"])
        return answer

    def terminate(self) -> None:
        """Tell it that the run was asked to stop; it goes on until `end`."""
        with suppress(OSError):
            self._process.terminate()

    def kill(self) -> None:
        """End it and all that it has started, now. An `ask` that waits in another thread fails."""
        with suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def end(self, limit_s: float) -> None:
        """No more messages: it ends by itself, or is killed after `limit_s`."""
        for file in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if file is not None:
                    file.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(limit_s)
        self.kill()

    def _write(self, data: bytes, deadline: float) -> None:
        while data:
            if not select.select([], [self._in], [], _left(deadline))[1]:
                raise TimeoutError
            data = data[os.write(self._in, data) :]

    def _read(self, deadline: float) -> bytes:
        while b"\n" not in self._rest:
            if not select.select([self._out], [], [], _left(deadline))[0]:
                raise TimeoutError
            read = os.read(self._out, 1 << 16)
            if not read:
                raise BrokenPipeError
            self._rest += read
        line, self._rest = self._rest.split(b"\n", 1)
        return line


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
