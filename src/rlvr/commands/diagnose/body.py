"""Runs `rlvr diagnose`."""

from pathlib import Path

from rlvr.errors import UserError
from rlvr.report.diagnosis import Diagnosis, diagnosed
from rlvr.report.history import is_run
from rlvr.run.sources import near


def diagnose(source: str) -> Diagnosis:
    """UserError for a folder that is no run, or has too few steps."""
    root = Path(source)
    if not root.is_dir():
        raise UserError(f"there is no folder {source}{near(root)}: name a run folder.")
    if not is_run(root) or not (root / "metrics.jsonl").is_file():
        raise UserError(f"{source} is no run folder to diagnose: it has no metrics.jsonl.")
    return diagnosed(root)
