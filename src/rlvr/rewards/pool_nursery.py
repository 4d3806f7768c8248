"""The pool's hold on the process that forks and kills its workers (what runs there: `pool_worker.py`)."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from typing import Any

_BOOT = (
    "import json, sys; fd, parent, memory, path = map(json.loads, sys.argv[1:]); sys.path[:] = path; "
    "from rlvr.rewards.pool_worker import main; main(fd, parent, memory)"
)
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""A worker is one core's work; the buffers of more threads would also use up its address space."""


class Nursery:
    """The process that forks and kills workers."""

    def __init__(self, max_memory_mb: int) -> None:
        self.control, theirs = socket.socketpair()
        path = [os.path.abspath(entry) for entry in [*sys.path, os.getcwd()]]
        arguments = [theirs.fileno(), os.getpid(), max_memory_mb, path]
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", _BOOT, *map(json.dumps, arguments)],
            env=os.environ | _ONE_THREAD,
            stdin=subprocess.DEVNULL,
            stdout=2,  # what a verifier prints must not mix with results on stdout
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C at the terminal does not reach it
        )
        theirs.close()

    def tell(self, command: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
        """Send a command. A nursery that has died is noticed elsewhere."""
        with contextlib.suppress(OSError):
            socket.send_fds(self.control, [json.dumps(command).encode() + b"\n"], fds)

    def end(self) -> None:
        """Let it kill all workers; returns when nothing is left."""
        self.control.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:  # it hangs in an import
            self.process.kill()
            self.process.wait()
