"""`rlvr report`: a run or evaluation as one HTML file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rlvr.cli.model_arguments import at_least, note, port
from rlvr.errors import ConfigError, UserError

if TYPE_CHECKING:
    from rlvr.report.page import Report

HELP = "write the HTML report of a run"
DESCRIPTION = """Write one self-contained HTML file that opens offline in a browser. For a run: curves, health metrics,
and every recorded rollout by turn and token. `rlvr train` writes it at the end; call this during a run. For evaluations
and benchmarks: scores with intervals, differences, and each example with two models side by side."""
EXAMPLE = """examples:
  rlvr report runs/latest                            writes runs/latest/report.html
  rlvr report runs/a runs/b --output both.html       curves of both in the same charts
  rlvr report runs/sweep                             all runs of a sweep, with a table of their scores; also runs/
  rlvr report runs/latest --max-episodes 2000        embed a sample of the rollouts
  rlvr report before.jsonl after.jsonl               records of `rlvr eval --output`: scores, models side by side
  rlvr report --live runs/latest                     serve the page, which follows the run; also a folder of runs
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
    parser.add_argument("--live", action="store_true", help="serve the page and update it while the runs go on")
    parser.add_argument("--host", metavar="H", help="with --live: address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", metavar="P", type=port, help="with --live: 0: any free one (default: 8010)")


def run(args: argparse.Namespace) -> int:
    if args.live:
        _serve([Path(source) for source in args.sources], args)
        return 0
    for option in ("host", "port"):
        if getattr(args, option) is not None:
            raise ConfigError(
                f"--{option} {getattr(args, option)}: has no effect without --live; add it, or leave this out."
            )
    report = _write([Path(source) for source in args.sources], args)
    for line in report.notes:
        note(line)
    if args.json:
        import json

        facts = {"episodes": report.num_episodes, "left_out": report.num_left_out}
        print(json.dumps({"report": str(report.path), "bytes": report.size, **facts, "notes": report.notes}))
    else:
        episodes = f"{report.num_episodes:,} episode{'' if report.num_episodes == 1 else 's'}"
        print(f"{report.path}: {episodes}, {report.size / 1e6:.1f} MB; open it in a browser")
    return 0


def _serve(sources: list[Path], args: argparse.Namespace) -> None:
    from rlvr.cli.signals import ended_by_sigterm
    from rlvr.http_server import check_installed, is_loopback, reserve
    from rlvr.report.live import Live, serve
    from rlvr.report.page import PageLimits
    from rlvr.report.sweep import runs_of

    if args.output or args.json:
        raise ConfigError(f"{'--output' if args.output else '--json'}: has no effect with --live; leave it out.")
    absent = next((source for source in sources if not runs_of(source)), None)
    if absent is not None:
        raise UserError(f"there is no run in {absent}: name a run folder, or a folder of runs.")
    check_installed("rlvr report --live")
    host = args.host or "127.0.0.1"
    if not is_loopback(host):
        note(f"rlvr: anyone who can reach {host} can read the runs")
    live = Live(sources, PageLimits(max_episodes=args.max_episodes, max_mb=args.max_mb))
    with ended_by_sigterm(), reserve(host, 8010 if args.port is None else args.port) as listening:
        serve(live, host, listening)


def _write(sources: list[Path], args: argparse.Namespace) -> Report:
    from rlvr.report.run import PageLimits, write_run_report
    from rlvr.report.sweep import runs_of

    absent = next((source for source in sources if not source.exists()), None)
    if absent is not None:
        raise UserError(f"there is no {absent}: name a run folder, or records of evaluations.")
    output = Path(args.output) if args.output else None
    limits = PageLimits(max_episodes=args.max_episodes, max_mb=args.max_mb)
    if any(runs_of(source, depth=1) for source in sources):
        return write_run_report(sources, output, limits)
    from rlvr.commands.report.scores import write_evaluation_report

    try:
        return write_evaluation_report(sources, output, limits)
    except UserError:  # there are no records
        if not all(runs_of(source) for source in sources):
            raise
    return write_run_report(sources, output, limits)
