"""`rlvr explain`: where in an episode the answer came into reach."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rlvr import imports
from rlvr.cli.model_arguments import add_config_dir, at_least, hush, note
from rlvr.cli.signals import ended_by_sigterm
from rlvr.printable import printable
from rlvr.progress import progress

if TYPE_CHECKING:
    from rlvr.research.explain import Explained

HELP = "show where in an episode the answer came into reach"
DESCRIPTION = """Show what each state of a run's recorded episodes was worth: P(gold), the probability of the gold
answer if the model had to give one there. The report shows a curve for each episode, the turn in which P(gold) rose
most, and tokens colored by the change. The weights are those of the step, or the nearest kept before it. The run itself
is only read."""
EXAMPLE = """examples:
  rlvr explain runs/latest                          the last recorded step
  rlvr explain runs/latest --step 10 --samples 8    also P(right): go on 8 times from each state
  rlvr explain runs/latest --every 4                also after every 4 tokens of a completion
"""
NUM_EPISODES, MAX_SAMPLES = 256, 1000
NO_EVERY = "(default: before each turn; 16 states of an episode of one turn)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", metavar="RUN", help="run folder")
    parser.add_argument("--step", type=at_least(1), metavar="K", help="a recorded step (default: the last one)")
    parser.add_argument(
        "--episodes",
        type=at_least(1),
        default=NUM_EPISODES,
        metavar="N",
        help="recorded episodes, spread over the step's groups (default: %(default)s)",
    )
    parser.add_argument("--every", type=at_least(1), metavar="T", help=f"tokens between two states {NO_EVERY}")
    parser.add_argument(
        "--samples", type=samples, metavar="N", help="also P(right), by N (to 1,000) new episodes from each state; slow"
    )
    add_config_dir(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON line on stdout")


def samples(text: str) -> int:
    """An argparse type."""
    count = at_least(1)(text)
    if count > MAX_SAMPLES:
        raise argparse.ArgumentTypeError(f"{text} is more than {MAX_SAMPLES:,}, which no interval needs")
    return count


def run(args: argparse.Namespace) -> int:
    hush()
    imports.look_in(args.config_dir)
    with progress("loading libraries"):
        from rlvr.records.jsonl import to_json
        from rlvr.report.run import write_run_report
        from rlvr.research.explain import explain, values_path, write_values
    with ended_by_sigterm():
        explained = explain(
            args.run_folder, step=args.step, episodes=args.episodes, every=args.every, samples=args.samples
        )
    path = values_path(explained.run, explained.step)
    write_values(path, explained)
    report = write_run_report([Path(explained.run)])
    if args.json:
        print(to_json(explained))
        return 0
    for line in explained.notes:
        note(f"note: {line}")
    sys.stdout.write(printable("".join(line + "\n" for line in lines(explained))))
    print(f"values: {path}\nreport: {report.path}")
    return 0


def lines(explained: Explained) -> Iterator[str]:
    """The table of states, then the turns after which P(gold) rose most."""
    from rlvr.evaluation.tables import table

    kind = f"weights of step {explained.weights_step}"
    took = f"{len(explained.episodes)} episodes in {explained.seconds:.2f} s"
    yield f"step {explained.step} of {explained.run}, {kind}: {took}"
    sampled = any(row.right is not None for row in explained.table)
    head = ("state", "episodes", "P(gold)", "P(another answer)", *(["P(right)"] if sampled else []))
    rows = [
        (row.state, f"{row.count}", f"{row.gold:.3f}", f"{row.other:.3f}", *([row.right or "-"] if sampled else []))
        for row in explained.table
    ]
    yield from table(head, rows, markdown=False).splitlines()
    if explained.decisive is not None:
        yield f"largest rise of P(gold) where a reply first named the answer: {explained.decisive}"
        yield f"controls: another answer {explained.decisive_other:.2f}, a random turn {explained.decisive_random:.2f}"
