"""Runs `rlvr train` with several seeds, one after another, and prints the results as a Markdown table.

    python benchmarks/rpn_seeds.py [--seeds 1-10] [--config-name rpn] [--keep runs/seeds] [KEY=VALUE ...]

Seconds include the whole command: start, warm start, training, evaluations, saving. CPU seconds and peak memory are the
operating system's figures for the process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ACCURACY = "eval/rpn/accuracy"
TARGET = 0.95


@dataclass(frozen=True, kw_only=True)
class SeedResult:
    """One run."""

    seed: int
    evaluations: tuple[dict[str, Any], ...]  # lines of metrics.jsonl with an evaluation
    wall_s: float
    cpu_s: float
    peak_mb: float

    @property
    def first_step_at_target(self) -> int | None:
        """The step of the first evaluation that reached the target."""
        return next((line["step"] for line in self.evaluations if line[ACCURACY] >= TARGET), None)

    @property
    def reached(self) -> bool:
        """Whether the last evaluation reached the target."""
        return self.evaluations[-1][ACCURACY] >= TARGET


def run(seed: int, config_name: str, folder: Path, overrides: Sequence[str]) -> SeedResult:
    """Run one `rlvr train`. SystemExit if it fails."""
    command = [sys.executable, "-m", "rlvr", "train", "--config-name", config_name, f"seed={seed}", f"run_dir={folder}"]
    with tempfile.TemporaryFile("w+") as log:
        begin = time.perf_counter()
        process = subprocess.Popen([*command, *overrides], stdout=log, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            log.seek(0)
            raise SystemExit(f"{' '.join(command)} failed:\n{log.read()[-3000:]}")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return SeedResult(
        seed=seed,
        evaluations=tuple(line for line in lines if ACCURACY in line),
        wall_s=wall,
        cpu_s=usage.ru_utime + usage.ru_stime,
        peak_mb=usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10),
    )


def accuracy(line: dict[str, Any], name: str = ACCURACY) -> str:
    """`0.962 (0.941 - 0.975)`, with its 95 % interval."""
    if name not in line:
        return "-"
    return f"{line[name]:.3f} ({line[f'{name}_low']:.3f} - {line[f'{name}_high']:.3f})"


def row(result: SeedResult) -> str:
    """A table row."""
    first, last = result.evaluations[0], result.evaluations[-1]
    step = "-" if result.first_step_at_target is None else str(result.first_step_at_target)
    cells = [
        str(result.seed),
        accuracy(first),
        accuracy(last),
        accuracy(last, f"{ACCURACY}_3_operators"),
        step,
        f"{result.wall_s:.1f}",
        f"{result.cpu_s:.1f}",
        f"{result.peak_mb:.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def summary(results: Sequence[SeedResult]) -> str:
    """The last line: number of seeds that reached the target, and medians."""

    def median(values: Sequence[float]) -> float:
        return statistics.median(values)

    examples = results[0].evaluations[-1]["eval/rpn/num_examples"]
    return (
        f"{sum(r.reached for r in results)} of {len(results)} seeds reached {TARGET} (greedy, {examples:.0f} held-out "
        f"examples). Medians: accuracy {median([r.evaluations[0][ACCURACY] for r in results]):.3f} -> "
        f"{median([r.evaluations[-1][ACCURACY] for r in results]):.3f}, {median([r.wall_s for r in results]):.1f} s, "
        f"{median([r.cpu_s for r in results]):.1f} CPU s, {median([r.peak_mb for r in results]):.0f} MB."
    )


def seeds_of(text: str) -> list[int]:
    """`"3"`, `"1-10"` or `"1,4,7"`."""
    if "-" in text:
        first, last = text.split("-")
        return list(range(int(first), int(last) + 1))
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description="Train with several seeds and print the results.")
    parser.add_argument("--seeds", type=seeds_of, default=seeds_of("1-10"), help="1-10, or 1,4,7 (default: 1-10)")
    parser.add_argument("--config-name", default="rpn", help="configuration of every run (default: rpn)")
    parser.add_argument("--keep", type=Path, help="folder for the run folders (default: temporary)")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="passed on to every run")
    args = parser.parse_args()
    print("| seed | accuracy before | after | 3 operators | first step >= 0.95 | wall s | CPU s | peak RSS, MB |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    results = []
    with tempfile.TemporaryDirectory() as temporary:
        root = args.keep or Path(temporary)
        for seed in args.seeds:
            results.append(run(seed, args.config_name, root / f"{args.config_name}_seed_{seed}", args.overrides))
            print(row(results[-1]), flush=True)
    print(f"\n{summary(results)}")


if __name__ == "__main__":
    main()
