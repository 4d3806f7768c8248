"""Do learnt weights of `task.retriever=filtered` beat the plain sum of its features?

    RLVR_DATA=data python benchmarks/filtered.py [folds|weights|dev ...] [--seeds 0-7] [--json lines.jsonl]

`folds`: R@5 within the question's own paragraphs, on train rows, on which nothing was chosen. Four folds by a hash of
the id: weights are fitted on two, the number of steps is chosen on a third, and the fourth is tested, in turn, so that
each question is tested once by weights that never saw it. One set of weights serves all three data sets; "on the other
sets": it saw no row of the tested set at all.

`answer kept` learns without labels of documents: the policy samples five, one after another, and is rewarded if one
holds the answer's text. `supporting kept` is rewarded with R@5 itself. In the control, the documents that hold the
answer are shuffled within each question. Intervals: 95 %, paired, bootstrap over questions of the mean over seeds.

`weights`: those that the product ships, by `answer kept` on all train rows (one fold chooses the number of steps), as
means over seeds, relative to BM25's. `dev`: R@5 of the shipped ones on dev rows, on which the features were chosen.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from retrieval import SETS, STEMMED, Question, questions

from rlvr.retrieval.bm25 import Bm25
from rlvr.retrieval.filtered import WEIGHTS, Described
from rlvr.retrieval.ranking import best
from rlvr.retrieval.retriever import open_retriever

USED = SETS[:3]  # those with paragraphs
CUT, SAMPLES, STEPS, RATE = 5, 8, (500, 1000, 1500), 0.03
WORD = re.compile(r"\w+")
NUM_FOLDS, NUM_BOOTSTRAPS = 4, 10_000
REWARDED = {"answer kept": "holds", "answer kept, shuffled": "shuffled", "supporting kept": "supports"}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A question's paragraphs as numbers."""

    source: str
    fold: int
    features: np.ndarray  # [N, 11]
    holds: np.ndarray  # [N] 1 where the answer's text is in it
    shuffled: np.ndarray  # [N] the same, shuffled
    supports: np.ndarray  # [N]

    def reward(self, kind: str, chosen: np.ndarray) -> np.ndarray:
        """For places [M, k]: [M], whether one holds the answer, or the share of the supporting ones."""
        found = getattr(self, REWARDED[kind])[chosen]
        return found.sum(-1) / self.supports.sum() if kind == "supporting kept" else found.max(-1)

    def recall(self, weights: np.ndarray) -> float:
        chosen = best((self.features @ weights).astype(np.float32), CUT)
        return float(self.supports[chosen].sum() / self.supports.sum())


def rows(data: Path, split: str = "train") -> list[Row]:
    """The rows whose paragraphs contain all their gold, described."""
    bm25 = open_retriever("bm25", STEMMED)
    assert isinstance(bm25, Bm25)
    rng, found = np.random.default_rng(9), list[Row]()
    for chosen in USED:
        for asked in questions(data, chosen, split):
            if asked.is_complete:
                index = bm25.index(asked.paragraphs)
                described = Described(asked.paragraphs, index.split)
                names = [one.full if chosen.gold_is_text else one.title for one in asked.paragraphs]
                holds = _holds(asked)
                found.append(
                    Row(
                        source=chosen.name,
                        fold=hashlib.sha256(asked.id.encode()).digest()[0] % NUM_FOLDS,
                        features=described.features(asked.text, index.scores(asked.text).astype(float)),
                        holds=holds,
                        shuffled=rng.permutation(holds),
                        supports=np.array([name in asked.gold for name in names], dtype=float),
                    )
                )
    return found


def _holds(asked: Question) -> np.ndarray:
    """[N] 1 where a document has an answer's words in a row."""

    def plain(text: str) -> str:
        return f" {' '.join(WORD.findall(text.lower()))} "

    answers = [plain(answer) for answer in asked.answers if answer.lower() not in ("yes", "no")]
    return np.array([any(one in plain(each.full) for one in answers) for each in asked.paragraphs], dtype=float)


def fit(train: Sequence[Row], tune: Sequence[Row], kind: str, seed: int) -> np.ndarray:
    """Weights [11] by policy gradient from BM25 alone; of `STEPS` the number best for the tune rows."""
    train = [row for row in train if getattr(row, REWARDED[kind]).any()]
    rng, kept = np.random.default_rng(seed), list[np.ndarray]()
    weights = np.eye(len(WEIGHTS))[0] / 2
    mean, square = np.zeros_like(weights), np.zeros_like(weights)
    for step in range(STEPS[-1]):
        row = train[rng.integers(len(train))]
        gradient = _gradient(row, weights, kind, rng)
        mean, square = 0.9 * mean + 0.1 * gradient, 0.99 * square + 0.01 * gradient**2
        weights = weights + RATE * (1 - step / STEPS[-1]) * mean / (np.sqrt(square) + 1e-3)
        if step + 1 in STEPS:
            kept.append(weights)

    def value(weights: np.ndarray) -> float:
        greedy = [np.argsort(-(row.features @ weights), kind="stable")[None, :CUT] for row in tune]
        return float(np.mean([row.reward(kind, chosen)[0] for row, chosen in zip(tune, greedy, strict=True)]))

    return max(kept, key=value)


