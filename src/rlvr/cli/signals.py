"""Ctrl-C, SIGTERM and SIGHUP: the first one asks a run to stop after its step. Errors as one sentence."""

import os
import signal
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from rlvr.errors import UserError
from rlvr.printable import printable

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # the last one: a closed terminal or ssh


@dataclass(kw_only=True)
class StopFlag:
    """`requested` is the signal number of a stop request, written by the handler; the loop polls `stopped`."""

    requested: int | None = None

    def stopped(self) -> bool:
        """Whether the run should save and end after this step."""
        return self.requested is not None

    @property
    def exit_code(self) -> int:
        """What a shell reports for a command ended by a signal: 130 Ctrl-C, 143 SIGTERM, 129 SIGHUP; 0 without one."""
        return 0 if self.requested is None else 128 + self.requested


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Within the block SIGTERM raises SystemExit(143), so that resources are closed as with Ctrl-C."""

    def handle(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def stop_on_signals(*, quiet: bool = False) -> Iterator[StopFlag]:
    """Within the block, the first signal sets the flag; the second raises SystemExit with its exit code.

    `quiet`: another process of the run reports the stop. Signals stay ignored after the block: a launcher signals all
    processes when one ends, and must not cut off their last output.
    """
    flag = StopFlag()

    def handle(number: int, frame: FrameType | None) -> None:
        if flag.requested is not None:
            raise SystemExit(128 + number)
        flag.requested = number
        if number == signal.SIGHUP:
            _leave_terminal()
        if not quiet:
            print("rlvr: stopping after this step; once more stops at once", file=sys.stderr, flush=True)

    nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    caught = SIGNALS[:-1] if nohup else SIGNALS
    previous = {number: signal.signal(number, handle) for number in caught}
    try:
        yield flag
    finally:
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_IGN if quiet else handler)


def _leave_terminal() -> None:
    """Write to nowhere what would go to the terminal: it has gone, and writing to it fails."""
    for stream in (1, 2):
        if stat.S_ISCHR(os.fstat(stream).st_mode):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)


def sentence(error: UserError | OSError | MemoryError) -> str:
    """One line, control characters escaped: a UserError unchanged, or `runs/x: no space left on device.`"""
    text = str(error)
    if isinstance(error, MemoryError):
        text = "out of memory; make the model, the vocabulary or the batch smaller."
    elif isinstance(error, OSError):
        what = f"{error.filename}: " if error.filename is not None else ""
        text = f"{what}{(error.strerror or text or type(error).__name__).lower()}."
    return printable(" ".join(text.split()))
