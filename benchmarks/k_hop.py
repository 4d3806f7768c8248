"""Trains `task=k_hop` in each of its modes, on two and three hops, and tests it on two to five.

    python benchmarks/k_hop.py [--seeds 0-4] [--modes peel,flat,...] [--json runs/k_hop.jsonl] [--keep FOLDER]
                               [KEY=VALUE ...]

Two runs of each mode and seed: worked demonstrations alone, and the recipe, whose last demonstrations mostly guess, so
that GRPO has to regain the searches. Prints a Markdown table line by line; `--json` also writes the figures there,
and leaves out the runs that are in the file. Trained tokens are those of completions in the loss, of warm start and
RL; CPU seconds are the whole command's, by the operating system.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from two_hop import cpu_seconds, seeds_of

from rlvr.config.compose import load_config
from rlvr.run.tasks import open_tasks

HOPS = (2, 3, 4, 5)
MODES = ("peel", "flat", "plan", "filler", "shuffled_plan")
KINDS = {
    "demonstrations": ("trainer.max_steps=0", "warm_start.final_phase_steps=0"),
    "recipe": (),
}


@dataclass(frozen=True, kw_only=True)
class Run:
    """One command."""

    kind: str
    mode: str
    seed: int
    before: tuple[float, ...]  # held-out accuracy by hops, before RL
    after: tuple[float, ...]
    warm_tokens: int
    rl_tokens: int
    cpu_s: float

    @property
    def tokens(self) -> int:
        return self.warm_tokens + self.rl_tokens


def run(kind: str, mode: str, seed: int, folder: Path, overrides: Sequence[str]) -> Run:
    """Run one `rlvr train`. SystemExit if it fails."""
    given = [f"task.mode={mode}", f"seed={seed}", *KINDS[kind], *overrides]
    command = [sys.executable, "-m", "rlvr", "train", "--config-name", "k_hop", f"run_dir={folder}"]
    command += ["warm_start.cache=false", "trainer.num_threads=1", *given]
    cpu_s = cpu_seconds(command)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    evaluated = [line for line in lines if "eval/k_hop/accuracy" in line]
    before, after = (
        tuple(line[f"eval/k_hop/accuracy_hops_{hops}"] for hops in HOPS) for line in (evaluated[0], evaluated[-1])
    )
    return Run(
        kind=kind,
        mode=mode,
        seed=seed,
        before=before,
        after=after,
        warm_tokens=warm_tokens(given),
        rl_tokens=int(sum(line.get("policy/trained_tokens", 0) for line in lines)),
        cpu_s=cpu_s,
    )


def warm_tokens(overrides: Sequence[str]) -> int:
    """Words, each a token, of the completions of all demonstrations of a run."""
    config = load_config(overrides, config_name="k_hop")
    settings = config.warm_start.fitted(config.model)
    with open_tasks(config, "llama", {}) as tasks:
        size, total = settings.examples_per_step, (settings.num_steps or 0) * settings.examples_per_step
        final = total - settings.final_phase_steps * size
        shares = (settings.worked_share if number < final else settings.final_worked_share for number in range(total))
        texts = (tasks.own.demonstration(number, share) for number, share in enumerate(shares))
        return sum(len(said.split()) for parts in texts for said in parts[1::2])


def header() -> str:
    cells = ["runs", "mode", "seed", *(f"{hops} hops" for hops in HOPS), "trained tokens (RL)", "CPU s"]
    return f"| {' | '.join(cells)} |\n|{'---|' * len(cells)}"


def row(found: Run) -> str:
    def accuracy(before: float, after: float) -> str:
        return f"{after:.2f}" if found.kind == "demonstrations" else f"{before:.2f} -> {after:.2f}"

    cells = [
        found.kind,
        found.mode,
        str(found.seed),
        *map(accuracy, found.before, found.after),
        f"{found.tokens:,} ({found.rl_tokens:,})",
        f"{found.cpu_s:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def summary(kind: str, mode: str, runs: Sequence[Run]) -> str:
    """Medians and lowest accuracy by hops, and median tokens."""

    def of(index: int) -> str:
        values = [found.after[index] for found in runs]
        return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"

    tokens, cpu = (statistics.median(getattr(found, name) for found in runs) for name in ("tokens", "cpu_s"))
    cells = [kind, mode, *map(of, range(len(HOPS))), f"{tokens:,.0f}", f"{cpu:.0f}"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Train task=k_hop in each of its modes.")
    parser.add_argument("--seeds", type=seeds_of, default=seeds_of("0-4"), help="0-4, or 1,4,7 (default: 0-4)")
    parser.add_argument("--modes", type=lambda words: words.split(","), default=list(MODES), help="default: all")
    parser.add_argument("--json", type=Path, help="file for the figures, one run a line; known runs are not repeated")
    parser.add_argument("--keep", type=Path, help="folder for the run folders (default: temporary)")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="passed on to every run")
    args = parser.parse_args()
    lines = args.json.read_text().splitlines() if args.json and args.json.exists() else []
    known = {(one.kind, one.mode, one.seed): one for one in (Run(**json.loads(line)) for line in lines)}
    runs: list[Run] = []
    print(header())
    with tempfile.TemporaryDirectory() as temporary:
        root = args.keep or Path(temporary)
        for seed, kind, mode in [(s, k, m) for s in args.seeds for k in KINDS for m in args.modes]:
            found = known.get((kind, mode, seed))
            if found is None:
                found = run(kind, mode, seed, root / f"{kind}_{mode}_{seed}", args.overrides)
                if args.json:
                    with args.json.open("a") as file:
                        file.write(json.dumps(asdict(found)) + "\n")
            runs.append(found)
            print(row(found), flush=True)
    cells = ["runs", "mode", *(f"{hops} hops" for hops in HOPS), "trained tokens", "CPU s"]
    print(f"\n| {' | '.join(cells)} |\n|{'---|' * len(cells)}")
    for kind, mode in [(kind, mode) for kind in KINDS for mode in args.modes]:
        print(summary(kind, mode, [one for one in runs if (one.kind, one.mode) == (kind, mode)]))


if __name__ == "__main__":
    main()