def _gradient(row: Row, weights: np.ndarray, kind: str, rng: np.random.Generator) -> np.ndarray:
    """[11]: `SAMPLES` times five documents are drawn one after another; rewards are compared with each other."""
    scores, size = row.features @ weights, len(row.features)
    drawn = np.argsort(-(scores + rng.gumbel(size=(SAMPLES, size))), axis=1)[:, :CUT]
    odds = np.tile(np.exp(scores - scores.max()), (SAMPLES, 1))
    slopes = np.zeros((SAMPLES, len(weights)))
    for place in drawn.T:
        slopes += row.features[place] - odds / odds.sum(1, keepdims=True) @ row.features
        odds[np.arange(SAMPLES), place] = 0
    rewards = row.reward(kind, drawn)
    return ((rewards - rewards.mean())[:, None] * slopes).sum(0) / (SAMPLES - 1)


def splits(found: Sequence[Row]) -> dict[str, list[list[list[int]]]]:
    """Places of rows to fit, to tune and to test on. Each row is tested once: in its fold, or as part of its set."""

    def parted(tested: Callable[[Row], bool], tuned: int) -> list[list[int]]:
        parts: list[list[int]] = [[], [], []]
        for place, row in enumerate(found):
            parts[2 if tested(row) else int(row.fold == tuned)].append(place)
        return parts

    folds = [parted(lambda row, fold=fold: row.fold == fold, (fold + 1) % NUM_FOLDS) for fold in range(NUM_FOLDS)]
    return {"": folds, ", on the other sets": [parted(lambda row, one=one: row.source == one.name, 0) for one in USED]}


def evaluate(found: Sequence[Row], seeds: Sequence[int]) -> dict[str, np.ndarray]:
    """R@5 of each row [rows], or by seed [seeds, rows]."""
    recalls = {
        "BM25": np.array([row.recall(np.eye(len(WEIGHTS))[0]) for row in found]),
        "untrained sum": np.array([row.recall(np.ones(len(WEIGHTS))) for row in found]),
    }
    for (name, parts), kind in itertools.product(splits(found).items(), REWARDED):
        values = recalls[kind + name] = np.zeros((len(seeds), len(found)))
        for (number, seed), (train, tune, test) in itertools.product(enumerate(seeds), parts):
            weights = fit([found[place] for place in train], [found[place] for place in tune], kind, seed)
            values[number, test] = [found[place].recall(weights) for place in test]
    return recalls


def interval(differences: np.ndarray) -> str:
    """`+.012 [-.004, .029]`"""
    rng = np.random.default_rng(0)
    drawn = differences[rng.integers(len(differences), size=(NUM_BOOTSTRAPS, len(differences)))].mean(1)
    low, high = np.quantile(drawn, (0.025, 0.975))
    return f"{differences.mean():+.3f} [{low:+.3f}, {high:+.3f}]"


def lines(found: Sequence[Row], recalls: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """A line for each data set and ranking, and for all questions."""
    sources, every = np.array([row.source for row in found]), [each.name for each in USED]
    told = list[dict[str, Any]]()
    for source in (*every, "all"):
        chosen = np.ones(len(found), dtype=bool) if source == "all" else sources == source
        for name, values in recalls.items():
            by_seed = np.atleast_2d(values)[:, chosen]
            means, of_row = by_seed.mean(1), by_seed.mean(0)
            told.append(
                {
                    "set": source,
                    "questions": int(chosen.sum()),
                    "ranking": name,
                    "R@5": f"{means.mean():.3f}",
                    "seeds": f"{means.min():.3f} - {means.max():.3f}" if len(means) > 1 else "",
                    "against BM25": interval(of_row - recalls["BM25"][chosen]),
                    "against the untrained sum": interval(of_row - recalls["untrained sum"][chosen]),
                }
            )
    return told


def learnt(found: Sequence[Row], seeds: Sequence[int]) -> dict[str, np.ndarray]:
    """The product's weights by name: means over seeds, relative to BM25's [seeds]."""
    tune = [row for row in found if row.fold == 0]
    each = np.array([fit(found, tune, "answer kept", seed) for seed in seeds])
    return dict(zip(WEIGHTS, (each / each[:, :1].mean()).T, strict=True))


def shipped(found: Sequence[Row]) -> dict[str, np.ndarray]:
    every = {"BM25": np.eye(len(WEIGHTS))[0], "untrained sum": np.ones(len(WEIGHTS))}
    every["shipped weights"] = np.array([*WEIGHTS.values()])
    return {name: np.array([row.recall(weights) for row in found]) for name, weights in every.items()}


def show(told: Sequence[dict[str, Any]]) -> None:
    print(f"| {' | '.join(told[0])} |\n|{'---|' * len(told[0])}")
    for line in told:
        print(f"| {' | '.join(map(str, line.values()))} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["folds", "weights", "dev"], help="default: all three")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("RLVR_DATA", "data")))
    parser.add_argument("--seeds", default="0-7", help="first and last seed (default: 0-7)")
    parser.add_argument("--json", type=Path, help="file for the lines of the tables as JSON (default: none)")
    args = parser.parse_args()
    first, last = map(int, args.seeds.split("-"))
    seeds, found, told = range(first, last + 1), rows(args.data), list[dict[str, Any]]()
    for part in args.parts:
        if part == "weights":
            each = learnt(found, seeds)
            table = [{"feature": name, "weight": f"{v.mean():.2f}", "sd": f"{v.std():.2f}"} for name, v in each.items()]
        else:
            of = found if part == "folds" else rows(args.data, part)
            table = lines(of, evaluate(of, seeds) if part == "folds" else shipped(of))
        show(table)
        print(f"\n{time.process_time():.0f} CPU seconds so far\n", flush=True)
        told += table
    if args.json:
        args.json.write_text("".join(json.dumps(line) + "\n" for line in told))


if __name__ == "__main__":
    main()
