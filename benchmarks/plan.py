"""`rlvr plan` beside what runs really take: eight configurations, eight with long completions, two processes, and
older samples.

    OMP_WAIT_POLICY=PASSIVE OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/plan.py --parts configurations
    OMP_WAIT_POLICY=PASSIVE OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/plan.py --parts long --steps 3
    OMP_WAIT_POLICY=PASSIVE OMP_NUM_THREADS=1 python benchmarks/plan.py --parts processes staleness

"configurations" and "long": each round predicts each of them (`rlvr plan`) and trains it for a few steps, one right
after the other in one process. Both clocks count the seconds of this process on a core (`time.process_time`; one
thread): what else a shared machine does is not waited for. The others count all seconds. "processes": the same with two
processes under torchrun, beside one. "staleness": `benchmarks/async.py`, whose engine sleeps as if it were other
hardware; the simulator gets the seconds of each stage alone and the lengths of the completions, and has to find those
of a step.

Measured are mean seconds of the steps after the first, without evaluation; predicted and measured are medians of the
rounds, "ratio" is the median of the rounds' ratios. Runs learn next to nothing (a learning rate of 1e-9): lengths and
rewards stay those of the first step, which is what a plan sees. Warm starts are made once, before.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean, median
from unittest.mock import patch

from rlvr.commands.plan.body import Plan, plan
from rlvr.commands.plan.costs import measure
from rlvr.commands.plan.simulate import STAGES, Cluster, Costs, Workload, simulate
from rlvr.commands.train.body import train
from rlvr.config.compose import load_config
from rlvr.core import loop
from rlvr.core.clock import Clock
from rlvr.run import policies

STILL = (
    "trainer.learning_rate=1e-9",
    "trainer.warmup_steps=0",
    "trainer.checkpoint_every=null",
    "trainer.num_threads=1",
    "evaluation.every=100000",
    "evaluation.num_examples=8",
    "tracker.console=none",
)
LARGE = (
    "model.hidden_size=256",
    "model.num_layers=6",
    "model.intermediate_size=704",
    "warm_start.num_steps=60",
    "warm_start.final_phase_steps=0",
    "rollout.prompts_per_step=8",
)
LONG = (
    "warm_start.enabled=false",
    "model.max_context_tokens=192",
    "rollout.max_completion_tokens=128",
    "rollout.prompts_per_step=8",
)
CASES: dict[str, tuple[str, ...]] = {  # the configuration's name, and overrides
    "rpn_test": ("rpn_test",),
    "rpn": ("rpn",),
    "rpn_ppo": ("rpn_ppo",),
    "two_hop": ("two_hop",),
    "gsm8k_smoke": ("gsm8k_smoke",),
    "rpn, six layers of 256": ("rpn", *LARGE),
    "rpn, completions of 128 tokens": ("rpn", *LONG),
    "rpn, four epochs and a KL term": ("rpn", "algorithm.num_epochs=4", "algorithm.kl_coef=0.05"),
}


def of_length(tokens: int, prompts: int, *more: str) -> tuple[str, ...]:
    """Random weights, whose completions seldom end before the limit."""
    sizes = (f"rollout.max_completion_tokens={tokens}", f"rollout.prompts_per_step={prompts}")
    return ("warm_start.enabled=false", "model.max_context_tokens=3200", *sizes, *more)


ALL_TRAIN = "algorithm.kl_coef=0.05"  # every row moves the gradient, whatever its reward
EIGHT_LAYERS = ("model.num_layers=8", "rollout.group_size=4")
LONG_CASES: dict[str, tuple[str, ...]] = {
    "gsm8k_smoke, 64 tokens": ("gsm8k_smoke", *of_length(64, 16, ALL_TRAIN)),
    "gsm8k_smoke, 128 tokens": ("gsm8k_smoke", *of_length(128, 8)),
    "gsm8k_smoke, 256 tokens": ("gsm8k_smoke", *of_length(256, 4, ALL_TRAIN)),
    "gsm8k_smoke, 512 tokens": ("gsm8k_smoke", *of_length(512, 2, ALL_TRAIN)),
    "gsm8k_smoke, eight layers, 128 tokens": ("gsm8k_smoke", *of_length(128, 4, *EIGHT_LAYERS)),
    "rpn, 128 tokens, 256 rows": ("rpn", *of_length(128, 32, ALL_TRAIN)),
    "musique_smoke, 4 turns of 128 tokens": ("musique_smoke", *of_length(128, 4, ALL_TRAIN)),
    "musique_smoke, 4 turns of 256 tokens": ("musique_smoke", *of_length(256, 4, "rollout.group_size=4")),
}
CASES |= LONG_CASES
TWO = ("rpn", "rpn, six layers of 256")  # cases for two processes


def words(case: str, *more: str) -> list[str]:
    return [*CASES[case][1:], *STILL, *more]


def planned(case: str, gpus: int, seconds: float) -> Plan:
    more = ["trainer.strategy=ddp"] if gpus > 1 else []
    return plan(load_config(words(case, *more), config_name=CASES[case][0]), gpus=gpus, seconds=seconds)


def seconds_of(folder: Path) -> dict[str, float]:
    """Mean seconds by stage of the steps after the first."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()][2:]
    rows = [row for row in rows if "time/evaluation_share" not in row]
    return {name: fmean(row["time/step_s"] * row.get(f"time/{name}_share", 0.0) for row in rows) for name in STAGES}


