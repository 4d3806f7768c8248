"""The records of a run in the jail."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a program may use: `Limits(wall_s=6.0, cpu_s=6, memory_mb=512)`; beyond `output_bytes` it is
    ended."""

    wall_s: float = 6.0
    cpu_s: int = 6
    memory_mb: int = 512
    file_mb: int = 16  # of a file; all of /tmp together has four times as much
    open_files: int = 64
    output_bytes: int = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a program ended: `Outcome(status="raised", message="ZeroDivisionError: division by zero")`.

    `ended`: it ran to its end with exit status 0, which says nothing about what it wrote. `error`: the jail itself
    failed, and the program is not to blame. `output` is what it wrote to its standard output, `message` the last line
    of its standard error: both are the program's own words.
    """

    status: Literal["ended", "raised", "timed out", "out of memory", "error"]
    output: str = ""
    message: str = ""
