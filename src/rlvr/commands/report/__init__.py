"""`rlvr report`: a run or evaluation as one HTML file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rlvr.cli.model_arguments import at_least
from rlvr.errors import UserError

if TYPE_CHECKING:
    from rlvr.report.page import Report

HELP = "write the HTML report of a run"
DESCRIPTION = """Write one self-contained HTML file that opens offline in a browser. For a run: curves, health metrics,
and every recorded rollout by turn and token. `rlvr train` writes it at the end; call this during a run. For evaluations
and benchmarks: scores with intervals, differences, and each example with two models side by side."""
EXAMPLE = """examples:
  rlvr report runs/latest                            writes runs/latest/report.html
  rlvr report runs/a runs/b --output both.html       curves of both in the same charts
  rlvr report runs/sweep                             all runs of a sweep, with a table of their scores
  rlvr report runs/latest --max-episodes 2000        embed a sample of the rollouts
  rlvr report before.jsonl after.jsonl               records of `rlvr eval --output`: scores, models side by side
  rlvr report results/                               a folder of them, or of `rlvr benchmark`
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sources", metavar="RUN_OR_DIR", nargs="+", help="run folders, or records of evaluations: files or folders"
    )
    parser.add_argument("--output", metavar="F.html", help="default: report.html in the folder")
    parser.add_argument(
        "--max-episodes",
        type=at_least(1),
        default=20_000,
        metavar="N",
        help="more episodes are sampled (default: %(default)s)",
    )
    parser.add_argument(
        "--max-mb",
        type=at_least(1),
        default=30,
        metavar="MB",
        help="largest file; episodes are sampled to fit (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON line about the file")


def run(args: argparse.Namespace) -> int:
    report = _write([Path(source) for source in args.sources], args)
    for note in report.notes:
        print(note, file=sys.stderr)
    if args.json:
        import json

        facts = {"episodes": report.num_episodes, "left_out": report.num_left_out}
        print(json.dumps({"report": str(report.path), "bytes": report.size, **facts, "notes": report.notes}))
    else:
        episodes = f"{report.num_episodes:,} episode{'' if report.num_episodes == 1 else 's'}"
        print(f"{report.path}: {episodes}, {report.size / 1e6:.1f} MB; open it in a browser")
    return 0


def _write(sources: list[Path], args: argparse.Namespace) -> Report:
    from rlvr.report.run import Limits, write_run_report
    from rlvr.report.sweep import runs_of

    absent = next((source for source in sources if not source.exists()), None)
    if absent is not None:
        raise UserError(f"there is no {absent}: name a run folder, or records of evaluations.")
    output = Path(args.output) if args.output else None
    limits = Limits(max_episodes=args.max_episodes, max_mb=args.max_mb)
    if any(runs_of(source) for source in sources):
        return write_run_report(sources, output, limits)
    from rlvr.commands.report.scores import write_evaluation_report

    return write_evaluation_report(sources, output, limits)
