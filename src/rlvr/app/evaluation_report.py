"""From records of evaluations to the page that shows them: reads, analyzes, writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr.evaluation.analysis import Cell, Kind, analyze
from rlvr.evaluation.collect import PLAN, collect
from rlvr.evaluation.compare import Comparison
from rlvr.report.evaluations import Player, evaluation_pages
from rlvr.report.files import Report, default_path
from rlvr.report.page import finite, write_page
from rlvr.report.rollouts import token_texts
from rlvr.report.run import Limits

if TYPE_CHECKING:
    from rlvr.evaluation.intervals import Interval


def write_evaluation_report(
    sources: Sequence[Path], output: Path | None = None, limits: Limits | None = None
) -> Report:
    """Write the page of files or folders of records; by default `report.html` in the first folder, `F.html` for a file.

    A benchmark's folder gives its models and tasks the names that its plan has for them.

    Raises:
        UserError: there are no records, or the page cannot be written.
    """
    collected = collect(sources)
    analysis = analyze(collected.records)
    made = evaluation_pages(
        collected.records,
        title=_title([source.resolve().name for source in sources]),
        kind="benchmark" if any((source / PLAN).is_file() for source in sources) else "evaluations",
        cells={_player(cell): _cell(cell) for cell in analysis.cells},
        comparisons=[_comparison(one) for one in analysis.comparisons],
        notes=[*collected.notes, *analysis.notes],
        token_texts=_token_texts,
        limits=limits,
    )
    path = output or default_path(sources[0])
    size = write_page(path, made.page)
    return Report(path=path, size=size, num_episodes=made.kept, num_left_out=made.total - made.kept, notes=made.notes)


def _title(names: Sequence[str]) -> str:
    return " and ".join(names) if len(names) <= 2 else f"{names[0]} and {len(names) - 1} more"


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
