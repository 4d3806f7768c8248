"""What pruning saves: a search of 20 runs of `rpn` with it, beside the same 20 points without.

    python benchmarks/sweep.py [--folder runs/sweep] [--trials 20] [--seeds 0,1] [--jobs 1] [KEY=VALUE ...]

Both searches draw their points at random with the same seed, so that the points are the same. CPU seconds are those of
the whole command with its processes, from the first import to the table; the warm start, which all runs share, is made
before and counts for neither. Searches that the folder has already are not made again.

The second table replays the whole curves of the runs without pruning in other orders, 1,000 an amount of luck: which
share of the steps of training each rule saves, how often it prunes the run that ends best, and how much accuracy the
best of those that it leaves lacks. The third draws runs that are all equally good: how many of them are pruned.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlvr.evaluation.intervals import Interval, wilson
from rlvr.search.pruning import FEWEST, median_above, scores

SPACE = (
    "trainer.learning_rate=tag(log,interval(1e-5,1e-2))",
    "algorithm=grpo,dr_grpo,rloo",
    "rollout.group_size=4,8,16",
)
RUN = (
    *("warm_start.num_steps=300", "trainer.max_steps=60", "evaluation.every=6"),
    *("tracker.rollouts_every=null", "trainer.checkpoint_every=null"),
)
NAME = "eval/rpn/accuracy"
Curve = Mapping[int, Interval]
Rule = Callable[[Interval, Sequence[Interval]], bool]


# ------------------------------------------------------------------------------------------------------------ searches


def rlvr(*words: str) -> float:
    """Run a command; its CPU seconds and those of its processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "rlvr", *words], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def search(folder: Path, args: argparse.Namespace, seed: int, *, prune: bool) -> float:
    """Make a search in the folder, unless it has been made; its CPU seconds."""
    cost = Path(f"{folder}.json")
    if not cost.is_file():
        options = [f"sweep.trials={args.trials}", f"sweep.jobs={args.jobs}", f"sweep.seed={seed}"]
        options += ["sweep.sampler=random", f"sweep.prune={str(prune).lower()}"]
        cost.write_text(json.dumps(rlvr("train", "-m", *RUN, *args.more, *SPACE, *options, f"run_dir={folder}")))
    return json.loads(cost.read_text())


def trials(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]


def row(name: str, found: Sequence[dict[str, Any]], cpu_s: float) -> str:
    done = [one for one in found if one["state"] == "done"]
    best = max(done, key=lambda one: one["score"])
    states = [sum(one["state"] == state for one in found) for state in ("done", "pruned", "failed")]
    score = f"{best['score']:.3f} ({best['low']:.3f} - {best['high']:.3f})"
    cells = [name, *states, sum(one["step"] for one in found), f"{cpu_s:.0f}", f"{best['number']}: {score}"]
    return f"| {' | '.join(map(str, cells))} |"


# ------------------------------------------------------------------------------------------------------------- replays


def below_median(own: Interval, others: Sequence[Interval]) -> bool:
    """The product's rule."""
    return median_above(own, {str(place): one for place, one in enumerate(others)}) is not None


def below(share: float) -> Rule:
    """The same with another rank in place of the median: 0.75 of the others are below it, 1.0: the best."""

    def rule(own: Interval, others: Sequence[Interval]) -> bool:
        ranked = sorted(others, key=lambda one: one.value)
        return len(others) >= FEWEST and own.is_below(ranked[int((len(others) - 1) * share)])

    return rule


def below_median_value(own: Interval, others: Sequence[Interval]) -> bool:
    """Without intervals, from the sixth run on."""
    return len(others) >= 5 and own.value < statistics.median(one.value for one in others)


RULES: dict[str, Rule] = {
    "interval below the median's (ours)": below_median,
    "interval below the upper quartile's": below(0.75),
    "interval below the best's": below(1.0),
    "value below the median (Optuna's MedianPruner)": below_median_value,
}


def replay(curves: Sequence[Curve], rule: Rule) -> tuple[int, list[int]]:
    """Runs one after another: steps made, and the places of those that were left to end."""
    seen: list[dict[int, Interval]] = []
    steps, left = 0, []
    for place, curve in enumerate(curves):
        judged = [step for step in sorted(curve) if 0 < step < max(curve)]
        ended = (step for step in judged if rule(curve[step], [one[step] for one in seen if step in one]))
        last = next(ended, max(curve))
        steps += last
        left += [place] if last == max(curve) else []
        seen.append({step: score for step, score in curve.items() if step <= last})
    return steps, left


def replays(curves: Sequence[Curve], orders: int = 1000) -> list[str]:
    draw, whole = random.Random(0), sum(max(curve) for curve in curves)
    lines = []
    for name, rule in RULES.items():
        saved, lost, lacks = [], [], []
        for _ in range(orders):
            order = draw.sample(curves, len(curves))
            steps, left = replay(order, rule)
            ends = [curve[max(curve)].value for curve in order]
            found = max((ends[place] for place in left), default=0.0)
            saved.append(1 - steps / whole)
            lost.append(found < max(ends))
            lacks.append(max(ends) - found)
        cells = [f"{statistics.mean(saved):.0%}", f"{statistics.mean(lost):.1%}", f"{max(lacks):.3f}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def chance(num_trials: int, evaluations: int, examples: int, share: float, repeats: int = 300) -> list[str]:
    """Runs that are all equally good, with other examples at each evaluation: how many are pruned."""
    draw = random.Random(0)
    table = [wilson(right, examples) for right in range(examples + 1)]
    lines = []
    for name, rule in RULES.items():
        pruned = 0
        for _ in range(repeats):
            curves = [
                {step: table[sum(draw.random() < share for _ in range(examples))] for step in range(1, evaluations + 1)}
                for _ in range(num_trials)
            ]
            pruned += num_trials - len(replay(curves, rule)[1])
        lines.append(f"| {name} | {pruned / repeats / num_trials:.2%} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/sweep"))
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("more", nargs="*", metavar="KEY=VALUE")
    args = parser.parse_args()
    folder: Path = args.folder
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "warm.json").exists():
        cost = rlvr("train", *RUN[:1], *args.more, "trainer.max_steps=0", f"run_dir={folder / 'warm'}")
        (folder / "warm.json").write_text(json.dumps(cost))
    lines, curves = [], []
    for seed in map(int, args.seeds.split(",")):
        cpu_s = {}
        for prune, name in ((False, "whole"), (True, "pruned")):
            place = folder / f"{name}-{seed}"
            cpu_s[prune] = search(place, args, seed, prune=prune)
            found = trials(place)
            lines.append(row(f"seed {seed}, {'with' if prune else 'without'} pruning", found, cpu_s[prune]))
            if not prune:
                curves += [[scores(Path(one["folder"]), NAME) for one in found if one["state"] == "done"]]
        print(f"seed {seed}: {1 - cpu_s[True] / cpu_s[False]:.0%} of the CPU seconds saved", file=sys.stderr)
    print(f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}, {args.jobs} at a time\n")
    print("| search | ended | pruned | failed | steps | CPU s | best trial: accuracy |\n|---|---|---|---|---|---|---|")
    print("\n".join(lines))
    for number, one in enumerate(curves):
        print(f"\nsearch {number} in 1,000 orders\n\n| rule | steps saved | prunes the best | accuracy lost at most |")
        print("|---|---|---|---|\n" + "\n".join(replays(one)))
    print("\n20 equally good runs, 5 evaluations of 500 examples, accuracy 0.6\n\n| rule | pruned |\n|---|---|")
    print("\n".join(chance(20, 5, 500, 0.6)))


if __name__ == "__main__":
    main()
