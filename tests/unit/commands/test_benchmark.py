"""The table of a benchmark, and the names of its files."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from rlvr.commands.benchmark.body import (
    Benchmark,
    BenchmarkPlan,
    Measurement,
    _csv,
    _summarize,
    join,
    make_cells,
    write_plan,
)
from rlvr.config.compose import load_config
from rlvr.errors import ConfigError, UserError
from rlvr.evaluation.analysis import analyze
from rlvr.records.graded import write_jsonl
from tests.unit.cli.conftest import Rlvr
from tests.unit.evaluation.records import greedy

CONFIG = load_config([], config_name="rpn_test")


def cell(model: str, task: str, retriever: str = "-") -> Measurement:
    return Measurement(model=model, task=task, own_task="rpn", retriever=retriever, config=CONFIG)


def test_rows_are_in_the_order_of_the_plan() -> None:
    cells = (cell("a", "mix"), cell("b", "mix"), cell("a", "rpn"), cell("a", "mix/x"), cell("b", "rpn"))
    records = [
        *greedy([1], task="mix/x", settings="s1"),  # of the plan's own mix/x, not of the mix
        *greedy([1], task="rpn"),
        *greedy([1], task="mix/musique", retriever="bm25"),  # a set that searches, in a task that does not
        *greedy([1], task="mix/gsm8k"),
    ]
    found = Benchmark(cells=cells, analysis=analyze(records), failed=(cells[1], cells[4]))
    rows = [re.split(r"\s{2,}", line)[:2] for line in found.table().splitlines()[2:]]
    assert [" ".join(row) for row in rows] == ["a mix/musique", "a mix/gsm8k", "b mix", "a rpn", "a mix/x", "b rpn"]
    assert [line["kind"] for line in found.lines()] == ["cell"] * 4 + ["failed"] * 2


def test_the_default_retriever_stays_when_another_is_added(tmp_path: Path) -> None:
    plan = join(tmp_path, BenchmarkPlan(models=("a",), tasks=("musique",)))
    write_plan(tmp_path, plan, make_cells(plan))
    more = join(tmp_path, BenchmarkPlan(models=(), tasks=(), retrievers=("golden",)))
    assert more.retrievers == (*plan.retrievers, "golden")
    assert [one.retriever for one in make_cells(more)] == [*plan.retrievers, "golden"]
    assert len(plan.retrievers) == 1


def test_every_cell_has_a_file_with_a_portable_name() -> None:
    models = ["a", "runs/a", "runs-a", "runs_a", "../a", "a__b", "openai:http://h:1/v1#a", "ä" * 300, "x" * 300]
    files = [cell(model, task).file for model in models for task in ("rpn", "a__rpn")]
    files += [cell("a", "rpn", retriever).file for retriever in ("bm25", "semantic/BAAI/bge-small", "hybrid")]
    assert len({file.lower() for file in files}) == len(files)
    assert all(re.fullmatch(r"records/[A-Za-z0-9._-]{1,200}\.jsonl", file) for file in files)
    assert cell("a", "rpn").file == "records/a__rpn__-.jsonl"


def joined(folder: Path, known: BenchmarkPlan, **asked: Any) -> BenchmarkPlan:
    write_plan(folder, known, ())
    return join(folder, BenchmarkPlan(**{"models": (), "tasks": (), **asked}))


def test_models_tasks_and_counts_are_added_in_their_order(tmp_path: Path) -> None:
    known = BenchmarkPlan(models=("a",), tasks=("rpn",), num_examples=7, samples_per_example=2, changes=("seed=3",))
    assert joined(tmp_path, known) == known
    more = joined(tmp_path, known, models=("b", "a"), tasks=("rpn", "rpn_small"), num_examples=8, samples_per_example=4)
    assert (more.models, more.tasks, more.retrievers) == (("a", "b"), ("rpn", "rpn_small"), ())
    assert (more.num_examples, more.samples_per_example, more.changes) == (8, 4, ("seed=3",))
    same = joined(tmp_path, known, changes=("seed=3",), num_examples=7, config_dir=str(tmp_path))
    assert (same.num_examples, same.config_dir) == (7, str(tmp_path))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"num_examples": 6}, "--num-examples 6: .* holds a benchmark with 7, which can grow but not shrink"),
        ({"samples_per_example": 1}, "--samples-per-example 1: .* holds a benchmark with 2, which can grow"),
        ({"changes": ("seed=4",)}, "--set seed=4: .* holds a benchmark made --set seed=3, and its numbers could not"),
        ({"changes": ("seed=3", "rollout.top_k=5")}, "--set seed=3: .* holds a benchmark made --set seed=3, and"),
    ],
)
def test_what_would_not_be_comparable_is_refused(asked: dict[str, Any], said: str, tmp_path: Path) -> None:
    known = BenchmarkPlan(models=("a",), tasks=("rpn",), num_examples=7, samples_per_example=2, changes=("seed=3",))
    with pytest.raises(ConfigError, match=said):
        joined(tmp_path, known, **asked)


@pytest.mark.parametrize(
    ("asked", "option"), [({}, "--models"), ({"models": ("a",)}, "--tasks"), ({"tasks": ("rpn",)}, "--models")]
)
def test_a_new_folder_needs_models_and_tasks(asked: dict[str, Any], option: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{option}: is needed, as .* holds no benchmark to go on with"):
        join(tmp_path, BenchmarkPlan(**{"models": (), "tasks": (), **asked}))
    (tmp_path / "benchmark.json").write_text("{")
    with pytest.raises(UserError, match=r"benchmark\.json is damaged: delete it and give --models and --tasks again"):
        join(tmp_path, BenchmarkPlan(models=("a",), tasks=("rpn",)))


def test_cells_come_task_by_task_and_retrievers_are_for_tasks_that_search() -> None:
    plan = BenchmarkPlan(models=("a", "b"), tasks=("rpn", "musique"), retrievers=("bm25", "golden"), num_examples=7)
    cells = make_cells(plan)
    assert [(one.model, one.task, one.retriever) for one in cells] == [
        *(("a", "rpn", "-"), ("b", "rpn", "-")),
        *((model, "musique", retriever) for retriever in ("bm25", "golden") for model in "ab"),
    ]
    assert [one.name for one in cells[1:3]] == ["b on rpn", "a on musique with bm25"]
    assert {one.config.evaluation.num_examples for one in cells} == {7}
    assert cells[0].own_task == "rpn"
    with pytest.raises(ConfigError, match="--retrievers bm25: none of rpn searches documents"):
        make_cells(BenchmarkPlan(models=("a",), tasks=("rpn",), retrievers=("bm25",)))


def test_the_comma_separated_values_have_a_line_for_each_cell() -> None:
    records = [*greedy([1, 0]), *greedy([1, 1], model="b", retriever="bm25")]
    rows = [*csv.DictReader(io.StringIO(_csv(analyze(records))))]
    assert [(row["model"], row["retriever"], row["num_examples"]) for row in rows] == [
        ("a", "-", "2"),
        ("b", "bm25", "2"),
    ]
    assert [float(row["accuracy"]) for row in rows] == [0.5, 1.0]
    assert all(float(row["accuracy_low"]) < float(row["accuracy"]) for row in rows)
    assert [row["reward"] for row in rows] == ["0.5", "1.0"]
    assert _csv(None) == "\n"


def test_a_table_of_failures_alone_has_no_differences() -> None:
    found = Benchmark(cells=(cell("a", "rpn"),), analysis=None, failed=(cell("a", "rpn"),))
    assert found.lines() == [{"kind": "failed", "model": "a", "task": "rpn", "retriever": "-"}]
    assert found.table().splitlines()[-1].split() == ["a", "rpn", "-", "failed", "-"]
    two = Benchmark(
        cells=(cell("a", "rpn"), cell("b", "rpn")), analysis=analyze([*greedy([1]), *greedy([0], model="b")]), failed=()
    )
    assert "- b against a on rpn: no difference" in two.table()
    assert "| pass@" not in two.table(markdown=True)
    assert "| error share" in two.table(markdown=True)


@pytest.mark.parametrize("failed", [0, 1, 2])
def test_the_command_prints_a_table_or_lines_and_fails_with_its_cells(
    failed: int, tmp_path: Path, rlvr: Rlvr, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells, asked = (cell("a", "rpn"), cell("b", "musique", "bm25")), list[Any]()
    analysis = analyze(greedy([1])) if failed < 2 else None
    found = Benchmark(cells=cells, analysis=analysis, failed=cells[2 - failed :])

    def run(folder: Path, plan: BenchmarkPlan, **shown: Any) -> Benchmark:
        asked.append((folder, plan))
        return found

    monkeypatch.setattr("rlvr.commands.benchmark.body.benchmark", run)
    words = ("--models", "a, b,a", "--tasks", "rpn,musique", "--output-dir", tmp_path, "--num-examples", 7)
    ran = rlvr("benchmark", *words)
    assert (ran.code, ran.out) == (int(failed > 0), found.table())
    names = {0: "", 1: "b on musique with bm25", 2: "a on rpn, b on musique with bm25"}[failed]
    assert ran.err == (f"{failed} of 2 cells failed; the same command tries them again: {names}\n" if failed else "")
    asked_for_lines = rlvr("benchmark", *words, "--json")
    assert [json.loads(line) for line in asked_for_lines.out.splitlines()] == json.loads(json.dumps(found.lines()))
    folder, plan = asked[0]
    assert (folder, plan.models, plan.tasks, plan.retrievers) == (tmp_path, ("a", "b"), ("rpn", "musique"), ())
    assert (plan.num_examples, plan.samples_per_example, plan.changes) == (7, None, ())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--models", "a,,b"), "'a,,b' has an empty name between its commas"),
        (("--tasks", " "), "' ' has an empty name between its commas"),
        (("--output-dir", "{}/file"), "--output-dir {}/file: is no folder; choose another one."),
    ],
)
def test_names_and_a_folder_are_refused_at_once(words: tuple[str, ...], said: str, tmp_path: Path, rlvr: Rlvr) -> None:
    (tmp_path / "file").write_text("")
    ran = rlvr("benchmark", "--output-dir", tmp_path, *(word.format(tmp_path) for word in words))
    assert (ran.code, ran.out) == (2, "")
    assert said.format(tmp_path) in ran.err


def test_what_was_measured_is_summed_up_in_three_files(tmp_path: Path) -> None:
    """Records of cells that failed do not count, and others in the folder neither."""
    cells, said = (cell("a", "rpn"), cell("b", "rpn"), cell("c", "rpn")), list[str]()
    plan = BenchmarkPlan(models=("a", "b", "c"), tasks=("rpn",))
    write_plan(tmp_path, plan, cells)
    for one, right in zip(cells, ([1, 1], [1, 0], [0, 0]), strict=True):
        write_jsonl(str(tmp_path / one.file), greedy(right, model=one.model))
    write_jsonl(str(tmp_path / "records" / "own.jsonl"), greedy([0], model="own"))
    found = _summarize(tmp_path, cells, cells[2:], said.append)
    assert found.analysis is not None
    assert [one.model for one in found.analysis.cells] == ["a", "b"]
    assert json.loads((tmp_path / "summary.json").read_text()) == json.loads(json.dumps(found.lines()))
    assert [line["kind"] for line in found.lines()] == ["cell", "cell", "comparison", "failed"]
    assert "seconds" not in found.lines()[0]["cost"]
    assert (tmp_path / "summary.md").read_text() == found.table(markdown=True)
    assert [row["model"] for row in csv.DictReader(io.StringIO((tmp_path / "summary.csv").read_text()))] == ["a", "b"]
    assert said == []
    none = _summarize(tmp_path, cells, cells, said.append)
    assert (none.analysis, (tmp_path / "summary.csv").read_text()) == (None, "\n")
