"""`rlvr diagnose`: why is this curve flat?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rlvr import imports
from rlvr.cli.model_arguments import add_config_dir, at_least, hush, note
from rlvr.cli.signals import ended_by_sigterm
from rlvr.errors import ConfigError
from rlvr.printable import printable
from rlvr.progress import is_terminal, progress, wrapped

if TYPE_CHECKING:
    from rlvr.trust.chain import Diagnosis, RemedyTrial

HELP = "say why a curve is flat"
DESCRIPTION = """Name the likeliest causes of a flat curve, from what a run folder records: each with a score, evidence
and a remedy; or say that the run learns, or that the cause is not known. The run is only read. --try trains a few
steps with the remedy, and as many without it, and says whether the curve moves. Exit status: 0."""
EXAMPLE = """examples:
  rlvr diagnose runs/latest
  rlvr diagnose runs/latest --json
  rlvr diagnose runs/latest --try                    both continuations in runs/latest.try/, beside the run
  rlvr diagnose runs/latest --try --steps 30
"""
STEPS = 10
WIDTH = 118


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", metavar="RUN", help="run folder, finished or not")
    parser.add_argument(
        "--try", dest="attempt", action="store_true", help="train with the remedy of the likeliest cause, and without"
    )
    parser.add_argument(
        "--steps", type=at_least(2), metavar="N", help=f"steps of --try, with and without the remedy (default: {STEPS})"
    )
    add_config_dir(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON line on stdout")


def run(args: argparse.Namespace) -> int:
    if args.steps is not None and not args.attempt:
        raise ConfigError("--steps: nothing is trained; add --try.")
    imports.look_in(args.config_dir)
    with progress("loading libraries"):
        from rlvr.commands.diagnose.body import diagnose
        from rlvr.records.jsonl import to_json
    if args.attempt:
        hush()
    with ended_by_sigterm():
        diagnosis = diagnose(args.run_folder, args.steps or STEPS if args.attempt else None)
    for line in diagnosis.notes:
        note(f"note: {line}")
    if args.json:
        print(to_json(diagnosis))
    else:
        width = WIDTH if is_terminal(sys.stdout) else None
        lines = map(printable, told(diagnosis))
        sys.stdout.write("".join((wrapped(line, width) if width else line) + "\n" for line in lines))
    return 0


def told(diagnosis: Diagnosis) -> Iterator[str]:
    """The curve, then each cause with evidence and remedy, or that there is none to name."""
    yield f"{diagnosis.run}: {diagnosis.steps} steps; {diagnosis.curve}"
    if diagnosis.top is None:
        yield diagnosis.verdict
        if diagnosis.causes:
            yield "Weak evidence for:"
    for place, cause in enumerate(diagnosis.causes, start=1):
        yield ""
        yield f"{place}. {cause.name}, {cause.score:.0%}: {cause.says}"
        yield from (f"   seen: {line}" for line in cause.evidence)
        yield f"   do:   {cause.remedy}"
        if cause.overrides:
            yield f"   set:  {' '.join(cause.overrides)}"
    if diagnosis.trial is not None:
        yield ""
        yield from told_trial(diagnosis.trial)


def told_trial(trial: RemedyTrial) -> Iterator[str]:
    start = f"step {trial.start}" if trial.start else "the start"
    verdict = "the curve moves" if trial.moved else "the curve does not move by more than chance"
    yield f"tried {' '.join(trial.overrides)} for {trial.steps} steps from {start}, beside the unchanged run: {verdict}"
    yield from (f"   {one}" for one in trial.differences)
    yield f"   runs: {trial.folder}/unchanged and {trial.folder}/remedy"
