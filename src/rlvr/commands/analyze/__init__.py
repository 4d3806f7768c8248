"""`rlvr analyze`: compares evaluation records and tests the differences."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rlvr.cli.model_arguments import at_least, note

if TYPE_CHECKING:
    from rlvr.evaluation.analysis import Analysis

HELP = "compare evaluations: tables, intervals, differences"
DESCRIPTION = """Compare the records written by `rlvr eval --output`, `predict` and `benchmark`: scores with 95 %
intervals, by kind of example, cost, and for each pair of models on the same examples the size of the difference and
its significance (paired bootstrap, McNemar's test; docs/evaluation.md)."""
EXAMPLE = """examples:
  rlvr analyze results/                             every record under the folder
  rlvr analyze before.jsonl after.jsonl             two evaluations
  rlvr analyze results/ --baseline runs/a           compare every other model with this one only
  rlvr analyze results/ --output analysis.md        also as Markdown
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", metavar="DIR_OR_FILE", help="folders, searched for *.jsonl, or files")
    parser.add_argument("--baseline", metavar="MODEL", help="compare every other model with this one only")
    parser.add_argument(
        "--examples", type=at_least(0), default=2, metavar="N", help="examples to show of each kind (default: 2)"
    )
    parser.add_argument("--output", metavar="F.md", help="also write the tables as Markdown")
    parser.add_argument("--json", action="store_true", help="print one JSON line per cell and comparison")


def run(args: argparse.Namespace) -> int:
    from rlvr.evaluation.analysis import analyze
    from rlvr.evaluation.collect import collect

    collected = collect([Path(path) for path in args.paths], tokens=False)
    for line in collected.notes:
        note(line)
    analysis = analyze(collected.records, baseline=args.baseline, num_shown=args.examples)
    for line in analysis.notes:
        note(line)
    if args.output:
        _write(Path(args.output), analysis)
    if args.json:
        import json

        from rlvr.evaluation.tables import plain

        sys.stdout.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in plain(analysis))
    else:
        from rlvr.evaluation.tables import report

        sys.stdout.write(report(analysis))
    return 0


def _write(path: Path, analysis: Analysis) -> None:
    from rlvr.evaluation.tables import report
    from rlvr.records.files import write_atomically, writing

    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, report(analysis, markdown=True).encode("utf-8", errors="backslashreplace"))
