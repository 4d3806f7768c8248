"""Ctrl-C and SIGTERM, of which the first asks a run to stop after its step, and errors as one sentence."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from rlvr.errors import UserError

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(kw_only=True)
class StopFlag:
    """`requested` is the number of the signal that asked to stop. The handler writes it, the loop polls `stopped`."""

    requested: int | None = None

    def stopped(self) -> bool:
        """Whether the run should save and end after this step."""
        return self.requested is not None

    @property
    def exit_code(self) -> int:
        """What a shell reports for a command that a signal ended: 130 for Ctrl-C, 143 for SIGTERM; 0 without one."""
        return 0 if self.requested is None else 128 + self.requested


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Within the block SIGTERM raises SystemExit with 143: whatever is open is closed, as with Ctrl-C."""

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

    `quiet`: one of several processes that get the signal; the run itself says once that it stops. Signals are ignored
    after the block: a launcher ends the others as soon as one has ended, and must not cut off what they say last.
    """
    flag = StopFlag()

    def handle(number: int, frame: FrameType | None) -> None:
        if flag.requested is not None:
            raise SystemExit(128 + number)
        flag.requested = number
        if not quiet:
            print("rlvr: stopping after this step; once more stops at once", file=sys.stderr, flush=True)

    previous = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield flag
    finally:
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_IGN if quiet else handler)


def sentence(error: UserError | OSError | MemoryError) -> str:
    """One line, control characters spelled out: a UserError as it is, `runs/x: no space left on device.`"""
    text = str(error)
    if isinstance(error, MemoryError):
        text = "out of memory; make the model, the vocabulary or the batch smaller."
    elif isinstance(error, OSError):
        what = f"{error.filename}: " if error.filename is not None else ""
        text = f"{what}{(error.strerror or text or type(error).__name__).lower()}."
    return shown(" ".join(text.split()))


def shown(text: str) -> str:
    """The text with its control characters spelled out, lines kept: `\\x1b[2J` reaches no terminal."""
    return "".join(char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1] for char in text)
