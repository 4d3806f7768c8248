"""Does `rlvr train --config-name meta` learn to use the examples in its prompt? Accuracy by their number, and controls.

    python benchmarks/meta.py [--seeds 0-4] [--output meta.jsonl] [KEY=VALUE ...]

Of each seed two runs, from the same warm start: one with right supports, and a control that is trained by RL with
supports of independently drawn meanings. All are evaluated on meanings that were never trained on. Each line of the
output is a seed; seeds that it has already are not run again. Prints a Markdown table, and what it should show.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from two_hop import seeds_of

ACCURACY = "eval/meta/accuracy_k_"
SHUFFLED, RIGHT = "task.shuffled_supports=true", "task.shuffled_supports=false"
BEFORE, AFTER = "before RL", "after RL"
AT_TEST, IN_TRAINING = "after RL, shuffled supports at test", "after RL on shuffled supports"

NUM_EXAMPLES = 3000  # 600 of each number of supports; without any there are 320

ByNumber = list[float]
"""Accuracy with 0, 1, ... supports."""


def rlvr(*words: object, cache: Path) -> tuple[str, float]:
    """What a command printed, and its CPU seconds. SystemExit if it fails."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "rlvr", *map(str, words)], stdout=out, stderr=log, env=environment
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        for file in (out, log):
            file.seek(0)
        if process.returncode:
            raise SystemExit(f"rlvr {' '.join(map(str, words))} failed:\n{log.read()[-3000:]}")
        return out.read(), usage.ru_utime + usage.ru_stime


def by_number(metrics: Mapping[str, float]) -> ByNumber:
    names = [name for name in metrics if name.startswith(ACCURACY) and name.removeprefix(ACCURACY).isdecimal()]
    return [metrics[name] for name in sorted(names, key=lambda name: int(name.removeprefix(ACCURACY)))]


def measure(seed: int, folder: Path, overrides: Sequence[str]) -> dict[str, object]:
    """Both runs of a seed, and their evaluations."""
    train = ("train", "--config-name", "meta", f"seed={seed}", *overrides)
    cache, run, control = (folder / name for name in ("cache", "run", "control"))
    _, seconds = rlvr(*train, f"run_dir={run}", cache=cache)
    rlvr(*train, f"run_dir={control}", SHUFFLED, cache=cache)  # the warm start comes from the cache

    def evaluated(model: Path, setting: str) -> ByNumber:
        words = ("eval", model, "--num-examples", NUM_EXAMPLES, "--json", "--set", setting)
        return by_number(json.loads(rlvr(*words, cache=cache)[0]))

    found = {
        BEFORE: evaluated(run / "warm_start", RIGHT),
        AFTER: evaluated(run, RIGHT),
        AT_TEST: evaluated(run, SHUFFLED),
        IN_TRAINING: evaluated(control, RIGHT),
    }
    return {"seed": seed, "cpu_s": seconds, "accuracy": found}


def table(seeds: Sequence[dict]) -> str:
    """A row of each seed, and means."""
    numbers = range(len(seeds[0]["accuracy"][AFTER]))
    head = ["", "seed", *(f"K = {k}" for k in numbers), "CPU s"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for kind in seeds[0]["accuracy"]:
        for one in seeds:
            cost = f"{one['cpu_s']:.1f}" if kind == AFTER else ""
            lines.append(f"| {kind} | {one['seed']} | {cells(one['accuracy'][kind])} | {cost} |")
        means = [fmean(values) for values in zip(*(one["accuracy"][kind] for one in seeds), strict=True)]
        lines.append(f"| **{kind}** | mean | {cells(means)} | |")
    return "\n".join(lines)


def cells(values: Sequence[float]) -> str:
    return " | ".join(f"{value:.3f}" for value in values)


def goals(seeds: Sequence[dict]) -> str:
    """What each seed should show, and in how many it is so."""

    def count(said: str, values: Sequence[float], fits: Sequence[bool]) -> str:
        return f"- {said}: {sum(fits)} of {len(fits)} seeds, {min(values):.3f} to {max(values):.3f}"

    found = [one["accuracy"] for one in seeds]
    gain = [one[AFTER][-1] - one[AFTER][0] for one in found]
    rise = [min(b - a for a, b in zip(one[AFTER], one[AFTER][1:], strict=False)) for one in found]
    told = [max(abs(value - one[AFTER][0]) for value in one[AT_TEST]) for one in found]
    learnt = [max(abs(a - b) for a, b in zip(one[IN_TRAINING], one[BEFORE], strict=True)) for one in found]
    return "\n".join(
        [
            count("accuracy(K=most) - accuracy(K=0) >= .5", gain, [value >= 0.5 for value in gain]),
            count("rising with every support; smallest step", rise, [value > 0 for value in rise]),
            count("shuffled at test, farthest from K=0: <= .05", told, [value <= 0.05 for value in told]),
            count("RL on shuffled, farthest from before: <= .1", learnt, [value <= 0.1 for value in learnt]),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Accuracy by the number of examples in the prompt, with controls.")
    parser.add_argument("--seeds", type=seeds_of, default=seeds_of("0-4"), help="0-4, or 1,4,7 (default: 0-4)")
    parser.add_argument("--output", type=Path, default=Path("meta.jsonl"), help="JSON lines (default: meta.jsonl)")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="passed on to every run")
    args = parser.parse_args()
    lines = args.output.read_text().splitlines() if args.output.exists() else []
    done = {one["seed"]: one for one in map(json.loads, lines)}
    for seed in args.seeds:
        if seed not in done:
            with tempfile.TemporaryDirectory() as folder, args.output.open("a") as file:
                done[seed] = measure(seed, Path(folder), args.overrides)
                print(json.dumps(done[seed]), file=file, flush=True)
    print(table([done[seed] for seed in args.seeds]))
    print(f"\n{goals([done[seed] for seed in args.seeds])}")


if __name__ == "__main__":
    main()
