"""Accuracy by the number of worked examples in the prompt: each against the first, on the same questions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlvr.evaluation.compare import Comparison, compare
from rlvr.evaluation.intervals import Interval, holm
from rlvr.evaluation.summary import EvaluationResult
from rlvr.evaluation.tables import percent, table

ByShots = Mapping[int, EvaluationResult]
"""The results of one task by the number of worked examples."""


def compared(results: ByShots) -> dict[int, Comparison]:
    """Each number of worked examples against the first, where any question was graded with both."""
    (first, base), *others = results.items()
    comparisons = {
        shots: one
        for shots, result in others
        if (one := compare(base.records, result.records, names=(f"{first}-shot", f"{shots}-shot"))) is not None
    }
    adjusted = holm([one.p_value for one in comparisons.values()])
    return {
        shots: replace(one, adjusted_p_value=p, num_comparisons=len(comparisons))
        for (shots, one), p in zip(comparisons.items(), adjusted, strict=True)
    }


def table_of(title: str, task: str, results: ByShots) -> str:
    """A row for each number of worked examples, and a sentence for each comparison."""
    comparisons, first = compared(results), next(iter(results))
    head = ("worked examples", "questions", "accuracy", "cut off", f"points against {first}", "of questions")
    rows = [
        (str(shots), *_cells(task, result.metrics), *_against(comparisons.get(shots)))
        for shots, result in results.items()
    ]
    said = [f"- {one.sentence}\n" for one in comparisons.values()]
    return f"{title}\n{table(head, rows, markdown=False)}{''.join(said)}"


def lines_of(results: ByShots) -> Iterator[dict[str, Any]]:
    """The metrics of each number of worked examples, and its difference to the first."""
    found = compared(results)
    for shots, result in results.items():
        line: dict[str, Any] = {"few_shot": shots, **result.metrics}
        if (one := found.get(shots)) is not None:
            difference = {"value": one.difference.value, "low": one.difference.low, "high": one.difference.high}
            numbers = {"num_examples": one.num_common, "p_value": one.p_value, "adjusted_p_value": one.adjusted_p_value}
            line["against_first"] = difference | numbers
        yield line


def _cells(task: str, metrics: Mapping[str, float]) -> Sequence[str]:
    values = {name.removeprefix(f"eval/{task}/"): value for name, value in metrics.items()}
    if "accuracy" not in values:
        return "0", "-", "-"
    accuracy = Interval(value=values["accuracy"], low=values["accuracy_low"], high=values["accuracy_high"])
    return f"{values['num_examples']:,.0f}", percent(accuracy), f"{values['truncated_share']:.1%}"


def _against(one: Comparison | None) -> Sequence[str]:
    if one is None:
        return "", ""
    value, low, high = (100 * number for number in (one.difference.value, one.difference.low, one.difference.high))
    return f"{value:+.1f} ({low:+.1f} to {high:+.1f})", f"{one.num_common:,}"
