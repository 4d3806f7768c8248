"""Writes the HTML report of evaluation records."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlvr.evaluation.analysis import Cell, Cost, analyze
from rlvr.evaluation.collect import PLAN, collect
from rlvr.evaluation.compare import Comparison
from rlvr.evaluation.intervals import Interval
from rlvr.report.page import PageLimits, Report, finite, write_report
from rlvr.report.scores import evaluation_pages


def write_evaluation_report(
    sources: Sequence[Path], output: Path | None = None, limits: PageLimits | None = None
) -> Report:
    """Write the report of record files or folders; by default `report.html` in the first folder, `F.html` for a file.

    A benchmark folder's models and tasks are named as in its plan. UserError if there are no records.
    """
    collected = collect(sources)
    analysis = analyze(collected.records)
    names = [source.resolve().name for source in sources]
    page = evaluation_pages(
        collected.records,
        title=" and ".join(names) if len(names) <= 2 else f"{names[0]} and {len(names) - 1} more",
        kind="benchmark" if any((source / PLAN).is_file() for source in sources) else "evaluations",
        analyzed={(c.task, c.split, c.model, c.retriever or "", c.settings): _cell(c) for c in analysis.cells},
        comparisons=[_comparison(one) for one in analysis.comparisons],
        notes=[*collected.notes, *analysis.notes],
        limits=limits,
    )
    return write_report(page, sources[0], output)


def _cell(cell: Cell) -> dict[str, Any]:
    kinds = [_fields(kind, "tag", "num_examples", "accuracy", "numbers") for kind in cell.kinds]
    return _fields(cell, "name", "samples_per_example", "scores", "numbers", "cost") | {"kinds": kinds}


def _comparison(one: Comparison) -> dict[str, Any]:
    names = ("task", "split", "first", "second", "num_common", "difference", "scores", "sampled")
    p_values = {name: finite(getattr(one, name), 4) for name in ("p_value", "adjusted_p_value")}
    counts = {name: len(getattr(one, name)) for name in ("only_first", "only_second")}
    return _fields(one, *names) | counts | p_values | {"is_real": one.is_real, "sentence": one.sentence}


def _fields(record: Any, *names: str) -> dict[str, Any]:
    return {name: _plain(getattr(record, name)) for name in names}


def _plain(value: Any) -> Any:
    """As JSON: an interval is `[value, low, high]`, numbers are rounded, non-finite ones are null."""
    if isinstance(value, Interval):
        return [finite(value.value), finite(value.low), finite(value.high)]
    if isinstance(value, Cost):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    return finite(value) if isinstance(value, float) else value