def trained(case: str, folder: Path, num_steps: int, processes: int = 1) -> dict[str, float]:
    name, overrides = CASES[case][0], words(case, f"trainer.max_steps={num_steps + 2}", f"run_dir={folder}")
    if processes == 1:
        train(load_config(overrides, config_name=name))
    else:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        command = [*launcher, "-m", "rlvr", "train", "--config-name", name, *overrides, "trainer.strategy=ddp"]
        subprocess.run(command, check=True, capture_output=True)
    return seconds_of(folder)


def compare(root: Path, cases: Sequence[str], arguments: argparse.Namespace, processes: int = 1) -> list[str]:
    """Rows of predicted and measured steps."""
    num_steps, num_rounds = arguments.steps, arguments.rounds
    pairs: dict[str, list[tuple[dict[str, float], dict[str, float]]]] = {case: [] for case in cases}
    for number in range(-1, num_rounds):
        for place, case in enumerate(cases):
            folder = root / f"{processes}_{number}_{place}"
            if number < 0:
                if "warm_start.enabled=false" not in CASES[case]:
                    trained(case, folder, 1)  # leaves the warm start in the cache
                continue
            predicted = vars(planned(case, processes, arguments.seconds).prediction.step)
            measured = trained(case, folder, num_steps, processes)
            pairs[case].append((predicted, measured))
            took = sum(predicted.values()), sum(measured.values())
            print(f"round {number + 1}, {case}: {took[0]:.4f} s predicted, {took[1]:.4f} s measured", flush=True)
    return [row(case, found) for case, found in pairs.items()]


def row(case: str, pairs: Sequence[tuple[dict[str, float], dict[str, float]]]) -> str:
    def middle(place: int, *names: str) -> float:
        return median(sum(pair[place][name] for name in names) for pair in pairs)

    ratio = median(sum(predicted.values()) / sum(measured.values()) for predicted, measured in pairs)
    parts = (("generation",), ("scoring", "update"), ("sync", "other"))
    stages = " | ".join(f"{middle(0, *names):.3f} / {middle(1, *names):.3f}" for names in parts)
    return f"| {case} | {stages} | {middle(0, *STAGES):.3f} / {middle(1, *STAGES):.3f} | **{ratio:.2f}** |"


