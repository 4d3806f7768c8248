"""Tables of `vs_trl_real.py`."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from typing import Any

import torch
import transformers
from vs_trl_report import table

Line = dict[str, Any]


def counted(lines: Sequence[Line], field: str) -> list[float]:
    """The steps but each job's first."""
    return [step[field] for line in lines for step in line["steps"][1:]]


def by_setting(lines: Sequence[Line], job: str) -> list[list[Line]]:
    """A job's lines, one list for each of its settings; the fastest first."""
    settings: dict[tuple[Any, ...], list[Line]] = {}
    for line in lines:
        if line["job"] == job and len(line["steps"]) > 1:
            sizes = (*size_of(line), *line["set"])
            settings.setdefault((*sizes, line.get("parts"), line.get("checkpointing")), []).append(line)
    return sorted(settings.values(), key=lambda of: statistics.median(counted(of, "wall")))


def size_of(line: Line) -> tuple[Any, ...]:
    return line["prompts"], line["group"], line["precision"]


def row(name: str, lines: Sequence[Line]) -> str:
    cells = [f"{statistics.median(counted(lines, field)):.1f}" for field in ("wall", "cpu", "generation", "update")]
    memory = max(line["memory_mb"] for line in lines) / 1000
    loads = [load for line in lines for load in line["load"]]
    tokens, reward, dead = (statistics.fmean(counted(lines, f)) for f in ("tokens", "reward", "dead_groups"))
    number = len(counted(lines, "wall"))
    return (
        f"| {name} | {' | '.join(cells)} | {memory:.2f} | {tokens:.0f} | {reward:.2f} | {dead:.0%} | {number}"
        f" | {min(loads):.1f} - {max(loads):.1f} |"
    )


def name_of(line: Line) -> str:
    side, mode = line["job"].split(":")
    sizes = f"{mode}, {line['precision']}, {line['prompts']} x {line['group']}"
    if side == "rlvr":
        return ", ".join(("rlvr", sizes, *line["set"]))
    rows = line["prompts"] * line["group"] // line["parts"]
    return f"TRL, {sizes}, {rows} rows a pass{', recomputed' if line['checkpointing'] else ''}"


def against(lines: Sequence[Line], mode: str) -> list[str]:
    """TRL's settings over rlvr, of the same sizes; the fastest first."""
    ours = {size_of(of[0]): of for of in by_setting(lines, f"rlvr:{mode}")}
    rows = []
    for theirs in by_setting(lines, f"trl:{mode}"):
        mine = ours.get(size_of(theirs[0]))
        if mine is None:
            continue
        wall, cpu = (
            statistics.median(counted(theirs, f)) / statistics.median(counted(mine, f)) for f in ("wall", "cpu")
        )
        memory = max(line["memory_mb"] for line in mine) / max(line["memory_mb"] for line in theirs)
        rows.append(f"| {name_of(theirs[0])} | **{wall:.2f}** | {cpu:.2f} | **{memory:.2f}** |")
    return rows


def scores(lines: Sequence[Line]) -> list[str]:
    jobs = {line["final"]: f"{name_of(line)}, {len(line['steps'])} steps" for line in lines if "final" in line}
    return [f"| {jobs.get(line['model'], 'before')} | {line['scores']} |" for line in lines if line["job"] == "eval"]


def markdown(lines: Sequence[Line]) -> str:
    """Everything."""
    jobs = [of for side in ("rlvr", "trl") for mode in ("full", "lora") for of in by_setting(lines, f"{side}:{mode}")]
    head = (
        "| side | s/step | CPU s/step | generation | update | peak RSS, GB | sampled tokens | mean reward "
        "| groups without spread | steps | load average |"
    )
    versions = next((line["versions"] for line in lines if "versions" in line), {})
    machine = (
        f"{platform.machine()}, {os.cpu_count()} cores; rlvr: torch {torch.__version__}, transformers "
        f"{transformers.__version__}; TRL: {', '.join(f'{name} {version}' for name, version in versions.items())}."
    )
    ratios = [ratio for mode in ("full", "lora") for ratio in against(lines, mode)]
    return "\n\n".join(
        [
            machine,
            table(head, [row(name_of(of[0]), of) for of in jobs]),
            table("| rlvr against | times faster | by CPU seconds | of its peak memory |", ratios),
            table("| held-out exact match | |", scores(lines)),
        ]
    )
