"""Does credit for turns pay where gradients are noisy? GRPO, GiGPO, IGPO, and IGPO with its gains shuffled.

    python benchmarks/turn_credit.py [--seeds 0-4] [--prompts 2] [--group 4] [--steps 42] [--output turn_credit.jsonl]

`k_hop` in one context (two and three hops) after its warm start, with batches so small that two of them hardly agree:
the cosine between the gradients of two batches is measured too. All kinds start from the same weights and see equally
many episodes. Each line of the output is a run; runs that it has already are not made again. Prints Markdown tables.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor
from two_hop import seeds_of

import rlvr
from rlvr.algorithms.advantages import group_normalized
from rlvr.commands.train.body import train
from rlvr.config.compose import load_config
from rlvr.core.batch import to_batch
from rlvr.models.policy import HubPolicy
from rlvr.records.jsonl import read_metrics
from rlvr.types import Group

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "algorithms"))
from igpo import IGPO  # pyright: ignore[reportMissingImports] - found by the line above

ACCURACY = "eval/k_hop/accuracy"
SETTING = ("task.mode=flat", "task.eval_hops=[2,3]", "evaluation.num_examples=100", "tracker.console=none")
SETTING += ("warm_start.final_worked_share=0.2", "tracker.rollouts_every=null", "trainer.checkpoint_every=null")
NUM_BATCHES = 16  # whose gradients are compared


class ShuffledGains(IGPO):
    """The control: the gains of a group, each given to any of its turns."""

    def gains(self, gold: Any) -> list[list[float]]:
        found = super().gains(gold)
        flat = [gain for one in found for gain in one]
        random.Random(str(flat)).shuffle(flat)
        left = iter(flat)
        return [[next(left) for _ in one] for one in found]


KINDS = {
    "GRPO": "grpo",
    "GiGPO": "gigpo:GiGPO",
    "IGPO": "igpo:IGPO",
    "IGPO, gains shuffled": "turn_credit:ShuffledGains",
}


def run(kind: str, seed: int, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One run; its accuracies by step, the rewards of every step, and what it cost."""
    words = [f"seed={seed}", f"algorithm={KINDS[kind]}", f"trainer.max_steps={args.steps}", f"run_dir={folder}"]
    words += [f"rollout.prompts_per_step={args.prompts}", f"rollout.group_size={args.group}", *SETTING]
    words += [f"evaluation.every={args.steps}"]
    begin = time.process_time()
    train(load_config([*words, *args.overrides], config_name="k_hop"))
    rows = read_metrics(folder / "metrics.jsonl")
    return {
        "kind": kind,
        "seed": seed,
        "accuracies": {f"{row['step']:.0f}": row[ACCURACY] for row in rows if ACCURACY in row},
        "rewards": [row["reward/mean"] for row in rows if "reward/mean" in row],
        "tokens": sum(row.get("policy/trained_tokens", 0.0) for row in rows),
        "cpu_s": round(time.process_time() - begin, 1),
    }


def gradient(policy: HubPolicy, groups: Sequence[Group]) -> Tensor:
    """GRPO's, at the weights that sampled; zero where no group has different rewards."""
    batch = to_batch(groups)
    mask = batch.loss_mask
    values = group_normalized(batch, torch.zeros(mask.shape), mask, "sample").advantages[mask]
    predictors = mask.roll(-1, dims=1)  # the place before each sampled token; the first one of a row never is
    logprobs = policy.predict(policy.hidden(batch.ids)[predictors], batch.ids[mask], temperature=1.0).logprobs
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    found = torch.autograd.grad(-(values * logprobs).mean(), parameters, allow_unused=True)
    return torch.cat([part.flatten() for part in found if part is not None])


def cosine(folder: Path, prompts: int, group: int) -> float:
    """Mean over pairs of batches of the warm-started model, without batches whose rewards are all equal."""
    with rlvr.open(folder / "warm_start") as opened:
        for parameter in opened.policy.model.parameters():
            parameter.requires_grad_(True)
        batches = []
        for number in range(NUM_BATCHES):
            examples = [opened.task.train_example(number * prompts + place) for place in range(prompts)]
            batches.append(gradient(opened.policy, opened.sample(examples, group, seed=number)))
    known = [one / one.norm() for one in batches if one.norm() > 0]
    return fmean(float(one @ other) for one, other in combinations(known, 2))


def table(runs: Sequence[dict[str, Any]]) -> str:
    """Means and ranges over the seeds, and the mean reward of the whole run paired with GRPO's."""
    first, last = runs[0]["accuracies"]
    num = len(runs[0]["rewards"])
    thirds = [slice(num * part // 3, num * (part + 1) // 3) for part in range(3)]
    head = ["", f"accuracy at {first}", f"at {last}", *(f"reward, steps {one.start + 1}-{one.stop}" for one in thirds)]
    head += ["mean reward", "against GRPO", "better", "trained tokens", "CPU s"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    base = {one["seed"]: fmean(one["rewards"]) for one in runs if one["kind"] == "GRPO"}
    for kind in KINDS:
        mine = [one for one in runs if one["kind"] == kind]
        if not mine:
            continue
        cells = [spread([one["accuracies"][step] for one in mine]) for step in (first, last)]
        cells += [f"{fmean(fmean(one['rewards'][part]) for one in mine):.3f}" for part in thirds]
        gains = [fmean(one["rewards"]) - base[one["seed"]] for one in mine if one["seed"] in base]
        against = ["", ""]
        if kind != "GRPO" and len(gains) > 1:
            error = stdev(gains) / len(gains) ** 0.5
            against = [f"{fmean(gains):+.3f} ± {error:.3f}", f"{sum(gain > 0 for gain in gains)} of {len(gains)}"]
        cost = [f"{fmean(one[name] for one in mine):,.0f}" for name in ("tokens", "cpu_s")]
        cells += [spread([fmean(one["rewards"]) for one in mine]), *against, *cost]
        lines.append(f"| {' | '.join([kind, *cells])} |")
    return "\n".join(lines)


def spread(values: Sequence[float]) -> str:
    return f"{fmean(values):.3f} ({min(values):.3f} - {max(values):.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description="Credit for turns, with noisy gradients.")
    parser.add_argument("--seeds", type=seeds_of, default=seeds_of("0-4"), help="0-4, or 1,4,7 (default: 0-4)")
    parser.add_argument("--prompts", type=int, default=2, help="prompts of a step (default: 2)")
    parser.add_argument("--group", type=int, default=4, help="episodes of a prompt (default: 4)")
    parser.add_argument("--steps", type=int, default=42, help="updates (default: 42)")
    parser.add_argument("--output", type=Path, default=Path("turn_credit.jsonl"), help="JSON lines")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="passed on to every run")
    args = parser.parse_args()
    lines = args.output.read_text().splitlines() if args.output.exists() else []
    runs = [json.loads(line) for line in lines]
    done = {(one["kind"], one["seed"]) for one in runs}
    for seed in args.seeds:
        for kind in KINDS:
            if (kind, seed) in done:
                continue
            with tempfile.TemporaryDirectory() as folder:
                made = run(kind, seed, args, Path(folder) / "run")
                if kind == "GRPO":
                    made["cosine"] = cosine(Path(folder) / "run", args.prompts, args.group)
            runs.append(made)
            with args.output.open("a") as file:
                print(json.dumps(made), file=file)
    cosines = [one["cosine"] for one in runs if "cosine" in one]
    print(f"Cosine between the gradients of two batches of {args.prompts} x {args.group}: {spread(cosines)}\n")
    print(table(runs))


if __name__ == "__main__":
    main()
