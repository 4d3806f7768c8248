"""Runs `rlvr diagnose`."""

from dataclasses import replace
from pathlib import Path

from rlvr.errors import UserError
from rlvr.places import check_one_run, near
from rlvr.records.history import is_run
from rlvr.trust.chain import Diagnosis, diagnosed


def diagnose(source: str, try_steps: int | None = None) -> Diagnosis:
    """The diagnosis, with a trial of the remedy over `try_steps` steps. UserError for a folder that is no run, has too
    few steps, or has nothing to try."""
    root = Path(source)
    if not root.is_dir():
        raise UserError(f"there is no folder {source}{near(root)}: name a run folder.")
    check_one_run(root)
    if not is_run(root) or not (root / "metrics.jsonl").is_file():
        raise UserError(f"{source} is no run folder to diagnose: it has no metrics.jsonl.")
    diagnosis = diagnosed(root)
    if try_steps is None:
        return diagnosis
    from rlvr.commands.diagnose.trial import tried  # torch

    return replace(diagnosis, trial=tried(source, diagnosis, try_steps))
