"""What a start of a run was made from, and what of it has changed."""

import json
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from rlvr.config import Config
from rlvr.config.compose import load_config
from rlvr.run import starts
from rlvr.run.starts import (
    CODE,
    Start,
    changes_data,
    edits,
    libraries,
    made_from,
    other_data,
    other_libraries,
    read_starts,
    start_of,
    write_start,
)
from rlvr.run.tasks import Tasks, open_tasks
from rlvr.types import Example

ROWS = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(40)]


@contextmanager
def opened(folder: Path, *overrides: str) -> Iterator[tuple[Config, Tasks]]:
    """A task on the rows of `folder/rows.jsonl`, and rpn beside it."""
    lines = ["model=scratch_bpe", "task=jsonl", f"task.path={folder / 'rows.jsonl'}", "evaluation.num_examples=8"]
    config = load_config([*lines, *overrides], config_name="gsm8k_smoke")
    with open_tasks(config, None, {}) as tasks:
        yield config, tasks


def write_rows(folder: Path, rows: list[dict[str, str]]) -> None:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def start(tmp_path: Path) -> Start:
    write_rows(tmp_path, ROWS)
    with opened(tmp_path) as (config, tasks):
        write_start(tmp_path, 0, config, tasks)
    return read_starts(tmp_path)[0]


def test_nothing_has_changed(start: Start, tmp_path: Path) -> None:
    with opened(tmp_path, "tracker.console=none", "trainer.keep_last=7", "run_dir=other") as (config, tasks):
        assert edits(start, config, 3) == other_libraries(start) == other_data(start, config, tasks) == []
    assert start.data["jsonl"].examples == start.data["jsonl"].numbers["training"] > 30


def edited(place: int, **changes: str) -> Callable[[list[dict[str, str]]], list[dict[str, str]]]:
    return lambda rows: [*rows[:place], rows[place] | changes, *rows[place + 1 :]]


DATA = {
    "an answer": (edited(7, answer="15"), r"as many rows, other training examples"),
    "a question": (edited(39, question="What is 39 and 39?"), r"as many rows, other|rows, and \d+ in the run"),
    "a row more": (lambda rows: [*rows, {"question": "What is 9 + 1?", "answer": "10"}], r"\d+ \S+ rows, and \d+ in"),
    "a row less": (lambda rows: rows[:-1], r"\d+ \S+ rows, and \d+ in the run"),
    "their order": (lambda rows: rows[::-1], "as many rows, other training examples"),
}


@pytest.mark.parametrize("name", DATA)
def test_other_data_are_said(name: str, start: Start, tmp_path: Path) -> None:
    edit, said = DATA[name]
    write_rows(tmp_path, edit(ROWS))
    with opened(tmp_path) as (config, tasks):
        (line,) = other_data(start, config, tasks)
        assert other_data(replace(start, data={}), config, tasks) == []
    assert line.startswith("the data of jsonl changed: ")

    assert re.search(said, line), line


def test_edited_settings_are_said(start: Start, tmp_path: Path) -> None:
    with opened(tmp_path, "trainer.learning_rate=0.5", "trainer.max_steps=7") as (config, _):
        assert edits(start, config, 3) == [
            "config.yaml was edited: trainer.learning_rate is 0.5, and was "
            f"{start.settings['trainer.learning_rate']} when step 3 was made"
        ]
        assert not changes_data(edits(start, config, 3))
        gone = replace(start, settings={**start.settings, "reward.parts.own.weight": 1.0})
        assert "reward.parts.own.weight is absent, and was 1.0" in edits(gone, config, 3)[0] + edits(gone, config, 3)[1]
        older = replace(gone, libraries={**start.libraries, "rlvr": "0.1.0"})
        assert len(edits(older, config, 3)) == 1
    with opened(tmp_path, "trainer.schedule=linear", "trainer.max_steps=7") as (config, _):
        assert any("trainer.max_steps is 7" in line for line in edits(start, config, 3))
    with opened(tmp_path, "seed=5") as (config, _):
        assert changes_data(edits(start, config, 3))


def test_other_libraries_are_said() -> None:
    def said(**before: str | None) -> list[str]:
        kept = {name: version for name, version in (libraries() | before).items() if version is not None}
        return other_libraries(Start(step=0, settings={}, libraries=kept, data={}))

    now = libraries()
    assert said(torch=None, numpy="1.0") == [
        f"numpy is {now['numpy']}, and was 1.0 in the run",
        f"torch is {now['torch']} here, and was not installed in the run",
    ]
    assert said(gone="2") == ["gone is not installed here, and was 2 in the run"]
    assert said(**{CODE: "x"}) == [f"rlvr's own code is not that of the run, although both are {now['rlvr']}"]
    assert said(**{CODE: "x", "rlvr": "0.1"}) == [f"rlvr is {now['rlvr']}, and was 0.1 in the run"]


def test_a_step_belongs_to_the_last_start_before_it(tmp_path: Path) -> None:
    write_rows(tmp_path, ROWS)
    with opened(tmp_path) as (config, tasks):
        for step in (0, 4, 9, 6):
            write_start(tmp_path, step, config, tasks)
    assert [start.step for start in read_starts(tmp_path)] == [0, 4, 6]
    found = [start_of(tmp_path, step) for step in (1, 4, 5, 6, 7, 99)]
    assert [start and start.step for start in found] == [0, 0, 4, 4, 6, 6]
    assert start_of(tmp_path / "absent", 1) is None
    (tmp_path / starts.NAME).write_text('{"step": 0}\n[1]\n')
    assert read_starts(tmp_path) == []


@pytest.mark.parametrize("patience_s", [math.inf, 0.0])
def test_slow_and_failing_examples(patience_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many are compared as were looked at; one that fails is left to the step that trains on it."""
    write_rows(tmp_path, ROWS)
    monkeypatch.setattr(starts, "PATIENCE_S", patience_s)
    with opened(tmp_path) as (config, tasks):
        whole = tasks.own.train_example

        def train_example(index: int) -> Example:
            if index == 5:
                raise RuntimeError("no such row")
            return whole(index)

        monkeypatch.setattr(tasks.own, "train_example", train_example)
        found = made_from(0, config, tasks)
        assert found.data["jsonl"].examples == (5 if patience_s else 1)
        assert other_data(found, config, tasks) == []
        monkeypatch.setattr(tasks.own, "train_example", lambda index: replace(whole(index), answer="0"))
        assert other_data(found, config, tasks) == ["the data of jsonl changed: as many rows, other training examples"]
