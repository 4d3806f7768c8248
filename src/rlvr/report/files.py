"""From run folders to a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rlvr.errors import UserError
from rlvr.report.history import is_run
from rlvr.report.page import write_page
from rlvr.report.run import Limits, run_page


@dataclass(frozen=True, kw_only=True)
class Report:
    """A page that was written: its size in bytes, the episodes in it and left out, sentences about what is damaged."""

    path: Path
    size: int
    num_episodes: int = 0
    num_left_out: int = 0
    notes: list[str] = field(default_factory=list)


def write_run_report(folders: Sequence[Path], output: Path | None = None, limits: Limits | None = None) -> Report:
    """Write the page of runs, finished or not; by default `report.html` in the first one's folder.

    Raises:
        UserError: one of them is no run folder, or the page cannot be written.
    """
    other = next((folder for folder in folders if not is_run(folder)), None)
    if other is not None:
        raise UserError(f"{other} is no run folder: it has no config.yaml, metrics.jsonl or rollouts/.")
    path = output or default_path(folders[0])
    made = run_page(folders, limits or Limits())
    size = write_page(path, made.page)
    return Report(path=path, size=size, num_episodes=made.kept, num_left_out=made.total - made.kept, notes=made.notes)


def default_path(source: Path) -> Path:
    """`runs/latest/report.html` for a folder, `records.html` for `records.jsonl`."""
    return source / "report.html" if source.is_dir() else source.with_suffix(".html")
