"""Tables of `laptop.py`."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from vs_trl_report import StepTimes, table


@dataclass(frozen=True, kw_only=True)
class Side:
    """Medians over the counted steps of one side."""

    name: str
    wall: float
    cpu: float
    generation: float  # seconds
    update: float
    tokens: float  # sampled in a step, the same in every one
    memory_mb: float
    steps: int


def trl_side(name: str, steps: Sequence[StepTimes]) -> Side:
    """Without the first step."""
    counted = steps[1:]
    return Side(
        name=name,
        wall=statistics.median(step.wall for step in counted),
        cpu=statistics.median(step.cpu for step in counted),
        generation=statistics.median(step.generation for step in counted),
        update=statistics.median(step.update for step in counted),
        tokens=statistics.fmean(step.tokens for step in counted),
        memory_mb=steps[-1].memory_mb,
        steps=len(counted),
    )


def rlvr_side(times: Sequence[tuple[float, float, float]], metrics: Sequence[Mapping[str, float]]) -> Side:
    """Without the first step; `metrics` has a line for the start, too."""
    counted, rows = times[1:], metrics[2:]
    return Side(
        name="rlvr",
        wall=statistics.median(wall for wall, _, _ in counted),
        cpu=statistics.median(cpu for _, cpu, _ in counted),
        generation=statistics.median(row["time/generation_share"] * row["time/step_s"] for row in rows),
        update=statistics.median(row["time/update_share"] * row["time/step_s"] for row in rows),
        tokens=statistics.fmean(row["time/tokens_per_s"] * row["time/step_s"] for row in rows),
        memory_mb=times[-1][2],
        steps=len(counted),
    )


def file_sizes(run: Path) -> dict[str, int]:
    """Bytes of `final/` and of the last checkpoint."""
    folders = {"final": run / "final", "checkpoint": max((run / "checkpoints").glob("step_*"))}
    return {
        name: sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        for name, folder in folders.items()
    }


def markdown(sides: Sequence[Side], sizes: Mapping[str, int], *, threads: int, versions: Mapping[str, str]) -> str:
    """Everything."""
    ours = sides[0]
    head = "| side | s/step | CPU s/step | generation | update | sampled tokens | peak RSS, MB | steps |"
    rows = [
        f"| {s.name} | {s.wall:.1f} | {s.cpu:.1f} | {s.generation:.1f} | {s.update:.1f} | {s.tokens:.0f}"
        f" | {s.memory_mb:.0f} | {s.steps} |"
        for s in sides
    ]
    ratios = [
        f"| {s.name} | **{s.wall / ours.wall:.2f}** | {s.cpu / ours.cpu:.2f} | {s.memory_mb / ours.memory_mb:.2f} |"
        for s in sides[1:]
    ]
    machine = (
        f"{platform.machine()}, {os.cpu_count()} cores, {threads} thread(s) each, load average at the end "
        f"{os.getloadavg()[0]:.1f}; rlvr: torch {torch.__version__}, transformers {transformers.__version__}; TRL: "
        f"{', '.join(f'{name} {version}' for name, version in versions.items())}."
    )
    disk = ", ".join(f"`{name}` {size / 1e6:.1f} MB" for name, size in sizes.items())
    return "\n\n".join(
        [
            machine,
            table(head, rows),
            table("| rlvr against | times faster | by CPU seconds | times less memory |", ratios),
            f"On the disk: {disk}.",
        ]
    )
