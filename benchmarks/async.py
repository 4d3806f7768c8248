"""What `rollout.max_staleness` makes of a step whose generation takes twice as long as its training.

    OMP_WAIT_POLICY=PASSIVE OMP_NUM_THREADS=1 python benchmarks/async.py [--rounds 5] [--steps 14]

Whole runs of `rlvr train --config-name rpn` with the local engine, slowed: before each of its steps it awaits
`asyncio.sleep`, as a client does whose tokens are sampled on other hardware, so that a batch takes `--slower` times as
long as what the trainer does with it (scoring, update, weights, records). How long to sleep is measured first, on a run
that does not. The engine has as many slots as a batch has completions: it cannot sample two batches in the time of one,
though the next batch takes the slots that short completions leave, which a batch alone leaves empty. Six epochs a batch
make training long beside the work that sampling is for this machine, which both stages share.

Each round runs max_staleness 0, 1 and 2, beginning with another one each time. With 0 the stages take turns, so its
steps say what each stage takes alone. Steps that evaluate, the first two, and the last ones, whose later batches are
not begun, do not count. A learning rate of almost 0 keeps the completions as long as they are. Medians over the steps
of a run, then over the rounds; "ratio" is the median of the rounds' ratios to the slower stage alone in that round.
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
from statistics import median
from unittest.mock import patch

from rlvr.build import engines, train
from rlvr.config.compose import load_config
from rlvr.engines.local import LocalEngine

BOUNDS = (0, 1, 2)
PROMPTS, GROUP = 24, 8
BASE = (
    f"rollout.prompts_per_step={PROMPTS}",
    f"rollout.group_size={GROUP}",
    f"engine.max_batch_size={PROMPTS * GROUP}",
    "algorithm.num_epochs=6",
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
SKIPPED = 2  # steps at the start of a run: buffers grow, nothing is ahead yet


class SlowEngine(LocalEngine):
    """The local engine, which lets others run for `delay_s` before each step."""

    delay_s = 0.0
    num_steps = 0

    async def _settle(self) -> None:
        await super()._settle()
        SlowEngine.num_steps += 1
        await asyncio.sleep(SlowEngine.delay_s)


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Medians over the steps of one run, in seconds."""

    step: float
    waited: float  # for generation
    staleness: float
    engine_steps: float

    @property
    def trained(self) -> float:
        """All else."""
        return self.step - self.waited


def run(folder: Path, model: Sequence[str], max_staleness: int, num_steps: int, delay_s: float) -> Steps:
    """Train and measure."""
    SlowEngine.delay_s, SlowEngine.num_steps = delay_s, 0
    words = [*BASE, *model, f"trainer.max_steps={num_steps}", f"rollout.max_staleness={max_staleness}"]
    train(load_config([*words, f"run_dir={folder}"], config_name="rpn"))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    counted = rows[1 + SKIPPED : num_steps - max_staleness]
    return Steps(
        step=median(row["time/step_s"] for row in counted),
        waited=median(row["time/step_s"] * row["time/generation_share"] for row in counted),
        staleness=median(row.get("rollout/staleness_mean", 0.0) for row in counted),
        engine_steps=SlowEngine.num_steps / num_steps,
    )


def table(rounds: Sequence[dict[int, Steps]]) -> list[str]:
    """Markdown."""

    def of(get: Callable[[dict[int, Steps]], float]) -> float:
        return median(get(one) for one in rounds)

    generation, training = of(lambda one: one[0].waited), of(lambda one: one[0].trained)
    lines = [
        "| | s a step | waiting for rollouts | staleness, mean | ratio to the slower stage |",
        "|---|---|---|---|---|",
    ]
    lines.append(f"| generation alone | {generation:.3f} | | | |")
    lines.append(f"| training alone | {training:.3f} | | | |")
    for bound in BOUNDS:
        step, waited = of(lambda one, b=bound: one[b].step), of(lambda one, b=bound: one[b].waited)
        ratio = of(lambda one, b=bound: one[b].step / max(one[0].waited, one[0].trained))
        age = of(lambda one, b=bound: one[b].staleness)
        lines.append(f"| max_staleness={bound} | {step:.3f} | {waited:.3f} | {age:.2f} | **{ratio:.2f}** |")
    return lines


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=14, help="of each run")
    parser.add_argument("--slower", type=float, default=2.0, help="generation / training")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(patch.object(engines, "LocalEngine", SlowEngine))
        first = run(root / "first", WARM_START, 0, arguments.steps, 0.0)
        model = ("model=hf", f"model.name_or_path={root / 'first' / 'warm_start'}", "warm_start.enabled=false")
        model = (*model, "model.dtype=float32")
        first = run(root / "calibration", model, 0, arguments.steps, 0.0)
        delay_s = max(0.0, (arguments.slower * first.trained - first.waited) / first.engine_steps)
        print(f"without delay: generation {first.waited:.3f} s, training {first.trained:.3f} s a step")
        print(
            f"delay: {1000 * delay_s:.1f} ms before each of {first.engine_steps:.0f} engine steps a batch\n", flush=True
        )
        rounds = []
        for number in range(arguments.rounds):
            order = [BOUNDS[(number + place) % len(BOUNDS)] for place in range(len(BOUNDS))]
            found = {b: run(root / f"{number}_{b}", model, b, arguments.steps, delay_s) for b in order}
            rounds.append(found)
            print(f"round {number + 1}: " + ", ".join(f"{b}: {found[b].step:.3f} s" for b in BOUNDS), flush=True)
        print("\n" + "\n".join(table(rounds)))
        print(f"\nload average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
