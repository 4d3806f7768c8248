"""Does a correction of old samples pay? Weights that sample are exactly k updates older than those that train.

    python benchmarks/stale.py [--config-name rpn] [--lags 1,2,4,8] [--seeds 1-5] [--steps 40] [--output stale.jsonl]

The schedule is that of a run whose sampler is k updates behind at every token, without a clock: a run repeats exactly.
The engine samples from a copy of the weights that is refreshed k updates late; everything else is the product's. Each
line of the output is a run; the table has the last held-out accuracy, mean and range over the seeds. Runs that the
output has already are not made again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from torch import Tensor

import rlvr.run.assemble
from rlvr.commands.train.body import train
from rlvr.config.compose import load_config
from rlvr.core.engine import LocalEngine
from rlvr.core.engine.base import Engine
from rlvr.models.devices import frozen_copy
from rlvr.models.policy import HubPolicy
from rlvr.records.jsonl import read_metrics
from rlvr.run.policies import open_engine

CORRECTIONS = ("none", "truncate", "mask", "icepop", "sequence_mask")
Weights = list[tuple[str, Tensor]]


def late(policy: HubPolicy, lag: int) -> Iterator[Weights]:
    """The trained weights as they were `lag` updates ago, once for each update."""
    past: deque[Weights] = deque(maxlen=lag + 1)
    while True:
        past.append([(name, value.detach().clone()) for name, value in policy.trained_weights()])
        yield past[0]


def run(config_name: str, lag: int, correction: str, seed: int, steps: int, more: Sequence[str]) -> dict[str, Any]:
    """One run; its accuracies by step, and what it cost."""

    def make(config: Any, policy: HubPolicy, *rest: Any, **others: Any) -> Engine:
        made = open_engine(config, policy, *rest, **others)
        weights = late(policy, lag)
        return LocalEngine(
            frozen_copy(policy.model, policy.dtype),
            max_batch_size=config.engine.max_batch_size,
            max_context_tokens=made.max_context_tokens,
            weights=lambda: next(weights),
        )

    words = [f"seed={seed}", f"trainer.max_steps={steps}", f"algorithm.mismatch_correction={correction}"]
    words += ["tracker.console=none", "tracker.rollouts_every=null", "trainer.checkpoint_every=null", *more]
    begin = time.process_time()
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(rlvr.run.assemble, "open_engine", make):
        config = load_config([*words, f"run_dir={folder}/run"], config_name=config_name)
        result = train(config)
        rows = read_metrics(result.folder / "metrics.jsonl")
    accuracy = f"eval/{config.task.label}/accuracy"
    return {
        "config": config_name,
        "lag": lag,
        "correction": correction,
        "seed": seed,
        "accuracies": {f"{row['step']:.0f}": row[accuracy] for row in rows if accuracy in row},
        "mismatch_kl": max(row.get("policy/mismatch_kl", 0.0) for row in rows),
        "cpu_s": round(time.process_time() - begin, 1),
    }


def table(runs: Sequence[dict[str, Any]]) -> str:
    """Mean and range of the last accuracy over the seeds."""
    lines = [f"| k | {' | '.join(CORRECTIONS)} |", f"|---|{'---|' * len(CORRECTIONS)}"]
    for lag in sorted({one["lag"] for one in runs}):
        cells = []
        for correction in CORRECTIONS:
            found = [one for one in runs if (one["lag"], one["correction"]) == (lag, correction)]
            last = [[*one["accuracies"].values()][-1] for one in found] or [float("nan")]
            cells.append(f"{statistics.mean(last):.3f} ({min(last):.3f} - {max(last):.3f}, n={len(found)})")
        lines.append(f"| {lag} | {' | '.join(cells)} |")
    return "\n".join(lines)


def numbers(text: str) -> list[int]:
    """`1-3` or `1,2,4`."""
    first, dash, last = text.partition("-")
    return [*range(int(first), int(last) + 1)] if dash else [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config-name", default="rpn")
    parser.add_argument("--lags", type=numbers, default=[1, 2, 4, 8])
    parser.add_argument("--seeds", type=numbers, default=[1, 2, 3, 4, 5])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--output", type=Path, default=Path("stale.jsonl"))
    parser.add_argument("more", nargs="*", metavar="KEY=VALUE")
    args = parser.parse_args()
    output: Path = args.output
    runs = [json.loads(line) for line in output.read_text().splitlines()] if output.exists() else []
    runs = [one for one in runs if one["config"] == args.config_name]
    done = {(one["lag"], one["correction"], one["seed"]) for one in runs}
    for seed in args.seeds:
        for lag in args.lags:
            for correction in CORRECTIONS:
                if (lag, correction, seed) not in done:
                    runs.append(run(args.config_name, lag, correction, seed, args.steps, args.more))
                    with output.open("a") as file:
                        file.write(f"{json.dumps(runs[-1])}\n")
    print(table(runs))


if __name__ == "__main__":
    main()
