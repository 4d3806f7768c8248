"""From records of evaluations to the page that shows them: reads, analyzes, writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr.errors import UserError
from rlvr.evaluation.analysis import Cell, Kind, analyze
from rlvr.evaluation.compare import Comparison
from rlvr.report.evaluations import Player, evaluation_pages
from rlvr.report.files import Report, default_path
from rlvr.report.page import finite, write_page
from rlvr.report.rollouts import token_texts
from rlvr.report.run import Limits
from rlvr.tracking.evaluations import EvaluationRecord, read_records

if TYPE_CHECKING:
    from rlvr.evaluation.intervals import Interval

PLAN = "benchmark.json"
OTHER_LINES = ("metrics.jsonl",)
"""JSON lines in a folder that are no records."""


def is_evaluation(source: Path) -> bool:
    """Whether there are records of evaluations: a file of them, a folder of such files, or a benchmark's folder."""
    return source.is_file() or bool(record_files(source))


def record_files(source: Path) -> list[Path]:
    """The files of records of a source; of an evaluation that was interrupted, what it wrote until then.

    `DIR/records/*.jsonl` of a benchmark, `DIR/*.jsonl` of another folder, or the file itself.
    """
    if source.is_file():
        return [source]
    folder = source / "records" if (source / "records").is_dir() else source
    whole = [path for path in folder.glob("*.jsonl") if path.name not in OTHER_LINES]
    started = [path for path in folder.glob("*.jsonl.partial") if path.with_suffix("") not in whole]
    return sorted([*whole, *started])


def write_evaluation_report(source: Path, output: Path | None = None, limits: Limits | None = None) -> Report:
    """Write the page of a file or folder of records; by default `report.html` in the folder, or `F.html` beside `F.jsonl`.

    Raises:
        UserError: there are no records, or the page cannot be written.
    """
    records: list[EvaluationRecord] = []
    notes: list[str] = []
    files = record_files(source)
    for file in files:
        found, problems = read_records(file)
        records += found
        notes += problems
    if not records:
        why = f" ({notes[0]})" if notes else ""
        raise UserError(
            f"{source} holds no records of an evaluation{why}: write some with rlvr eval --output F.jsonl or rlvr benchmark."
        )
    analysis = analyze(records)
    made = evaluation_pages(
        records,
        title=source.resolve().name,
        kind="benchmark" if (source / PLAN).is_file() else "evaluations",
        cells={_player(cell): _cell(cell) for cell in analysis.cells},
        comparisons=[_comparison(one) for one in analysis.comparisons],
        notes=[*notes, *analysis.notes],
        token_texts=_token_texts,
        limits=limits,
    )
    path = output or default_path(source)
    size = write_page(path, made.page)
    return Report(path=path, size=size, num_episodes=made.kept, num_left_out=made.total - made.kept, notes=made.notes)


def _player(cell: Cell) -> Player:
    return cell.task, cell.split, cell.model, cell.retriever or "", cell.settings


def _cell(cell: Cell) -> dict[str, Any]:
    return {
        "name": cell.name,
        "samples_per_example": cell.samples_per_example,
        "scores": {name: _interval(interval) for name, interval in cell.scores.items()},
        "numbers": _numbers(cell.numbers),
        "kinds": [_kind(kind) for kind in cell.kinds],
        "cost": _numbers(asdict(cell.cost)),
    }


def _kind(kind: Kind) -> dict[str, Any]:
    return {
        "tag": kind.tag,
        "num_examples": kind.num_examples,
        "accuracy": _interval(kind.accuracy),
        "numbers": _numbers(kind.numbers),
    }


def _comparison(one: Comparison) -> dict[str, Any]:
    return {
        "task": one.task,
        "split": one.split,
        "first": one.first,
        "second": one.second,
        "num_common": one.num_common,
        "difference": _interval(one.difference),
        "sampled": None if one.sampled is None else _interval(one.sampled),
        "only_first": len(one.only_first),
        "only_second": len(one.only_second),
        "p_value": finite(one.p_value, 4),
        "adjusted_p_value": finite(one.adjusted_p_value, 4),
        "is_real": one.is_real,
        "sentence": one.sentence,
    }


def _interval(interval: Interval) -> list[float | None]:
    return [finite(interval.value), finite(interval.low), finite(interval.high)]


def _numbers(numbers: Mapping[str, float]) -> dict[str, float | None]:
    return {name: finite(value) for name, value in numbers.items()}


def _token_texts(model: str, ids: set[int]) -> Mapping[int, str]:
    """The texts of tokens, where the model is a folder with a tokenizer; nothing is fetched for it."""
    folder = Path(model)
    found = next((path for path in _tokenizers(folder) if path.is_file()), None)
    if found is None:
        return {}
    try:
        return token_texts(found, ids)
    except ValueError:
        return {}


def _tokenizers(folder: Path) -> list[Path]:
    newest = sorted(folder.glob("checkpoints/step_*/model/tokenizer.json"), reverse=True)
    return [folder / "tokenizer.json", folder / "model/tokenizer.json", folder / "final/tokenizer.json", *newest]
