"""`rlvr train` as a job of several processes, started by torchrun as a user would."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.system.harness import ENVIRONMENT, Finished

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")
PATIENCE_S = 150.0

THEIRS = re.compile(r"^([EWI]\d{4} |Traceback|  |torch\.|---|===|\[\d|Failures:|Root Cause|rlvr FAILED|$)")
"""Lines that torchrun writes when a process fails, whatever the process has said."""


class Job:
    """`Job(2, "train", ...)`: a running job; its output goes to files in the folder."""

    def __init__(self, num_processes: int, *words: str, cwd: Path, launcher: tuple[str, ...] | None = None) -> None:
        start = launcher or (*TORCHRUN, "--nproc-per-node", str(num_processes))
        self._cwd = cwd
        with (cwd / "out").open("w") as out, (cwd / "err").open("w") as err:
            environment = os.environ | ENVIRONMENT
            command = [*start, "-m", "rlvr", *words]
            self._process = subprocess.Popen(command, cwd=cwd, env=environment, stdout=out, stderr=err)

    def wait(self, timeout_s: float = PATIENCE_S) -> Finished:
        """How it ended; TimeoutExpired, after killing it, if it does not."""
        try:
            code = self._process.wait(timeout_s)
        finally:
            for pid in [*self.ranks.values(), self._process.pid] if self._process.poll() is None else []:
                os.kill(pid, signal.SIGKILL)
        return Finished(code=code, out=(self._cwd / "out").read_text(), err=(self._cwd / "err").read_text())

    def send(self, number: int, *, rank: int | None = None) -> None:
        """A signal to one of the processes, or to torchrun."""
        os.kill(self._process.pid if rank is None else self.ranks[rank], number)

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
        """Poll; TimeoutError if the job ends before, or the time does."""
        end = time.monotonic() + timeout_s
        while not condition():
            if self._process.poll() is not None or time.monotonic() > end:
                raise TimeoutError((self._cwd / "err").read_text())
            time.sleep(0.01)

    @property
    def ranks(self) -> dict[int, int]:
        """The pid of each rank: they are children of the launcher."""
        found = {}
        children = Path(f"/proc/{self._process.pid}/task").glob("*/children")
        for pid in " ".join(path.read_text() for path in children).split():
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            rank = next((v.split(b"=")[1] for v in variables if v.startswith(b"RANK=")), None)
            if rank is not None:
                found[int(rank)] = int(pid)
        return found


def said(err: str) -> list[str]:
    """What our processes wrote to stderr, without what torchrun adds."""
    return [line for line in err.splitlines() if not THEIRS.match(line)]
