"""From run folders to a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rlvr.errors import UserError
from rlvr.report.history import is_run
from rlvr.report.page import Limits, Page, write_page
from rlvr.report.run import run_page


@dataclass(frozen=True, kw_only=True)
class Report:
    """A written page: its size in bytes, the episodes in it and left out, sentences about what is damaged."""

    path: Path
    size: int
    num_episodes: int = 0
    num_left_out: int = 0
    notes: Sequence[str] = field(default_factory=list)


def write_run_report(folders: Sequence[Path], output: Path | None = None, limits: Limits | None = None) -> Report:
    """Write the page of runs, finished or not; by default `report.html` in the first one's folder.

    Raises:
        UserError: one of them is no run folder, or the page cannot be written.
    """
    other = next((folder for folder in folders if not is_run(folder)), None)
    if other is not None:
        raise UserError(f"{other} is no run folder: it has no config.yaml, metrics.jsonl or rollouts/.")
    return write_report(run_page(folders, limits or Limits()), folders[0], output)


def write_report(page: Page, source: Path, output: Path | None = None) -> Report:
    """Write a page; by default to `report.html` in the folder `source`, or beside the file: `F.html` for `F.jsonl`."""
    path = output or (source / "report.html" if source.is_dir() else source.with_suffix(".html"))
    size = write_page(path, page)
    left_out = page.total - page.kept
    return Report(path=path, size=size, num_episodes=page.kept, num_left_out=left_out, notes=page.notes)
