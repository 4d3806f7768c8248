"""`rlvr score`: scores predictions with the official scorers."""

import argparse
import gzip
import json
import math
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr.errors import UserError

HELP = "score predictions officially"
DESCRIPTION = """Score predictions exactly as the official evaluators of GSM8K, FinQA, MuSiQue and HotpotQA do.
FILE has one JSON object per line, {"vid", "task", "prediction", "golds"}; docs/score.md says what each task takes.
Other fields are ignored."""
EXAMPLE = """examples:
  rlvr score predictions.jsonl                 a table: count, mean and 95 % interval by task and metric
  rlvr score predictions.jsonl.gz --json       one JSON line per row, then {"summary": ...}
  rlvr score vectors.jsonl --check             compare with the field "expected"; exit status 1 if a row differs
"""
FIELDS = ("vid", "task", "prediction", "golds")
NOT_AVERAGED = ("extracted", "exe_result")
TOLERANCE = 1e-6  # of --check; the metrics are rounded to 6 digits


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoredRow:
    """One row of the file with its official score; `expected` is None if the row has none."""

    vid: Any
    task: str
    metrics: Mapping[str, bool | int | float | str]
    expected: Any = None

    @property
    def json_line(self) -> str:
        return json.dumps({"vid": self.vid, "task": self.task, "metrics": self.metrics})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help=".jsonl or .jsonl.gz")
    parser.add_argument("--json", action="store_true", help="print JSON lines, and nothing else, on stdout")
    parser.add_argument("--output", metavar="F", help="also write one JSON line per row, without the summary")
    parser.add_argument("--check", action="store_true", help='compare with the field "expected" of the rows')


def run(args: argparse.Namespace) -> int:
    rows = [_scored(args.file, number, line) for number, line in _lines(Path(args.file))]
    if not rows:
        raise UserError(f"{args.file} has no rows; give one JSON object a line.")
    summary = summarize(rows)
    if args.output:
        _write(Path(args.output), rows)
    if args.json:
        lines = [row.json_line for row in rows] + [json.dumps({"summary": summary})]
        sys.stdout.write("\n".join(lines) + "\n")
    else:
        sys.stdout.write(table(args.file, summary))
    if args.check:
        _check(args.file, rows)
    return 0


def summarize(rows: Sequence[ScoredRow]) -> dict[str, dict[str, float]]:
    """`{"gsm8k": {"num_rows": 2, "correct": 0.5, "correct_low": 0.09, "correct_high": 0.91}}`, in the file's order.

    95 % intervals: Wilson's for a share of rows, else bootstrapped over rows; none for whole-file metrics.
    """
    from rlvr.evaluation.intervals import bootstrap, wilson
    from rlvr.rewards.official.rows import FILE_TASKS

    scores: dict[str, dict[str, float]] = {}
    for task in dict.fromkeys(row.task for row in rows):
        metrics = [row.metrics for row in rows if row.task == task]
        scores[task] = {"num_rows": len(metrics)}
        for name in dict.fromkeys(name for each in metrics for name in each if name not in NOT_AVERAGED):
            values = [float(each[name]) for each in metrics if name in each]
            if task in FILE_TASKS:
                scores[task][name] = sum(values) / len(values)
                continue
            is_share = set(values) <= {0.0, 1.0}
            interval = wilson(int(sum(values)), len(values)) if is_share else bootstrap(values, seed=0)
            scores[task] |= {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
    return scores


def table(file: str, summary: Mapping[str, Mapping[str, float]]) -> str:
    """The summary as text."""
    lines = [f"{file}, official scores", f"{'':32}{'mean':>8}   95 % interval"]
    for task, values in summary.items():
        lines.append(f"{task}, {values['num_rows']} row{'s' * (values['num_rows'] != 1)}")
        for name, mean in values.items():
            if name != "num_rows" and not name.endswith(("_low", "_high")):
                low, high = values.get(f"{name}_low"), values.get(f"{name}_high")
                interval = "" if low is None or high is None else f"   {low:.1%} to {high:.1%}"
                lines.append(f"  {name:30}{mean:>8.1%}{interval}")
    return "\n".join(lines) + "\n"


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Line numbers from 1, and the non-blank lines."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path} is no complete gzip file ({error}); write it again, or name it .jsonl.") from error


def _scored(file: str, number: int, line: bytes) -> ScoredRow:
    from rlvr.rewards.official.rows import RowError, score_row

    place = f"{file}, line {number}"
    try:
        row = dict(json.loads(line.decode("utf-8-sig")))
    except UnicodeDecodeError as error:
        raise UserError(f"{place} is not UTF-8 ({error.reason}); convert the file to UTF-8.") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{place} is not JSON ({error}); write one JSON object a line.") from error
    try:
        vid, task, prediction, golds = (row[name] for name in FIELDS)
        return ScoredRow(vid=vid, task=task, metrics=score_row(task, prediction, golds), expected=row.get("expected"))
    except KeyError as error:
        raise UserError(f"{place} has no field {error}; add it: a row is {{{', '.join(FIELDS)}}}.") from error
    except RowError as error:
        raise UserError(f"{place}: {error}") from error


def _write(target: Path, rows: Sequence[ScoredRow]) -> None:
    from rlvr.records.files import write_atomically, writing

    data = "".join(row.json_line + "\n" for row in rows).encode()
    with writing(target):
        target.resolve().parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target.resolve(), gzip.compress(data) if target.suffix == ".gz" else data)


def _check(file: str, rows: Sequence[ScoredRow]) -> None:
    """UserError if no row has `expected`, or a row differs."""
    checked = [row for row in rows if row.expected is not None]
    if not checked:
        raise UserError(f"{file} has no row with a field 'expected'; leave --check out.")
    differing = [row for row in checked if not _agrees(row)]
    if differing:
        first = differing[0]
        raise UserError(
            f"{len(differing)} of {len(checked)} rows differ from their 'expected', the first is vid {first.vid}: "
            f"{json.dumps(first.metrics)} and not {json.dumps(first.expected)}."
        )
    print(f"{len(checked)} of {len(checked)} rows agree with their 'expected'", file=sys.stderr)


def _agrees(row: ScoredRow) -> bool:
    def same(value: object, expected: object) -> bool:
        if isinstance(value, float) and isinstance(expected, int | float):
            close = math.isclose(value, expected, rel_tol=0, abs_tol=TOLERANCE)  # also for infinities
            return close or (math.isnan(value) and math.isnan(expected))
        return type(value) is type(expected) and value == expected

    known = row.expected if isinstance(row.expected, dict) else {}
    return known.keys() == row.metrics.keys() and all(same(value, known[key]) for key, value in row.metrics.items())
