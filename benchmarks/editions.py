"""Compares two checkouts of rlvr: times of a run, a step, the engine, verifiers and environments.

    git worktree add /tmp/before 0fe98d2
    OMP_WAIT_POLICY=PASSIVE OMP_NUM_THREADS=1 python benchmarks/editions.py /tmp/before . [--repeats 5] [--only train]

Each round measures the first checkout, then the second, with one Python and its own scripts; figures are medians of the
rounds. "ratio" above 1 means that the second one is better.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

SHORT = ("warm_start.num_steps=200", "warm_start.final_phase_steps=50", "trainer.max_steps=20", "tracker.console=none")


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A command of a checkout, and the parser of its figures: `{"engine, d128 + 64, tokens/s": 14582.0}`."""

    argv: tuple[str, ...]  # after `python`
    figures: Callable[[str, float, Path], Mapping[str, float]]  # from its output, its seconds and its working folder


def train(name: str, *overrides: str) -> Workload:
    """A run: its seconds, and those of a median step."""

    def figures(output: str, seconds: float, folder: Path) -> dict[str, float]:
        steps = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()][1:]
        return {f"{name}, s": seconds, f"{name}, s/step": statistics.median(step["time/step_s"] for step in steps)}

    return Workload(argv=("-m", "rlvr", "train", *overrides, "run_dir=run"), figures=figures)


def table(script: str, unit: str, column: int, *options: str, cells: int = 1) -> Workload:
    """A script that prints Markdown tables: the numbers of a column, keyed by the first `cells` cells of their rows."""

    def figures(output: str, seconds: float, folder: Path) -> dict[str, float]:
        rows = [
            [cell.strip(" *") for cell in line.strip("|").split("|")] for line in output.splitlines() if "|" in line
        ]
        found = {}
        for row in rows:
            number = row[column].replace(",", "") if len(row) > column else ""
            if number.replace(".", "", 1).isdigit():
                found[f"{', '.join(row[:cells])}, {unit}"] = float(number)
        return found

    return Workload(argv=(f"benchmarks/{script}", *options), figures=figures)


WORKLOADS = {
    "train": train("rlvr train, 200 + 20 steps", *SHORT),
    "two_hop": train("two_hop, 200 + 20 steps", "--config-name", "two_hop", *SHORT),
    "large": train(
        "rpn_large, 20 + 3 steps",
        *("--config-name", "rpn_large", "warm_start.num_steps=20", "warm_start.final_phase_steps=5"),
        *("trainer.max_steps=3", "tracker.console=none"),
    ),
    "rpn": train("rpn"),
    "rpn_ppo": train("rpn_ppo", "--config-name", "rpn_ppo"),
    "whole_two_hop": train("two_hop", "--config-name", "two_hop"),
    "gsm8k_smoke": train("gsm8k_smoke", "--config-name", "gsm8k_smoke"),
    "engine": table("engine.py", "tokens/s", 5, "--repeats", "3", cells=2),
    "verifiers": table("verifiers.py", "answers/s", 1, "--repeats", "1"),
    "environments": table("environments.py", "episodes/s", 2, "--repeats", "1"),
    "rows": table("rows.py", "rows/s", 1, "--repeats", "1"),
}


def measure(checkout: Path, workload: Workload) -> Mapping[str, float]:
    """The figures of one run, in an empty folder."""
    script = workload.argv[0]
    argv = (str(checkout / script), *workload.argv[1:]) if script.endswith(".py") else workload.argv
    with tempfile.TemporaryDirectory() as folder:
        # empty cache: each round computes its warm start
        variables = os.environ | {"PYTHONPATH": str(checkout / "src"), "XDG_CACHE_HOME": folder}
        start, cpu_start = time.perf_counter(), _cpu_seconds()
        done = subprocess.run([sys.executable, *argv], cwd=folder, env=variables, capture_output=True, text=True)
        seconds, cpu_seconds = time.perf_counter() - start, _cpu_seconds() - cpu_start
        if done.returncode:
            sys.exit(f"{checkout}: {' '.join(argv)} failed:\n{done.stderr[-2000:]}")
        figures = workload.figures(done.stdout, seconds, Path(folder))
        return {**figures, f"{' '.join(workload.argv)}, CPU, s": cpu_seconds}


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description="Time two checkouts of rlvr.")
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=WORKLOADS, nargs="*", default=list(WORKLOADS))
    args = parser.parse_args()
    checkouts = [args.before.resolve(), args.after.resolve()]
    print("| | before | after | ratio |\n|---|---|---|---|")
    for name in args.only:
        rounds = [[measure(checkout, WORKLOADS[name]) for checkout in checkouts] for _ in range(args.repeats)]
        for figure in rounds[0][0]:
            if not all(figure in found for of_round in rounds for found in of_round):
                continue  # only one of them prints this row
            before, after = (statistics.median(of_round[side][figure] for of_round in rounds) for side in (0, 1))
            ratio = before / after if figure.endswith((", s", "s/step")) else after / before
            print(f"| {figure} | {before:,.4g} | {after:,.4g} | **{ratio:.2f}** |", flush=True)
    loads = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    print(f"\n{args.repeats} rounds; {os.cpu_count()} CPUs, {platform.machine()}, load averages {loads}")


if __name__ == "__main__":
    main()
