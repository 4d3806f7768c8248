"""`rlvr eval --few-shot`: what its table and its JSON lines say, of results that were made by hand."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlvr.commands import eval as eval_command
from rlvr.commands.eval import _beside, _numbers
from rlvr.commands.eval.few_shot import compared, lines_of, table_of
from rlvr.evaluation.compare import compare
from rlvr.evaluation.summary import EvaluationResult
from tests.unit.cli.conftest import Rlvr
from tests.unit.evaluation.records import greedy


def result(right: Sequence[int], *, model: str, cut_off: float = 0.0) -> EvaluationResult:
    metrics = {"accuracy": sum(right) / max(1, len(right)), "accuracy_low": 0.125, "accuracy_high": 0.875}
    metrics |= {"num_examples": 1000.0 + len(right), "truncated_share": cut_off}
    named = {f"eval/rpn/{name}": value for name, value in metrics.items()} if right else {}
    return EvaluationResult(metrics=named, records=tuple(greedy(right, model=model)))


RESULTS = {
    0: result([0] * 12, model="a"),
    2: result([1] * 8 + [0] * 4, model="b", cut_off=0.25),
    4: result([1] * 3 + [0] * 9, model="c"),
    8: result([], model="d"),
}


def test_each_number_of_worked_examples_is_compared_with_the_first() -> None:
    """Its p values are adjusted for all of them, and one without a graded question is not among them."""
    found = compared(RESULTS)
    assert list(found) == [2, 4]
    assert [(one.first, one.second) for one in found.values()] == [("0-shot", "2-shot"), ("0-shot", "4-shot")]
    assert [one.num_comparisons for one in found.values()] == [2, 2]
    # McNemar's exact test: of 8 and of 3 questions that one alone gets right; Holm's factors are 2 and 1
    assert [one.p_value for one in found.values()] == pytest.approx([2 / 2**8, 2 / 2**3])
    assert [one.adjusted_p_value for one in found.values()] == pytest.approx([4 / 2**8, 2 / 2**3])


def test_a_json_line_has_the_metrics_and_the_difference_to_the_first() -> None:
    first, second, _, none = lines_of(RESULTS)
    assert first == {"few_shot": 0, **RESULTS[0].metrics}
    alone = compare(RESULTS[0].records, RESULTS[2].records, names=("0-shot", "2-shot"))
    assert alone is not None
    difference = alone.difference
    assert second == {
        "few_shot": 2,
        **RESULTS[2].metrics,
        "against_first": {
            "value": difference.value,
            "low": difference.low,
            "high": difference.high,
            "num_examples": 12,
            "p_value": alone.p_value,
            "adjusted_p_value": 2 * alone.p_value,
        },
    }
    assert difference.low < difference.value < difference.high
    assert none == {"few_shot": 8}


def test_the_table_has_a_row_for_each_number_and_a_sentence_for_each_comparison() -> None:
    title, head, _, *rows = table_of("some model", "rpn", RESULTS).splitlines()
    assert title == "some model"
    assert head.split("  ")[0] == "worked examples"
    assert "points against 0" in head
    cells = [[cell.strip() for cell in row.split("  ") if cell.strip()] for row in rows[:4]]
    assert [row[:4] for row in cells] == [
        ["0", "1,012", "0.0% (12.5 to 87.5)", "0.0%"],
        ["2", "1,012", "66.7% (12.5 to 87.5)", "25.0%"],
        ["4", "1,012", "25.0% (12.5 to 87.5)", "0.0%"],
        ["8", "0", "-", "-"],
    ]
    assert [len(row) for row in cells] == [4, 6, 6, 4]
    assert [row[4].split(" ")[0] for row in cells[1:3]] == ["+66.7", "+25.0"]
    assert [row[5] for row in cells[1:3]] == ["12", "12"]
    assert [row.split(" ")[:4] for row in rows[4:]] == [
        ["-", "2-shot", "is", "better"],
        ["-", "4-shot", "against", "0-shot"],
    ]


def test_records_of_each_number_have_their_own_file() -> None:
    assert _beside(Path("some/F.v2.jsonl"), 0) == Path("some/F.v2_0_shot.jsonl")


@pytest.mark.parametrize(("text", "numbers"), [("0", (0,)), ("4,0,2", (4, 0, 2))])
def test_numbers_of_worked_examples(text: str, numbers: tuple[int, ...]) -> None:
    assert _numbers(text) == numbers


@pytest.mark.parametrize("text", ["1,2,1", "-1", "a", "1,,2"])
def test_numbers_of_worked_examples_that_are_none(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        _numbers(text)


def test_each_number_is_evaluated_with_the_model_of_the_first(
    rlvr: Rlvr, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The largest number is checked before anything is evaluated; each has its own file."""
    asked = list[tuple[str | None, Sequence[str], Any]]()
    loaded: Any = SimpleNamespace(loaded=SimpleNamespace(source="some/model"))

    def evaluated(
        args: argparse.Namespace, output: str | None, more: Sequence[str], before: Any
    ) -> tuple[Any, dict[str, EvaluationResult]]:
        asked.append((output, more, before))
        shots = int(more[0].rpartition("=")[2])
        return loaded, {"rpn": RESULTS[shots], "more": RESULTS[8]}

    checked = list[Sequence[str]]()
    monkeypatch.setattr(eval_command, "evaluated", evaluated)
    monkeypatch.setattr(eval_command, "settings_of", lambda args, lines: checked.append(lines))
    words = ("eval", "some/model", "--task", "gsm8k", "--few-shot", "0,4,2")
    ran = rlvr(*words, "--output", tmp_path / "F.jsonl")
    assert checked == [["prompt.few_shot=4"]]
    assert asked == [
        (str(tmp_path / "F_0_shot.jsonl"), ["prompt.few_shot=0"], None),
        (str(tmp_path / "F_4_shot.jsonl"), ["prompt.few_shot=4"], loaded),
        (str(tmp_path / "F_2_shot.jsonl"), ["prompt.few_shot=2"], loaded),
    ]
    few: tuple[int, ...] = (0, 4, 2)
    tables = [
        table_of(f"some/model on {task}, by worked examples in the prompt", task, results)
        for task, results in (
            ("rpn", {shots: RESULTS[shots] for shots in few}),
            ("more", dict.fromkeys(few, RESULTS[8])),
        )
    ]
    assert ran.out == "".join(tables)
    lines = rlvr(*words, "--json").lines
    assert asked[-1][0] is None
    assert [(line["model"], line["task"], line["split"], line["few_shot"]) for line in lines] == [
        ("some/model", task, "test", shots) for task in ("rpn", "more") for shots in few
    ]
