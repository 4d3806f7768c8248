"""Runs `rlvr train --config-name keep_one` with several seeds, and with the evidence about another gold answer.

    python benchmarks/keep_one.py [--seeds 0-4] [--num-examples 300] [--json lines.jsonl] [KEY=VALUE ...]

Prints a Markdown table line by line. Held-out accuracy, greedy: filtered (the policy keeps facts before it reads),
before and after RL; unfiltered (it reads all nine); with the right fact alone. AUC: whether the evidence score of a
fact among nine says that it is the one asked for, without having seen a label; with labels permuted in each example.
CPU seconds of the whole command by the operating system.

`shuffled gold`: the same training with another fact's answer as the gold one (`benchmarks/shuffled_gold.py`). Warm
starts are cached: the second run of a seed spends less.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from two_hop import cpu_seconds, seeds_of

import rlvr
from rlvr.commands.eval.function import evaluate
from rlvr.research.evidence import Contributions, late_evidence
from rlvr.tasks.late import LateGrader
from rlvr.types import Example

ACCURACY = "eval/keep_one/accuracy"
VARIANTS = {"evidence": ("-m", "rlvr"), "shuffled gold": (str(Path(__file__).with_name("shuffled_gold.py")),)}


def trained(variant: str, seed: int, folder: Path, overrides: Sequence[str]) -> float:
    """CPU seconds of one `rlvr train`. SystemExit if it fails."""
    words = ["train", "--config-name", "keep_one", f"seed={seed}", f"run_dir={folder}", *overrides]
    command = [sys.executable, *VARIANTS[variant], *words]
    return cpu_seconds(command)


def accuracy(folder: Path, num: int, chosen: str) -> float:
    overrides: dict[str, Any] = {"task.filter": chosen}
    found = evaluate(folder, num_examples=num, **overrides)
    return found["keep_one"].metrics[ACCURACY]


def evidence(folder: Path, num: int) -> tuple[float, float]:
    """AUC of the contributions of each example's facts, and with its labels permuted."""
    with rlvr.open(folder) as run:
        grader = LateGrader(policy=run.policy, chat=run.chat, task=run.task, layout=run.layout, max_context_tokens=96)
        scores, labels = [], []
        for example in run.task.eval_examples(num):
            scores.append(_contributions(run, grader, example))
            labels.append([fact == example.metadata["asked"] for fact in example.metadata["facts"].values()])
    rng = np.random.default_rng(0)
    return auc(np.array(scores), np.array(labels)), auc(np.array(scores), rng.permuted(np.array(labels), axis=1))


def _contributions(run: Any, grader: LateGrader, example: Example) -> list[float]:
    env: Any = run.task.env(example)
    ids = tuple(example.metadata["facts"])
    late = late_evidence(env._found, ids, context_size=3, num_contexts=2, seed=example.id)
    assert isinstance(late.value, Contributions)
    return late.value.each(grader.probabilities(example, late))


def auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """The share of pairs of a positive and a negative in the right order; ties count half."""
    positive, negative = scores[labels], scores[~labels]
    above = np.sign(positive[:, None] - negative[None])
    return float((above.mean() + 1) / 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=seeds_of, default=seeds_of("0-4"), help="0-4, or 1,4,7 (default: 0-4)")
    parser.add_argument("--num-examples", type=int, default=300)
    parser.add_argument("--json", type=Path, help="file for the lines of the table as JSON (default: none)")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="passed on to every run")
    args = parser.parse_args()
    told: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        for seed in args.seeds:
            for variant in VARIANTS:
                folder = Path(temporary) / f"{variant.replace(' ', '_')}_{seed}"
                cpu_s = trained(variant, seed, folder, args.overrides)
                lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
                found, permuted = evidence(folder, args.num_examples)
                line = {
                    "reward": variant,
                    "seed": str(seed),
                    "before RL": f"{next(one[ACCURACY] for one in lines if ACCURACY in one):.3f}",
                    "filtered": f"{accuracy(folder, args.num_examples, 'keep'):.3f}",
                    "unfiltered": f"{accuracy(folder, args.num_examples, 'none'):.3f}",
                    "right fact alone": f"{accuracy(folder, args.num_examples, 'gold'):.3f}",
                    "AUC": f"{found:.3f}",
                    "labels permuted": f"{permuted:.3f}",
                    "CPU s": f"{cpu_s:.0f}",
                }
                if not told:
                    print(f"| {' | '.join(line)} |\n|{'---|' * len(line)}")
                told.append(line)
                print(f"| {' | '.join(line.values())} |", flush=True)
    if args.json:
        args.json.write_text("".join(json.dumps(line) + "\n" for line in told))


if __name__ == "__main__":
    main()