def staleness(root: Path, num_rounds: int) -> list[str]:
    """Rows of `benchmarks/async.py` beside the simulator."""
    slow = importlib.import_module("async")
    rows = []
    with patch.object(policies, "LocalEngine", slow.SlowEngine):
        slow.run(root / "first", slow.WARM_START, 0, 2)
        start = f"model.name_or_path={root / 'first' / 'warm_start'}"
        model = ("model=hf", start, "model.dtype=float32", "warm_start.enabled=false")
        episodes = measure(load_config([*slow.BASE, *model], config_name="rpn"), seconds=5).episodes
        for kind, (sleeps, slots) in slow.KINDS.items():
            found: dict[int, list[tuple[float, float]]] = {bound: [] for bound in slow.BOUNDS}
            for number in range(num_rounds):
                folder = root / f"{number}_{sleeps}_{slots}"
                plain = slow.run(folder / "plain", model, 0, 12, slots=slots)
                delay = {sleeps: max(0.0, 2 * plain.trained - plain.waited) / plain.counts[sleeps]}
                means = {b: slow.run(folder / str(b), model, b, 12, slots=slots, **delay) for b in slow.BOUNDS}
                for bound, ratio in simulated(means[0], sleeps, slots, episodes).items():
                    found[bound].append((ratio, means[bound].step / means[0].slower))
                print(f"round {number + 1}, {kind}: {found}", flush=True)
            for bound, pairs in found.items():
                predicted, measured = (median(pair[place] for pair in pairs) for place in (0, 1))
                ratio = median(a / b for a, b in pairs)
                rows.append(f"| {kind}, max_staleness={bound} | {predicted:.2f} / {measured:.2f} | **{ratio:.2f}** |")
    return rows


def simulated(alone: object, sleeps: str, slots: int, episodes: tuple[tuple[int, ...], ...]) -> dict[int, float]:
    """Seconds of a step / those of the slower stage alone, for each bound; the stages alone take what was measured."""
    slow = importlib.import_module("async")
    work = Workload(prompts=slow.PROMPTS, group_size=slow.GROUP, episodes=episodes)

    def step(costs: Costs, bound: int) -> float:
        bounded = Workload(**{**vars(work), "max_staleness": bound})
        return simulate(Cluster(costs=costs, slots=slots, servers=1), bounded, num_steps=12).step

    waited, slower = alone.waited, alone.slower  # type: ignore[attr-defined]
    unit = {"row" if sleeps == "token" else "step": 1.0}
    scale = waited / step(Costs(**unit), 0)
    costs = Costs(**{name: scale for name in unit}, update=alone.trained)  # type: ignore[attr-defined]
    return {bound: step(costs, bound) / slower for bound in slow.BOUNDS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8, help="measured steps of a run")
    parser.add_argument("--seconds", type=float, default=10.0, help="as for rlvr plan")
    parser.add_argument("--cases", nargs="+", choices=CASES, help="only these of configurations and long")
    parser.add_argument("--parts", nargs="+", default=["configurations", "processes", "staleness"])
    arguments = parser.parse_args()
    cases = arguments.cases or list(CASES)
    head = "| | generation | scoring, update | sync, other | step | ratio |\n|---|---|---|---|---|---|"
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        blocks = []
        if "configurations" in arguments.parts:
            with ExitStack() as patches:
                patches.enter_context(patch.object(time, "perf_counter", time.process_time))
                # its default start is bound to the other clock
                patches.enter_context(patch.object(loop, "Clock", lambda: Clock(start=time.process_time())))
                blocks.append([head, *compare(root, [one for one in cases if one not in LONG_CASES], arguments)])
        if "long" in arguments.parts:
            with ExitStack() as patches:
                patches.enter_context(patch.object(time, "perf_counter", time.process_time))
                patches.enter_context(patch.object(loop, "Clock", lambda: Clock(start=time.process_time())))
                blocks.append([head, *compare(root, [one for one in cases if one in LONG_CASES], arguments)])
        if "processes" in arguments.parts:
            blocks.append([head, *compare(root, TWO, arguments, processes=2)])
        if "staleness" in arguments.parts:
            blocks.append(["| | step / slower stage | ratio |\n|---|---|---|", *staleness(root, arguments.rounds)])
    print("\nseconds, predicted / measured\n")
    print("\n\n".join("\n".join(block) for block in blocks))
    print(f"\nload average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
