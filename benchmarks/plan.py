"""`rlvr plan` beside what runs really take: eight configurations, eight with long completions, and two processes.

    OMP_WAIT_POLICY=PASSIVE OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/plan.py --parts configurations
    OMP_WAIT_POLICY=PASSIVE OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/plan.py --parts long --steps 3
    OMP_WAIT_POLICY=PASSIVE OMP_NUM_THREADS=1 python benchmarks/plan.py --parts processes

"configurations" and "long": each round predicts each of them (`rlvr plan`) and trains it for a few steps, one right
after the other in one process. Both clocks count the seconds of this process on a core (`time.process_time`; one
thread): what else a shared machine does is not waited for. "processes" counts all seconds: the same with two processes
under torchrun, beside one.

Measured are mean seconds of the steps after the first, without evaluation; predicted and measured are medians of the
rounds, "ratio" is the median of the rounds' ratios. Runs learn next to nothing (a learning rate of 1e-9): lengths and
rewards stay those of the first step, which is what a plan sees. Warm starts are made once, before.
"""

from __future__ import annotations

import argparse
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
from rlvr.commands.plan.measure import STAGES
from rlvr.commands.train.body import train
from rlvr.config.compose import load_config
from rlvr.core import loop
from rlvr.core.clock import Clock

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
            predicted = dict(planned(case, processes, arguments.seconds).stages)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8, help="measured steps of a run")
    parser.add_argument("--seconds", type=float, default=10.0, help="as for rlvr plan")
    parser.add_argument("--cases", nargs="+", choices=CASES, help="only these of configurations and long")
    parser.add_argument("--parts", nargs="+", default=["configurations", "processes"])
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
    print("\nseconds, predicted / measured\n")
    print("\n\n".join("\n".join(block) for block in blocks))
    print(f"\nload average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
