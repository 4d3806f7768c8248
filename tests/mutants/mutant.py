"""The record of one planted bug."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """Replace `old` (which occurs exactly once in `file`, a path under src/rlvr) by `new`; `test` must then fail.

    Where the library `needs` is not installed, the test is skipped, and so is the mutant.
    """

    pitfall: str
    file: str
    old: str
    new: str
    test: str
    needs: str | None = None
