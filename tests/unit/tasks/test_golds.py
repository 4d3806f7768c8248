"""Rows whose gold the reward cannot read are named, counted and left out."""

from pathlib import Path
from typing import Any

import pytest

from rlvr.errors import UserError
from rlvr.tasks import golds
from tests.unit.tasks.data_tasks import bundle, opened, write_jsonl

pytestmark = pytest.mark.slow

READ = ["2", "-1,080.5", "\\frac{1}{2}", "x=1 \\text{ or } x=2", "12:00", "2\\sqrt{3}", "0.\\overline{3}", "B", "yes"]
UNREAD = ["1, 2, \\ldots, n", "5\\text{ thousand}", "2n+1, n\\in\\mathbb{Z}", "7 \\approx 8", "?!"]


def task_of(folder: Path, answers: list[str], **more: Any) -> Any:
    rows = [{"question": f"What is the number {row}?", "answer": answer} for row, answer in enumerate(answers)]
    path = write_jsonl(folder / "x.jsonl", rows)
    metric = more.pop("metric", "math")
    return bundle({"name": "jsonl", "path": str(path), "metric": metric, **more}, reward=metric)


@pytest.mark.parametrize("at_loading", [golds.NUM_AT_LOADING, 0])
def test_rows_without_a_gold_that_can_be_read_are_never_drawn(
    tmp_path: Path, at_loading: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlvr.tasks.loading.NUM_AT_LOADING", at_loading)
    with opened(task_of(tmp_path, READ + UNREAD)) as task:
        drawn = {task.train_example(index).answer for index in range(40)}
        held_out = {example.answer for example in task.eval_examples(40)}
        said = [note for note in task.notes if "cannot read" in note]
        assert drawn | held_out == set(READ)
        assert len(task.unread_golds()) == (0 if at_loading else len(UNREAD))
        assert len(said) == bool(at_loading)
        assert all(f"{len(UNREAD)} training rows have a gold" in note and "x.jsonl, line 10: " in note for note in said)


@pytest.mark.parametrize("at_loading", [golds.NUM_AT_LOADING, 0])
def test_without_any_gold_the_task_does_not_begin(
    tmp_path: Path, at_loading: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlvr.tasks.loading.NUM_AT_LOADING", at_loading)
    with pytest.raises(UserError, match="cannot read"), opened(task_of(tmp_path, UNREAD)) as task:
        task.train_example(0)


def test_a_reward_that_reads_any_text_keeps_every_row(tmp_path: Path) -> None:
    with opened(task_of(tmp_path, READ + UNREAD[:-1], metric="text")) as task:
        assert sum(task.sizes) == len(READ + UNREAD[:-1])
        assert task.unread_golds() == []
