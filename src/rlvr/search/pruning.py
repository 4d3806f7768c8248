"""Pruning: a run ends early when its held-out interval lies below that of the median run beside it.

At a step that evaluates, a run is pruned if the upper end of its 95 % interval is below the lower end of the interval
of the median run at the same step: of the others that have reached it and have not failed, at least three, running and
pruned ones included, the one with the middle score, the lower one of two. Two steps prune nothing: step 0, which is
before the first update, and the last one, where nothing is left to save.

The best run in place of the median one saves more and ends the wrong runs: one that rises fast and then collapses ends
all others (benchmarks/results/sweep.md).
"""

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rlvr.config import Config
from rlvr.errors import ConfigError, UserError
from rlvr.evaluation.intervals import Interval
from rlvr.records.files import ERROR, PRUNED, write_atomically
from rlvr.records.jsonl import read_metrics
from rlvr.report.sweep import runs_of

FEWEST = 3  # other runs
MAX_LINE = 1 << 20  # bytes of a line of metrics


def scores(run: Path, name: str) -> dict[int, Interval]:
    """The held-out scores of a run folder by step: metric `name`, e.g. `eval/rpn/accuracy`, and its interval, of NaN if
    it has none."""
    file = run / "metrics.jsonl"
    rows = read_metrics(file) if file.is_file() else []
    return {int(row["step"]): _interval(row, name) for row in rows if math.isfinite(row.get(name, math.nan))}


def _interval(row: Mapping[str, float], name: str) -> Interval:
    low, high = row.get(f"{name}_low", math.nan), row.get(f"{name}_high", math.nan)
    return Interval(value=row[name], low=low, high=high)


def median_above(own: Interval, others: Mapping[str, Interval]) -> str | None:
    """The name of the median of the others, if there are enough and `own` lies wholly below it."""
    if len(others) < FEWEST:
        return None
    median = sorted(others, key=lambda name: others[name].value)[(len(others) - 1) // 2]
    return median if own.is_below(others[median]) else None


def check_pruning(config: Config, folder: str) -> None:
    """ConfigError for a run that cannot be pruned against the runs in a folder."""
    if not Path(folder).is_dir():
        raise ConfigError(f"--prune-against {folder}: there is no such folder; name the one with the other runs.")
    if config.run_dir is None:
        raise ConfigError(f"--prune-against {folder}: needs the run's own folder; add run_dir=FOLDER.")
    check_measured(config, with_interval=True)


def check_measured(config: Config, *, with_interval: bool) -> None:
    """ConfigError for a run without held-out scores, or without their intervals."""
    headline = config.evaluation.headline
    if config.evaluation.every is None:
        raise ConfigError("evaluation.every=null: gives no held-out scores to compare runs by; leave it out.")
    if with_interval and headline.startswith("part_"):
        raise ConfigError(
            f"evaluation.headline={headline}: has no interval to prune by; choose accuracy, or sweep.prune=false."
        )


@dataclass(kw_only=True)
class Pruner:
    """Says after each step whether the run in `folder` is pruned, and then writes why to its `pruned.txt`."""

    folder: Path
    beside: Path  # the folder of the runs that it is compared with
    name: str  # the metric
    max_steps: int
    pruned: bool = field(default=False, init=False)
    _judged: int = field(default=0, init=False)

    def __call__(self) -> bool:
        if not self._has_evaluated():
            return False
        intervals = scores(self.folder, self.name)
        step = max(intervals, default=0)
        if not self._judged < step < self.max_steps:
            return False
        self._judged = step
        others = {run.name: self._scores_of(run) for run in runs_of(self.beside, depth=1) if self._counts(run)}
        at_step = {name: found[step] for name, found in others.items() if step in found}
        median = median_above(intervals[step], at_step)
        if median is None:
            return False
        metric = self.name.rpartition("/")[2].replace("_", " ")
        above = f"{at_step[median]} of {median}, the median of {len(at_step)}"
        said = f"held-out {metric} {intervals[step]} at step {step} lies below {above}\n"
        write_atomically(self.folder / PRUNED, said.encode())
        self.pruned = True
        return True

    def _has_evaluated(self) -> bool:
        """Whether the last step did, by the last line alone: this is asked after every step."""
        file = self.folder / "metrics.jsonl"
        if not file.is_file():
            return False
        with file.open("rb") as metrics:
            metrics.seek(max(0, file.stat().st_size - MAX_LINE))
            lines = metrics.read().split(b"\n")
        return json.dumps(f"{self.name}_low").encode() in lines[-2] if len(lines) > 1 else False

    def _scores_of(self, run: Path) -> dict[int, Interval]:
        """A damaged file of another run is no reason for this one to fail."""
        with suppress(UserError, OSError):
            return scores(run, self.name)
        return {}

    def _counts(self, run: Path) -> bool:
        return run.resolve() != self.folder.resolve() and not (run / ERROR).exists()
