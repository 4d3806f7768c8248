"""Rows and functions in memory get a name that a configuration can hold."""

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from rlvr.cli.calls import data_file, import_path
from rlvr.config.compose import load_config
from rlvr.errors import ConfigError
from rlvr.lines import override_lines

ROWS = [{"question": "1 + 1?", "answer": "2"}, {"question": "größer 🙂\ud800?", "answer": [1.5, "x"]}]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_rows_are_kept_in_a_file_named_by_their_content(tmp_path: Path) -> None:
    path = Path(data_file(ROWS, "data") or "")
    assert path.parent == tmp_path / "runs" / "data"
    assert [json.loads(line) for line in path.read_text().splitlines()] == ROWS
    before = path.stat().st_mtime_ns
    assert data_file([dict(row) for row in ROWS], "data") == str(path)
    assert data_file(iter(ROWS), "data") == str(path)
    assert path.stat().st_mtime_ns == before
    assert data_file(ROWS[:1], "data") != str(path)
    assert len(list(path.parent.iterdir())) == 2


def test_a_file_is_named_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert data_file("a.jsonl", "data") == str(tmp_path / "a.jsonl")
    assert data_file(Path("b c.json.gz"), "data") == str(tmp_path / "b c.json.gz")
    assert data_file("~/a.jsonl", "data") == str(tmp_path / "home" / "a.jsonl")
    assert data_file(None, "data") is None
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ([], "eval_data has no rows: give some, each with a question and an answer."),
        ([ROWS[0], ("q", "a")], "eval_data, row 2 is ('q', 'a'): it must be a mapping such as"),
        ([{"question": "q", "answer": object}], "eval_data, row 1 holds what JSON cannot ("),
        (ROWS[0], "eval_data is a dict: give a list of rows, or the path of a file."),
    ],
)
def test_data_without_rows_is_one_sentence(data: Any, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        data_file(data, "eval_data")
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def on_top_level(completion: str) -> float:
    return float(len(completion))


class Scorer:
    def __call__(self, completion: str) -> float:
        return 0.0

    def score(self, completion: str) -> float:
        return 0.0


def functions() -> dict[str, Any]:
    def inner(completion: str) -> float:
        return 0.0

    def größe(completion: str) -> float:
        return 0.0

    here = "tests.unit.cli.test_call_files"
    return {
        f"{here}:on_top_level": on_top_level,
        f"{here}:functions._locals_.inner": inner,
        f"{here}:functions._locals_.gr__e": größe,
        f"{here}:functions._locals_._lambda_": lambda completion: 0.0,
        f"{here}:Scorer": Scorer(),
        f"{here}:Scorer.score": Scorer().score,
        "functools:partial": functools.partial(on_top_level),
        "builtins:len": len,
    }


@pytest.mark.slow
@pytest.mark.parametrize("path", functions())
def test_every_function_has_a_path_that_the_schema_takes(path: str) -> None:
    assert import_path(functions()[path]) == path
    lines = override_lines({"task": "jsonl", "task.path": "x", "reward": "custom", "prompt": "plain"})
    lines += override_lines({"reward.parts.custom.function": path})
    config = load_config(lines, config_name="gsm8k")
    assert config.reward.parts["custom"].function == path  # type: ignore[union-attr]
