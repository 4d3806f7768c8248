"""Runs `rlvr train --config-name two_hop` with several seeds, unchanged and with tool tokens in the loss.

    python benchmarks/two_hop.py [--seeds 0-4] [--keep runs/two_hop] [--svg docs/images/two_hop.svg] [KEY=VALUE ...]

Prints a Markdown table line by line: held-out accuracy by step, tool calls per held-out episode, and seconds of the
whole command (start, warm start, training, evaluations, saving; CPU seconds by the operating system).
`--svg` draws the curves of accuracy.
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

ACCURACY, CALLS = "eval/two_hop/accuracy", "eval/two_hop/tool_calls_mean"
TARGET = 0.95
VARIANTS = {"masked": ("-m", "rlvr"), "tool tokens trained on": (str(Path(__file__).with_name("tool_tokens.py")),)}
COLORS = {"masked": "#1f6fb4", "tool tokens trained on": "#d1352b"}


@dataclass(frozen=True, kw_only=True)
class Run:
    """One command."""

    variant: str
    seed: int
    steps: tuple[int, ...]  # of the evaluations
    accuracy: tuple[float, ...]
    calls: tuple[float, ...]
    rewards: tuple[float, ...]  # of every step, sampled
    wall_s: float
    cpu_s: float


def cpu_seconds(command: Sequence[str]) -> float:
    """Run a command. SystemExit, with what it said, if it fails."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            log.seek(0)
            raise SystemExit(f"{' '.join(command)} failed:\n{log.read()[-3000:]}")
    return usage.ru_utime + usage.ru_stime


def run(variant: str, seed: int, folder: Path, overrides: Sequence[str]) -> Run:
    """Run one `rlvr train`. SystemExit if it fails."""
    words = ["train", "--config-name", "two_hop", f"seed={seed}", f"run_dir={folder}", *overrides]
    command = [sys.executable, *VARIANTS[variant], *words]
    begin = time.perf_counter()
    cpu_s = cpu_seconds(command)
    wall = time.perf_counter() - begin
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    evaluated = [line for line in lines if ACCURACY in line]
    return Run(
        variant=variant,
        seed=seed,
        steps=tuple(line["step"] for line in evaluated),
        accuracy=tuple(line[ACCURACY] for line in evaluated),
        calls=tuple(line[CALLS] for line in evaluated),
        rewards=tuple(line["reward/mean"] for line in lines if "reward/mean" in line),
        wall_s=wall,
        cpu_s=cpu_s,
    )


def header(steps: Sequence[int]) -> str:
    """The header of the table."""
    cells = ["loss", "seed", *(f"step {step}" for step in steps), "calls", "reward, last 5 steps", "CPU s", "wall s"]
    return f"| {' | '.join(cells)} |\n|{'---|' * len(cells)}"


def row(found: Run) -> str:
    """A table row."""
    cells = [
        found.variant,
        str(found.seed),
        *(f"{value:.3f}" for value in found.accuracy),
        f"{found.calls[0]:.2f} -> {found.calls[-1]:.2f}",
        f"{statistics.fmean(found.rewards[-5:]):.3f}",
        f"{found.cpu_s:.1f}",
        f"{found.wall_s:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def summary(variant: str, runs: Sequence[Run]) -> str:
    """Number of seeds that reached the target, and medians."""
    last = [found.accuracy[-1] for found in runs]
    return (
        f"{variant}: {sum(value >= TARGET for value in last)} of {len(runs)} seeds end at {TARGET} or more; median "
        f"accuracy {statistics.median(found.accuracy[0] for found in runs):.3f} -> {statistics.median(last):.3f}, "
        f"lowest on the way after step 0: {min(min(found.accuracy[1:]) for found in runs):.3f}, "
        f"{statistics.median(found.cpu_s for found in runs):.1f} CPU s."
    )


def svg(runs: Sequence[Run]) -> str:
    """Accuracy by step, one line per run."""
    width, height, left, bottom = 640, 300, 50, 40
    last = max(max(found.steps) for found in runs)

    def place(step: float, value: float) -> tuple[float, float]:
        across, up = width - left - 20, height - bottom - 40
        return left + across * step / last, height - bottom - up * value

    def text(x: float, y: float, said: str, color: str = "#444", anchor: str = "middle") -> str:
        return f'<text x="{x:.0f}" y="{y:.0f}" fill="{color}" text-anchor="{anchor}">{said}</text>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for value in (0, 0.25, 0.5, 0.75, 1):
        x, y = place(0, value)
        parts.append(f'<line x1="{x:.0f}" y1="{y:.1f}" x2="{width - 20}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(text(x - 6, y + 4, f"{value:g}", anchor="end"))
    parts += [text(place(step, 0)[0], height - bottom + 16, str(step)) for step in runs[0].steps]
    parts.append(text(width / 2, height - 6, "step"))
    for found in runs:
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(place, map(float, found.steps), found.accuracy))
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{COLORS[found.variant]}" stroke-width="1.5" '
            'stroke-opacity="0.8"/>'
        )
    parts.append(text(left, 16, "held-out accuracy, greedy", anchor="start"))
    for index, (variant, color) in enumerate(COLORS.items()):
        parts.append(text(width - 20, 16 + 15 * index, variant, color, "end"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def seeds_of(words: str) -> list[int]:
    """`"3"`, `"0-4"` or `"1,4,7"`."""
    if "-" in words:
        first, last = words.split("-")
        return list(range(int(first), int(last) + 1))
    return [int(part) for part in words.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the two-hop task with and without tool tokens in the loss.")
    parser.add_argument("--seeds", type=seeds_of, default=seeds_of("0-4"), help="0-4, or 1,4,7 (default: 0-4)")
    parser.add_argument("--keep", type=Path, help="folder for the run folders (default: temporary)")
    parser.add_argument("--svg", type=Path, help="file for the picture (default: none)")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="passed on to every run")
    args = parser.parse_args()
    runs: list[Run] = []
    with tempfile.TemporaryDirectory() as temporary:
        root = args.keep or Path(temporary)
        for variant in VARIANTS:
            for seed in args.seeds:
                folder = root / f"{variant.replace(' ', '_')}_{seed}"
                runs.append(run(variant, seed, folder, args.overrides))
                if len(runs) == 1:
                    print(header(runs[0].steps))
                print(row(runs[-1]), flush=True)
    print()
    for variant in VARIANTS:
        print(summary(variant, [found for found in runs if found.variant == variant]))
    if args.svg:
        args.svg.write_text(svg(runs))


if __name__ == "__main__":
    main()
