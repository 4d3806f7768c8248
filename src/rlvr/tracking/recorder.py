"""Records a run's metrics and rollouts in its folder, trackers and console."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from rlvr.core.errors import NonFiniteError
from rlvr.core.rollout import SampledGroups
from rlvr.errors import UserError
from rlvr.records.files import writing
from rlvr.records.jsonl import MetricsFile
from rlvr.records.rollouts import Decode, make_records, rollouts_path, write_rollouts
from rlvr.tracking.console import Console
from rlvr.tracking.episodes import EpisodePrinter
from rlvr.tracking.rollout_metrics import rollout_metrics
from rlvr.tracking.settings import TrackerSettings
from rlvr.tracking.trackers.fanout import Trackers
from rlvr.types import TokenBatch


@dataclass(frozen=True, kw_only=True)
class SilentRecorder:
    """The recorder of ranks other than 0."""

    folder: Path

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Nothing."""

    def rollouts(self, step: int, rollouts: SampledGroups, batch: TokenBatch) -> dict[str, float]:
        """Nothing."""
        return {}

    def non_finite(self, step: int, batch: TokenBatch, error: NonFiniteError) -> Exception:
        """Save the batch to `non_finite/step_000012.safetensors`; returns the error that names it.

        All ranks write the same file: the fastest one ends the run.
        """
        path = self.folder / "non_finite" / f"step_{step:06d}.safetensors"
        fields = {name: getattr(batch, name) for name in batch.__dataclass_fields__} | dict(batch.columns)
        temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            tensors = {name: value.contiguous() for name, value in fields.items() if isinstance(value, Tensor)}
            save_file(tensors, temporary)
            temporary.replace(path)
        rows = ", ".join(map(str, error.rows[:8])) + (", ..." if len(error.rows) > 8 else "")
        return UserError(
            f"{error.what} of step {step} is not finite; the batch is kept in {path} (rows {rows}): look at them, "
            "or start another run with a lower trainer.learning_rate, from the last checkpoint if you like "
            "(model=hf model.name_or_path=CHECKPOINT/model)"
        )


@dataclass(frozen=True, kw_only=True)
class FolderRecorder(SilentRecorder):
    """The loop's recorder: metrics.jsonl, rollouts/, trackers, console."""

    metrics_file: MetricsFile
    console: Console
    settings: TrackerSettings
    decode: Decode
    printer: EpisodePrinter | None = None
    trackers: Trackers | None = None

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.metrics_file.append(step, metrics)
        if self.trackers is not None:
            self.trackers.log(step)
        self.console.log(step, metrics)

    def rollouts(self, step: int, rollouts: SampledGroups, batch: TokenBatch) -> dict[str, float]:
        """Metrics, and a file on every `rollouts_every`-th step, including the first; a printer shows every step."""
        metrics = rollout_metrics(rollouts.groups, rollouts.num_refilled, rollouts.num_dropped)
        every, limit = self.settings.rollouts_every, self.settings.rollouts_max_groups
        is_due = every is not None and (step == 1 or step % every == 0)
        if not is_due and self.printer is None:
            return metrics
        groups = rollouts.groups if self.printer else rollouts.groups[:limit]
        records = make_records(groups, batch, self.decode)
        if self.printer is not None:
            self.printer.show(step, groups, records)
        if is_due:
            kept = [record for record in records if limit is None or record.group < limit]
            write_rollouts(rollouts_path(self.folder / "rollouts", step), kept)
            if self.trackers is not None:
                self.trackers.completions(step, kept)
        return metrics
