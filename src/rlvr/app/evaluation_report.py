"""From records of evaluations to their page: read, analyze, write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlvr.evaluation.analysis import Cell, analyze
from rlvr.evaluation.collect import PLAN, collect
from rlvr.evaluation.compare import Comparison
from rlvr.evaluation.intervals import Interval
from rlvr.report.evaluations import evaluation_pages
from rlvr.report.files import Report, write_report
from rlvr.report.page import Limits, finite
from rlvr.report.rollouts import token_texts, tokenizer_of


def write_evaluation_report(
    sources: Sequence[Path], output: Path | None = None, limits: Limits | None = None
) -> Report:
    """Write the page of files or folders of records; by default `report.html` in the first folder, `F.html` for a file.

    A benchmark's folder gives its models and tasks the names in its plan.

    Raises:
        UserError: there are no records, or the page cannot be written.
    """
    collected = collect(sources)
    analysis = analyze(collected.records)
    names = [source.resolve().name for source in sources]
    page = evaluation_pages(
        collected.records,
        title=" and ".join(names) if len(names) <= 2 else f"{names[0]} and {len(names) - 1} more",
        kind="benchmark" if any((source / PLAN).is_file() for source in sources) else "evaluations",
        cells={(c.task, c.split, c.model, c.retriever or "", c.settings): _cell(c) for c in analysis.cells},
        comparisons=[_comparison(one) for one in analysis.comparisons],
        notes=[*collected.notes, *analysis.notes],
        token_texts=_token_texts,
        limits=limits,
    )
    return write_report(page, sources[0], output)


def _cell(cell: Cell) -> dict[str, Any]:
    return {
        "name": cell.name,
        "samples_per_example": cell.samples_per_example,
        "scores": {name: _interval(interval) for name, interval in cell.scores.items()},
        "numbers": _numbers(cell.numbers),
        "kinds": [
            {
                "tag": kind.tag,
                "num_examples": kind.num_examples,
                "accuracy": _interval(kind.accuracy),
                "numbers": _numbers(kind.numbers),
            }
            for kind in cell.kinds
        ],
        "cost": _numbers(asdict(cell.cost)),
    }


def _comparison(one: Comparison) -> dict[str, Any]:
    return {
        **{name: getattr(one, name) for name in ("task", "split", "first", "second", "num_common")},
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
    """The texts of tokens, if the model is a folder with a tokenizer; nothing is downloaded."""
    found = tokenizer_of(Path(model))
    try:
        return {} if found is None else token_texts(found, ids)
    except ValueError:
        return {}
