"""What the states of two_hop's episodes are worth as training goes on, with controls, and what that costs.

    python benchmarks/explain.py [--seeds 0-2] [--samples 8] [--mc-episodes 64] [--keep runs/explain]

One `rlvr train --config-name two_hop` for each seed; at steps 0, 5 and 10 fresh episodes of 32 training examples x 8
are sampled and valued. Prints a Markdown table line by line. One thread; costs are CPU seconds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from two_hop import cpu_seconds

import rlvr
from rlvr.core.value import states
from rlvr.research.explain import decisive
from rlvr.types import Episode, Group

STEPS = (0, 5, 10)
NUM_EXAMPLES = 32


@dataclass(frozen=True, kw_only=True)
class Row:
    seed: int
    step: int
    reward: float
    gold: list[float]  # mean of P(gold) before each of three turns
    sampled: list[float]  # mean of P(right) there
    judged: int  # episodes in which the second fact was found
    hits: float  # share of them whose largest rise is at that turn
    hits_other: float  # of P(another city)
    hits_random: float
    hits_sampled: float  # of P(right)
    pearson: float  # between P(gold) and P(right) over states
    pearson_shuffled: float
    gold_s: float
    sampled_s: float  # for as many episodes
    step_s: float  # a training step


def train(seed: int, folder: Path, *more: str) -> float:
    """Run the recipe; CPU seconds of the command."""
    words = ["train", "--config-name", "two_hop", f"seed={seed}", f"run_dir={folder}", "tracker.console=none", *more]
    return cpu_seconds([sys.executable, "-m", "rlvr", *words])


def cpu_of_a_step(folder: Path) -> float:
    """CPU seconds of a training step: 22 steps less 2, without evaluations, from a cached warm start; medians of 3."""
    train(0, folder / "fills_the_cache", "trainer.max_steps=1")
    took: dict[int, list[float]] = {2: [], 22: []}
    for repeat in range(3):
        for n, seconds in took.items():
            run = folder / f"{n}_steps_{repeat}"
            seconds.append(train(0, run, f"trainer.max_steps={n}", "evaluation.every=99"))
    return float(np.median(took[22]) - np.median(took[2])) / 20


def second_fact(group: Group, episode: Episode) -> int | None:
    """The turn whose reply is `o7 located-in c4`, the fact of the example's organization."""
    _, organization, city = group.example.metadata["chain"]
    found = (k for k, text in enumerate(episode.texts) if f"{organization} located-in {city}" in text.prompt)
    return next((k - 1 for k in found if k > 0), None)


def value(run: rlvr.Opened, seed: int, step: int, samples: int, mc_episodes: int, step_s: float) -> Row:
    rng = np.random.default_rng(seed)
    groups = run.sample([run.task.train_example(index) for index in range(NUM_EXAMPLES)], 8)
    pairs = [(group, episode) for group in groups for episode in group.episodes]
    run.gold_logprobs(groups[:1])  # loads what the first pass loads
    begin = time.process_time()
    gold = [np.exp(one) for one in run.gold_logprobs(groups)]
    gold_s = time.process_time() - begin
    cities = sorted({group.example.answer for group in groups})
    others = [str(rng.choice([city for city in cities if city != group.example.answer])) for group, _ in pairs]
    other = [np.exp(one) for one in run.gold_logprobs(groups, answers=others)]
    chosen = range(0, len(pairs), max(1, len(pairs) // mc_episodes))
    begin = time.process_time()
    places = [
        (group.example, episode, state)
        for group, episode in map(pairs.__getitem__, chosen)
        for state in states(episode)
    ]
    again = (np.mean([one.score.value for one in found]) for found in run.resample(places, samples))
    right = {i: [float(next(again)) for _ in states(pairs[i][1])] for i in chosen}
    sampled_s = (time.process_time() - begin) * len(pairs) / len(chosen)
    found = [second_fact(*pair) for pair in pairs]
    judged = [i for i, turn in enumerate(found) if turn is not None]

    def hits(values: Sequence[np.ndarray] | dict[int, list[float]], where: Sequence[int]) -> float:
        at = [decisive(states(pairs[i][1]), list(values[i])) == found[i] for i in where]
        return float(np.mean(at)) if at else float("nan")

    flat_gold = np.array([x for i in chosen for x in gold[i]])
    flat_right = np.array([x for i in chosen for x in right[i]])
    return Row(
        seed=seed,
        step=step,
        reward=float(np.mean([episode.score.value for _, episode in pairs])),
        gold=[float(np.mean([one[k] for one in gold if len(one) > k])) for k in range(3)],
        sampled=[float(np.mean([one[k] for one in right.values() if len(one) > k] or [np.nan])) for k in range(3)],
        judged=len(judged),
        hits=hits(gold, judged),
        hits_other=hits(other, judged),
        hits_random=float(np.mean([rng.integers(len(pairs[i][1].turns) - 1) == found[i] for i in judged])),
        hits_sampled=hits(right, [i for i in judged if i in right]),
        pearson=float(np.corrcoef(flat_gold, flat_right)[0, 1]),
        pearson_shuffled=float(np.corrcoef(rng.permutation(flat_gold), flat_right)[0, 1]),
        gold_s=gold_s,
        sampled_s=sampled_s,
        step_s=step_s,
    )


COLUMNS = (
    *("seed", "step", "reward", "P(gold) before turn 1, 2, 3", "P(right)", "found the 2nd fact"),
    *("largest rise there: P(gold)", "another city", "random turn", "P(right)", "Pearson (shuffled)"),
    *("P(gold) / training step", "P(right) / training step"),
)


def line(row: Row) -> str:
    def short(values: Sequence[float]) -> str:
        return " ".join(f"{x:.2f}" for x in values)

    cells = [
        f"{row.seed}",
        f"{row.step}",
        f"{row.reward:.2f}",
        short(row.gold),
        short(row.sampled),
        f"{row.judged}",
        *(f"{x:.2f}" for x in (row.hits, row.hits_other, row.hits_random, row.hits_sampled)),
        f"{row.pearson:.2f} ({row.pearson_shuffled:.2f})",
        f"{row.gold_s / row.step_s:.2f}",
        f"{row.sampled_s / row.step_s:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def rows(args: argparse.Namespace, folder: Path) -> Iterator[Row]:
    step_s = cpu_of_a_step(folder)
    first, _, last = args.seeds.partition("-")
    for seed in range(int(first), int(last or first) + 1):
        train(seed, folder / f"seed_{seed}", "trainer.checkpoint_every=5", "trainer.keep_last=9")
        for step in STEPS:
            with rlvr.open(folder / f"seed_{seed}", step=step) as run:
                yield value(run, seed, step, args.samples, args.mc_episodes, step_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0-2")
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--mc-episodes", type=int, default=64)
    parser.add_argument("--keep", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS), sep="\n")
    with tempfile.TemporaryDirectory() as folder:
        found = []
        for row in rows(args, args.keep or Path(folder)):
            found.append(row)
            print(line(row), flush=True)
    judged = sum(row.judged for row in found)
    share = sum(row.hits * row.judged for row in found) / judged
    other = sum(row.hits_other * row.judged for row in found) / judged
    worst = max(row.gold_s / row.step_s for row in found)
    print(
        f"\nall: {share:.3f} of {judged} episodes (another city {other:.3f}); P(gold) at most {worst:.2f} of a step of "
        f"{found[0].step_s:.2f} CPU s"
    )


if __name__ == "__main__":
    main()
