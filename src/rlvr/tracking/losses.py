"""The losses of a warm start: on the console, and in the run's folder."""

from dataclasses import dataclass
from pathlib import Path

from rlvr.records.files import writing
from rlvr.records.jsonl import MetricsFile
from rlvr.tracking.console import Console

NAME = "warm_start.jsonl"  # `{"step": 100, "loss": 0.25}`; none of a warm start from the cache


@dataclass(frozen=True, kw_only=True)
class Losses:
    console: Console
    folder: Path
    num_steps: int
    writes: bool  # on rank 0

    def __post_init__(self) -> None:
        """Begin; the file of a warm start that was stopped goes."""
        self.console.stage("warm start", self.num_steps)
        if self.writes:
            with writing(self.folder):
                (self.folder / NAME).unlink(missing_ok=True)

    def show(self, step: int, loss: float) -> None:
        self.console.advance(step, {"loss": loss})
        if self.writes:
            MetricsFile(self.folder / NAME).append(step, {"loss": loss})
