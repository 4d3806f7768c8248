"""From files of records to the page: the numbers are those of `rlvr analyze`."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlvr.commands.report.scores import write_evaluation_report
from rlvr.evaluation.analysis import analyze
from rlvr.records.graded import EvaluationRecord, write_jsonl
from tests.unit.evaluation.records import greedy
from tests.unit.report.runs import chunk_of

FIRST = greedy([1, 0, 0, 1, 0, 0, 0, 1], model="a", tags=("2_hops",))
SECOND = greedy([1, 1, 1, 1, 0, 1, 1, 1], model="b", tags=("2_hops",))


def save(path: Path, records: list[EvaluationRecord]) -> Path:
    write_jsonl(str(path), records)
    return path


def page(path: Path) -> Any:
    return chunk_of(path.read_text(), "main")


def test_numbers_are_those_of_the_analysis(tmp_path: Path) -> None:
    files = [save(tmp_path / "a.jsonl", FIRST), save(tmp_path / "b.jsonl", SECOND)]
    report = write_evaluation_report(files, tmp_path / "out.html")
    analysis = analyze([*FIRST, *SECOND])
    main = page(report.path)
    assert (report.num_episodes, report.num_left_out, report.size) == (16, 0, report.path.stat().st_size)
    assert main["kind"] == "evaluations"
    for shown, cell in zip(main["evaluations"]["cells"], analysis.cells, strict=True):
        accuracy = cell.scores["accuracy"]
        assert shown["scores"]["accuracy"] == pytest.approx([accuracy.value, accuracy.low, accuracy.high], rel=1e-5)
        (kind,) = shown["kinds"]
        found = kind["tag"], kind["num_examples"], kind["accuracy"][0]
        assert found == ("2_hops", 8, shown["scores"]["accuracy"][0])
        assert shown["cost"]["completion_tokens"] == cell.cost.completion_tokens
        assert set(shown["numbers"]) == set(cell.numbers)
    (shown,), (one,) = main["evaluations"]["sets"][0]["comparisons"], analysis.comparisons
    assert (shown["first"], shown["second"], shown["sentence"]) == ("a", "b", one.sentence)
    assert shown["difference"][0] == one.difference.value == 0.5
    assert (shown["only_first"], shown["only_second"]) == (0, 4)


def test_a_folder_is_searched_and_damage_is_named(tmp_path: Path) -> None:
    save(tmp_path / "a.jsonl", FIRST)
    with save(tmp_path / "b.jsonl", SECOND).open("a") as file:
        file.write('{"model": 3')
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    report = write_evaluation_report([tmp_path])
    assert report.path == tmp_path / "report.html"
    assert report.num_episodes == 16
    (note,) = report.notes
    assert "b.jsonl, line 9" in note
    assert page(report.path)["notes"] == report.notes
    assert write_evaluation_report([tmp_path / "a.jsonl"]).path == tmp_path / "a.html"


def test_a_benchmarks_folder_has_the_names_of_its_plan(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    save(tmp_path / "records/x.jsonl", FIRST)
    cell = {"model": "runs/small", "task": "rpn_small", "own_task": "rpn", "file": "records/x.jsonl"}
    (tmp_path / "benchmark.json").write_text(json.dumps({"cells": [cell]}))
    main = page(write_evaluation_report([tmp_path]).path)
    assert main["kind"] == "benchmark"
    (cell,) = main["evaluations"]["cells"]
    assert (cell["name"], cell["task"]) == ("runs/small", "rpn_small")
    assert "accuracy" in cell["scores"]


@pytest.mark.parametrize(
    ("count", "title"),
    [(1, "0.jsonl"), (2, "0.jsonl and 1.jsonl"), (3, "0.jsonl and 2 more"), (5, "0.jsonl and 4 more")],
)
def test_a_page_is_named_after_one_or_two_files(count: int, title: str, tmp_path: Path) -> None:
    files = [save(tmp_path / f"{number}.jsonl", greedy([1], model=f"m{number}")) for number in range(count)]
    assert page(write_evaluation_report(files).path)["title"] == title


def test_numbers_of_a_comparison_are_rounded_and_none_is_null(tmp_path: Path) -> None:
    files = [save(tmp_path / "a.jsonl", greedy([0] * 3)), save(tmp_path / "b.jsonl", greedy([0, 1, 1], model="b"))]
    main = page(write_evaluation_report(files).path)
    cells = {cell["name"]: cell for cell in main["evaluations"]["cells"]}
    assert cells["a"]["cost"]["tokens_per_right"] is None
    assert cells["b"]["cost"]["tokens_per_right"] == 9.0
    (shown,) = main["evaluations"]["sets"][0]["comparisons"]
    assert (shown["p_value"], shown["adjusted_p_value"], shown["is_real"]) == (0.5, 0.5, False)
    assert (shown["num_common"], shown["only_first"], shown["only_second"]) == (3, 0, 2)
    assert shown["sampled"] is None
