"""`rlvr runs`: lists runs, with their state and score."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr.errors import ConfigError, UserError, suggestion
from rlvr.printable import table

if TYPE_CHECKING:
    from rlvr.report.listing import ListedRun

HELP = "list runs: state, step, score"
DESCRIPTION = """List the runs in a folder and in the sweeps below it: task, algorithm, step, last held-out score with
its 95 % interval, and state: running, done, failed (why is below the table), pruned (by a search), stopped. A run that
was killed is stopped.
KEY is a column, or a setting such as trainer.learning_rate."""
EXAMPLE = """examples:
  rlvr runs                                     those in runs/
  rlvr runs --sort score                        the best last
  rlvr runs --filter task=rpn --filter state=done
  rlvr runs --show trainer.learning_rate --sort trainer.learning_rate
  rlvr runs sweeps/ --json | jq 'select(.score > 0.9) | .folder'
"""
MOST_VALUES = 20
COLUMNS = ("name", "state", "task", "algorithm", "step", "score", "updated")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", nargs="?", default="runs", help="default: runs")
    parser.add_argument("--filter", metavar="KEY=VALUE", action="append", default=[], help="may be repeated: all hold")
    parser.add_argument("--sort", metavar="KEY", default="updated", help="default: updated, the newest last")
    parser.add_argument("--show", metavar="KEY", action="append", default=[], help="one more column; may be repeated")
    parser.add_argument("--json", action="store_true", help="print one JSON line per run, with all settings")


def run(args: argparse.Namespace) -> int:
    from rlvr.report.listing import STATES, as_json, list_runs

    folder = Path(args.folder)
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}: name the one with your runs.")
    wanted = [_condition(text) for text in args.filter]
    runs = list_runs(folder)
    for key in (args.sort, *args.show, *(key for key, _ in wanted)):
        if runs and all(one.value(key) is None for one in runs):
            known = ", ".join(COLUMNS)
            raise ConfigError(f"{key}: no run has it; there are {known}, and settings such as trainer.max_steps.")
    for key, value in wanted:
        if key == "state" and value not in STATES:
            raise ConfigError(f"--filter state={value}: there is no such state; {suggestion(value, list(STATES))}")
    everything = runs
    runs = [one for one in runs if all(_says(one.value(key)) == value for key, value in wanted)]
    runs.sort(key=lambda one: _rank(one.value(args.sort)))
    if args.json:
        sys.stdout.writelines(as_json(one) + "\n" for one in runs)
    elif runs:
        columns = [*COLUMNS, *args.show]
        print(table([columns, *([_cell(one, column) for column in columns] for one in runs)]))
        errors = [f"{one.name}: {one.error}" for one in runs if one.error]
        if errors:
            print("", *errors, sep="\n")
    else:
        print(f"no runs in {folder}" + _there(everything, wanted), file=sys.stderr)
    return 0


def _there(runs: Sequence[ListedRun], wanted: Sequence[tuple[str, str]]) -> str:
    """` for which this holds; there are task=rpn, task=gsm8k`"""
    if not wanted:
        return ""
    values = [f"{key}={one}" for key, _ in wanted for one in sorted({_says(run.value(key)) for run in runs})]
    more = ", ..." if len(values) > MOST_VALUES else ""
    return " for which this holds" + (f"; there are {', '.join(values[:MOST_VALUES])}{more}" if values else "")


def _condition(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"--filter {text}: write KEY=VALUE, e.g. state=done.")
    return key, value


def _says(value: Any) -> str:
    """As on the command line: `true`, `null`, `0.001`."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return format(value, "g") if isinstance(value, float) else str(value)


def _rank(value: Any) -> tuple[int, float, str]:
    """Missing values first, then numbers, then texts."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return 0, 0.0, ""
    is_number = isinstance(value, int | float)
    return (1, float(value), "") if is_number else (2, 0.0, str(value))


def _cell(run: ListedRun, column: str) -> str:
    if column == "step":
        return f"{run.step}/{'?' if run.max_steps is None else run.max_steps}"
    if column == "score":
        interval = "" if math.isnan(run.low) else f" [{run.low:.3f}, {run.high:.3f}]"
        return "-" if math.isnan(run.score) else f"{run.score:.3f}{interval}"
    if column == "updated":
        return run.updated.isoformat(sep=" ", timespec="minutes")
    return _says(run.value(column))
