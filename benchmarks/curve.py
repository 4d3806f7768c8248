"""Draws held-out accuracy with its 95 % interval, and mean reward, of a run or of several seeds: the pictures of README
and recipes.

rlvr train run_dir=runs/readme && python benchmarks/curve.py runs/readme > docs/images/curve.svg
python benchmarks/curve.py runs/dates_1 runs/dates_2 runs/dates_3 > docs/images/recipe_dates.svg
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 260, 44, 16, 28, 36
ACCURACY, REWARD = "#1f6fb4", "#b0b0b0"


def picture(runs: list[list[dict[str, float]]], name: str) -> str:
    """SVG from the rows of each run's metrics.jsonl; `name` is the evaluation metric."""
    last = runs[0][-1]["step"]

    def points(values: Iterable[tuple[float, float]]) -> str:
        across, up = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return " ".join(f"{LEFT + across * step / last:.1f},{TOP + up * (1 - value):.1f}" for step, value in values)

    def text(step: float, value: float, said: str, more: str = "") -> str:
        x, y = points([(step, value)]).split(",")
        return f'<text x="{x}" y="{y}" fill="#444" {more}>{said}</text>'

    evaluated = [[row for row in rows if name in row] for rows in runs]
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', '<rect width="100%" height="100%" fill="white"/>']
    for value in (0, 0.25, 0.5, 0.75, 1):
        parts.append(f'<polyline points="{points([(0, value), (last, value)])}" stroke="#e4e4e4"/>')
        parts.append(text(0, value, f"{value:g}", 'dx="-6" dy="4" text-anchor="end"'))
    parts += [text(row["step"], 0, f"{row['step']:g}", 'dy="16" text-anchor="middle"') for row in evaluated[0]]
    for rows, graded in zip(runs, evaluated, strict=True):
        band = [(row["step"], row[f"{name}_low"]) for row in graded]
        band += [(row["step"], row[f"{name}_high"]) for row in reversed(graded)]
        parts.append(f'<polygon points="{points(band)}" fill="{ACCURACY}" fill-opacity="{0.2 / len(runs):.2f}"/>')
        rewards = points((row["step"], row["reward/mean"]) for row in rows[1:])
        accuracy = points((row["step"], row[name]) for row in graded)
        for line, color in ((rewards, REWARD), (accuracy, ACCURACY)):
            parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>')
    parts.append(text(0, 1, "held-out accuracy with its 95 % interval", f'dy="-12" style="fill:{ACCURACY}"'))
    parts.append(text(last, 1, "mean reward of the step", 'dy="-12" text-anchor="end" style="fill:#888"'))
    parts.append(text(last / 2, 0, "step", 'dy="32" text-anchor="middle"'))
    return "\n".join([*parts, "</svg>"])


if __name__ == "__main__":
    texts = [(Path(folder) / "metrics.jsonl").read_text() for folder in sys.argv[1:]]
    read = [[json.loads(line) for line in text.splitlines()] for text in texts]
    print(picture(read, next(name for name in read[0][0] if re.fullmatch(r"eval/[^/]+/accuracy", name))))
