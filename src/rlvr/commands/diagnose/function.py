"""`rlvr diagnose` as a function."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rlvr.errors import errors_from_here
from rlvr.run.result import Run

if TYPE_CHECKING:
    from rlvr.report.diagnosis import Diagnosis


@errors_from_here
def diagnose(run: Run | str | Path) -> Diagnosis:
    """Run `rlvr diagnose`: `causes`, the likeliest first, each with `score`, `evidence`, `remedy` and `overrides`.

    `verdict` is a sentence, `top` the cause that it names or None. The run is only read.

    Raises UserError for a folder that is no run, or has too few steps.
    """
    from rlvr.commands.diagnose.body import diagnose as judge

    return judge(str(run.folder if isinstance(run, Run) else run))
