"""A run as Python code sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlvr.errors import UserError
from rlvr.records.jsonl import read_metrics
from rlvr.records.rollouts import EpisodeRecord, read_rollouts, rollouts_path


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run folder and its results."""

    folder: Path
    num_steps: int
    finished: bool
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict, repr=False)
    """Functions given in Python, by their names in config.yaml."""

    @property
    def final(self) -> Path:
        """The trained model, in Hub format."""
        return self.folder / "final"

    @property
    def metrics(self) -> list[dict[str, float]]:
        """The lines of metrics.jsonl, one per step; line 0 is the evaluation before the first update."""
        return read_metrics(self.folder / "metrics.jsonl")

    def rollouts(self, step: int | None = None) -> list[EpisodeRecord]:
        """The recorded episodes of a step: samples and training data; None: the last recorded step.

        Raises UserError if the step was not recorded (`tracker.rollouts_every`).
        """
        folder = self.folder / "rollouts"
        written = sorted(int(path.name[5:].partition(".")[0]) for path in folder.glob("step_*.jsonl.gz"))
        chosen = max(written, default=None) if step is None else step
        if chosen not in written:
            raise UserError(f"{folder} has rollouts of steps {written}, not {step}: tracker.rollouts_every says which.")
        return read_rollouts(rollouts_path(folder, chosen))
