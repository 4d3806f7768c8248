"""Effect of `rollout.max_staleness` on steps whose generation takes twice as long as training.

    OMP_WAIT_POLICY=PASSIVE OMP_NUM_THREADS=1 python benchmarks/async.py [--rounds 5] [--steps 12]

Whole runs of `rlvr train --config-name rpn` with a local engine slowed as if it sampled on other hardware: before each
of its steps it awaits `asyncio.sleep`, so long that a batch takes `--slower` times as long as the trainer's work on it
(scoring, updates, weights, records). With twelve epochs the computation of sampling itself hardly counts. The duration
is first measured on a run without sleep. There are three kinds: "step" sleeps equally for every step, like memory-bound
decoding; "token" sleeps for each running completion, like compute-bound decoding, where sampling two batches
concurrently gains nothing; "token, a quarter at a time" therefore sets `engine.max_batch_size` to a quarter of a batch,
so that the older batch finishes first.


Each round runs max_staleness 0, 1 and 2, starting with another one each time. With 0 the stages alternate, so its steps
show the time of each stage alone. Times are means over all steps of a run without evaluation, including the first ones,
when no batch is ahead; then medians of the rounds. "ratio" is the median of the rounds' ratios to the slower stage
alone. A learning rate near 0 keeps the completion lengths constant.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import ClassVar
from unittest.mock import patch

from rlvr.commands.train.body import train
from rlvr.config.compose import load_config
from rlvr.core.engine import LocalEngine
from rlvr.run import policies

BOUNDS = (0, 1, 2)
PROMPTS, GROUP = 24, 8
BATCH = PROMPTS * GROUP
KINDS = {  # kind of sleep, and number of concurrent completions
    "step": ("step", BATCH),
    "token": ("token", BATCH),
    "token, a quarter at a time": ("token", BATCH // 4),
}
BASE = (
    f"rollout.prompts_per_step={PROMPTS}",
    f"rollout.group_size={GROUP}",
    "algorithm.num_epochs=12",
    "algorithm.mismatch_correction=truncate",
    "trainer.learning_rate=1e-9",
    "trainer.warmup_steps=0",
    "trainer.num_threads=1",
    "trainer.checkpoint_every=null",
    "evaluation.every=100000",
    "evaluation.num_examples=8",
    "tracker.console=none",
    "tracker.rollouts_every=null",
)
WARM_START = ("warm_start.num_steps=300", "warm_start.final_phase_steps=60", "warm_start.warmup_steps=20")


class SlowEngine(LocalEngine):
    """The local engine, with a sleep before each step."""

    delays: ClassVar[dict[str, float]] = {"step": 0.0, "token": 0.0}  # seconds per step, and per step and completion
    counts: ClassVar[dict[str, int]] = {"step": 0, "token": 0}  # steps, and running completions of all steps

    async def _settle(self) -> None:
        await super()._settle()
        amounts = {"step": 1, "token": self.num_running}
        for kind, amount in amounts.items():
            SlowEngine.counts[kind] += amount
        await asyncio.sleep(sum(SlowEngine.delays[kind] * amount for kind, amount in amounts.items()))


@dataclass(frozen=True, kw_only=True)
class Means:
    """Means over the steps of one run, in seconds."""

    step: float
    waited: float  # for generation
    staleness: float
    counts: dict[str, float]  # per step, see SlowEngine

    @property
    def trained(self) -> float:
        """All else."""
        return self.step - self.waited

    @property
    def slower(self) -> float:
        """Seconds of the slower stage, if the stages alternate."""
        return max(self.waited, self.trained)


def run(
    folder: Path, model: Sequence[str], bound: int, num_steps: int, *, slots: int = BATCH, **delays: float
) -> Means:
    """Train and measure."""
    SlowEngine.delays, SlowEngine.counts = {"step": 0.0, "token": 0.0} | delays, {"step": 0, "token": 0}
    words = [f"trainer.max_steps={num_steps}", f"rollout.max_staleness={bound}", f"engine.max_batch_size={slots}"]
    train(load_config([*BASE, *model, *words, f"run_dir={folder}"], config_name="rpn"))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()][1:]
    return Means(
        step=fmean(row["time/step_s"] * (1 - row.get("time/evaluation_share", 0.0)) for row in rows),
        waited=fmean(row["time/step_s"] * row["time/generation_share"] for row in rows),
        staleness=fmean(row.get("rollout/staleness_mean", 0.0) for row in rows),
        counts={kind: count / num_steps for kind, count in SlowEngine.counts.items()},
    )


def table(kind: str, rounds: Sequence[dict[int, Means]]) -> list[str]:
    """Rows in Markdown."""

    def of(get: Callable[[dict[int, Means]], float]) -> float:
        return median(get(one) for one in rounds)

    lines = [
        f"| {kind} | generation alone | {of(lambda one: one[0].waited):.2f} | | | |",
        f"| {kind} | training alone | {of(lambda one: one[0].trained):.2f} | | | |",
    ]
    for bound in BOUNDS:
        step, waited = of(lambda one, b=bound: one[b].step), of(lambda one, b=bound: one[b].waited)
        ratio, age = of(lambda one, b=bound: one[b].step / one[0].slower), of(lambda one, b=bound: one[b].staleness)
        lines.append(f"| {kind} | max_staleness={bound} | {step:.2f} | {waited:.2f} | {age:.2f} | **{ratio:.2f}** |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12, help="steps per run")
    parser.add_argument("--slower", type=float, default=2.0, help="generation / training")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(patch.object(policies, "LocalEngine", SlowEngine))
        run(root / "first", WARM_START, 0, 2)
        start = f"model.name_or_path={root / 'first' / 'warm_start'}"
        model = ("model=hf", start, "model.dtype=float32", "warm_start.enabled=false")
        rounds: dict[str, list[dict[int, Means]]] = {kind: [] for kind in KINDS}
        for number in range(arguments.rounds):
            for kind, (sleeps, slots) in KINDS.items():
                folder = root / f"{number}_{sleeps}_{slots}"
                plain = run(folder / "plain", model, 0, arguments.steps, slots=slots)
                missing = max(0.0, arguments.slower * plain.trained - plain.waited)
                delay = {sleeps: missing / plain.counts[sleeps]}
                order = [BOUNDS[(number + place) % len(BOUNDS)] for place in range(len(BOUNDS))]
                rounds[kind].append(
                    {b: run(folder / str(b), model, b, arguments.steps, slots=slots, **delay) for b in order}
                )
                seen = ", ".join(f"{bound}: {rounds[kind][-1][bound].step:.2f} s" for bound in BOUNDS)
                print(f"round {number + 1}, {kind}: {seen}", flush=True)
        print("\n| slowed by | | s a step | waiting for rollouts | staleness, mean | ratio to the slower stage |")
        print("|---|---|---|---|---|---|")
        print("\n".join(line for kind in KINDS for line in table(kind, rounds[kind])))
        print(f"\nload average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
