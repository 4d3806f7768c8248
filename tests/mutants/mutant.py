"""The record of one planted bug."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """Replace `old` (which occurs exactly once in `file`, a path under src/rlvr) by `new`; `test` must then fail."""

    pitfall: str
    file: str
    old: str
    new: str
    test: str
