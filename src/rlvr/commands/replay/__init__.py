"""`rlvr replay`: a step of a run once more."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rlvr import imports
from rlvr.cli.model_arguments import add_config_dir, at_least, hush, note
from rlvr.cli.signals import ended_by_sigterm
from rlvr.errors import ConfigError
from rlvr.printable import printable
from rlvr.progress import progress

if TYPE_CHECKING:
    from rlvr.commands.replay.body import Replay
    from rlvr.research.influence import Influence
    from rlvr.research.what_if import WhatIf

HELP = "make a step of a run once more"
DESCRIPTION = """Make a step of a run once more, from the nearest checkpoint before it: sampling, scores, advantages,
gradient, update. On the machine of the run everything is equal, bit for bit; else the first difference of each stage is
printed, down to the token. The run is only read, and may still be going on. Exit status: 0 equal, 1 different."""
EXAMPLE = """examples:
  rlvr replay runs/latest --step 12
  rlvr replay runs/latest --step 12 --what-if drop=3             the update without episode 3
  rlvr replay runs/latest --step 12 --what-if reward.3=0 --what-if trainer.learning_rate=1e-4
  rlvr replay runs/latest --step 12 --influence                  which episodes made the update; also in rlvr report
"""
STRONGEST = 5  # episodes printed from each end


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", metavar="RUN", help="run folder")
    parser.add_argument("--step", type=at_least(1), required=True, metavar="K", help="step, as in metrics.jsonl")
    parser.add_argument(
        "--what-if",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="also make the update with a change: drop=N, reward.N=X, mask.N=all or =FIRST..LAST (episodes and tokens "
        "as in the rollout file, from 0), algorithm.KEY=VALUE, trainer.KEY=VALUE; may be repeated",
    )
    parser.add_argument(
        "--influence", action="store_true", help="estimate what the update would have been without each episode"
    )
    parser.add_argument(
        "--output", metavar="F.json", help="file for --influence (default: RUN.influence/step_K.json, beside the run)"
    )
    add_config_dir(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON line on stdout")


def run(args: argparse.Namespace) -> int:
    if args.output and not args.influence:
        raise ConfigError("--output: nothing is written; add --influence.")
    hush()
    imports.look_in(args.config_dir)
    with progress("loading libraries"):
        from rlvr.commands.replay.body import influence_path, replay, write_influence
        from rlvr.records.jsonl import to_json
    path = influence_path(args.run_folder, args.step, args.output) if args.influence else None
    with ended_by_sigterm():
        result = replay(args.run_folder, args.step, changes=args.what_if, influence=args.influence)
    if path is not None:
        write_influence(path, result)
    if args.json:
        print(to_json(result))
    else:
        for line in result.notes:
            note(f"note: {line}")
        sys.stdout.write(printable("".join(line + "\n" for line in lines(result))))
        if path is not None:
            print(f"influence of all episodes: {path}; rlvr report {args.run_folder} shows it")
    return 0 if result.equal else 1


def lines(result: Replay) -> Iterator[str]:
    """What has changed since the run, the comparison, then what was asked for beside it."""
    yield from (f"changed since the run: {line}" for line in result.changed)
    start = f"checkpoint {result.start}" if result.start else "the first weights"
    yield f"step {result.step} of {result.run}, from {start}: {'equal' if result.equal else 'different'}"
    records = f"{result.num_recorded} episodes by token, " if result.num_recorded else ""
    yield f"compared: {records}{result.num_metrics} metrics"
    for difference in result.differences:
        yield f"first difference in {difference}"
    if result.what_if is not None:
        yield ""
        yield from _beside(result.what_if).splitlines()
    if result.influence is not None:
        yield ""
        yield from _strongest(result.influence).splitlines()


def _beside(outcome: WhatIf) -> str:
    from rlvr.evaluation.tables import table

    names = [name for name in outcome.changed if outcome.changed[name] != 0 or outcome.recorded.get(name)]
    rows = [
        (name, *(f"{values.get(name, float('nan')):.6g}" for values in (outcome.recorded, outcome.changed)))
        for name in names
    ]
    return table(("update", "as it was", " ".join(outcome.changes)), rows, markdown=False)


def _strongest(found: Sequence[Influence]) -> str:
    from rlvr.evaluation.tables import table

    ordered = sorted(found, key=lambda one: -one.change)
    ends = ordered if len(ordered) <= 2 * STRONGEST else [*ordered[:STRONGEST], *ordered[-STRONGEST:]]
    rows = [
        (
            f"{one.episode}",
            f"{one.group}.{one.sample_index}",
            f"{one.reward:.3g}",
            f"{one.change:+.3g}",
            f"{one.share:+.1%}",
        )
        for one in ends
    ]
    return table(("episode", "group", "reward", "loss without it", "share"), rows, markdown=False)
