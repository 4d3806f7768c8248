"""The table of a benchmark, and the names of its files."""

import re
from pathlib import Path

import pytest

from rlvr.commands.benchmark.body import Benchmark, Cell, Plan, join, make_cells, write_plan
from rlvr.config.compose import load_config
from rlvr.evaluation.analysis import analyze
from tests.unit.evaluation.records import greedy

pytestmark = pytest.mark.slow

CONFIG = load_config([], config_name="rpn_test")


def cell(model: str, task: str, retriever: str = "-") -> Cell:
    return Cell(model=model, task=task, own_task="rpn", retriever=retriever, config=CONFIG)


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
    plan = join(tmp_path, Plan(models=("a",), tasks=("musique",)))
    write_plan(tmp_path, plan, make_cells(plan))
    more = join(tmp_path, Plan(models=(), tasks=(), retrievers=("golden",)))
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
