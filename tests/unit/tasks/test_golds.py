"""Rows whose gold the reward cannot read are named, counted and left out."""

from pathlib import Path
from typing import Any

import pytest

from rlvr.data.problems import Problem
from rlvr.errors import UserError
from rlvr.rewards.base import Part
from rlvr.rewards.parts import PartMetric, PartRunner
from rlvr.rewards.sandbox import Sandbox
from rlvr.tasks import golds
from rlvr.types import Attempt
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


def test_held_out_rows_that_cannot_be_read_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlvr.tasks.loading.NUM_AT_LOADING", 0)
    rows = [{"question": f"Which one is {row}?", "answer": answer} for row, answer in enumerate(UNREAD + READ)]
    held_out = write_jsonl(tmp_path / "held_out.jsonl", rows)
    with opened(task_of(tmp_path, READ, eval_path=str(held_out))) as task:
        readable = [example.answer for example in task.eval_examples(len(rows))]
        assert sorted(readable) == sorted(READ)
        for num in range(1, len(READ)):
            assert [example.answer for example in task.eval_examples(num)] == readable[:num]


class Slow(Part):
    """Never done with reading a gold."""

    def grade(self, attempt: Attempt) -> float:
        return 0.0

    def surely_reads(self, gold: str) -> bool:
        return False

    def reads_gold(self, gold: str) -> bool:
        while gold:
            pass
        return False


class SlowMetric(PartMetric):
    runner = PartRunner("slow", Slow())


def test_a_gold_that_takes_too_long_is_kept() -> None:
    with Sandbox(num_workers=1, timeout_s=0.2, max_memory_mb=1024) as sandbox:
        reader = golds.GoldReader(None, SlowMetric(), sandbox)
        assert reader.unread([Problem(question="?", answer="a", id="a", key=b"a")]) == []


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
