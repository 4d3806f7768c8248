"""Checks of the data on files of a hundred rows."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlvr.checks.data import rows_are_used, task_informs
from tests.unit.tasks.data_tasks import make, sums, write_jsonl


def of_rows(folder: Path, rows: list[dict[str, Any]]) -> Any:
    held_out = write_jsonl(folder / "held_out.jsonl", sums(2, start=1000))
    task = {"name": "jsonl", "path": str(write_jsonl(folder / "x.jsonl", rows)), "eval_path": str(held_out)}
    return SimpleNamespace(task=make(task))


@pytest.mark.parametrize(("repeated", "fails"), [(10, False), (11, True)])
def test_a_tenth_of_the_rows_may_be_left_out(repeated: int, fails: bool, tmp_path: Path) -> None:
    found = rows_are_used(of_rows(tmp_path, [*sums(100 - repeated), *sums(repeated)]))
    assert (found.status, found.says) == (
        ("fail", "11 of 100 training rows repeat an earlier question: left out")
        if fails
        else ("ok", "90 of 100 training rows are used")
    )
    assert found.evidence["left_out"] == [f"{repeated} repeat an earlier question"]


@pytest.mark.parametrize(
    ("num", "alike", "says"),
    [
        (20, 18, "20 different questions have 3 different answers"),
        (20, 19, "19 of 20 answers are '7': nothing about the question has to be learnt"),
        (19, 19, "19 different questions have 1 different answers"),  # too few to tell
    ],
)
def test_nine_answers_of_ten_may_be_alike(num: int, alike: int, says: str, tmp_path: Path) -> None:
    rows = [row | {"answer": 7 if n < alike else 500 + n} for n, row in enumerate(sums(num, start=30))]
    found = task_informs(of_rows(tmp_path, rows))
    assert (found.says, found.status) == (says, "fail" if "nothing" in says else "ok")
