"""`rlvr diagnose` as a function."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rlvr.errors import errors_from_here
from rlvr.run.result import Run

if TYPE_CHECKING:
    from rlvr.trust.chain import Diagnosis


@errors_from_here
def diagnose(run: Run | str | Path, *, try_steps: int | None = None) -> Diagnosis:
    """Run `rlvr diagnose`: `causes`, the likeliest first, each with `score`, `evidence`, `remedy` and `overrides`.

    `verdict` is a sentence, `top` the cause that it names or None. The run is only read.

    Args:
        run: A run or its folder.
        try_steps: Also train this many steps with the remedy of the first cause, and as many without it: `trial`.

    Raises UserError for a folder that is no run, has too few steps, or has nothing to try.
    """
    from rlvr.commands.diagnose.body import diagnose as judge

    return judge(str(run.folder if isinstance(run, Run) else run), try_steps)
