"""`rlvr analyze`: what is printed where, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rlvr.cli.main import main
from rlvr.tracking.evaluations import write_jsonl
from tests.unit.evaluation.records import greedy


@pytest.fixture
def results(tmp_path: Path) -> Path:
    write_jsonl(str(tmp_path / "a.jsonl"), greedy([0] * 20))
    write_jsonl(str(tmp_path / "b.jsonl"), greedy([1] * 15 + [0] * 5, model="b"))
    return tmp_path


def test_analyze_prints_tables_and_what_is_better(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(results)]) == 0
    out, err = capsys.readouterr()
    assert "75.0% (53.1 to 88.8)" in out
    assert "b is better than a on rpn by 75.0 points" in out
    assert "Where they disagree: 0 that only a gets right, 15 only b" in out
    assert err == ""


def test_analyze_json_and_markdown(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(results), "--json", "--output", str(results / "new" / "a.md")]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["kind"] for line in lines] == ["cell", "cell", "comparison"]
    assert "| accuracy " in (results / "new" / "a.md").read_text()


def test_names_out_of_records_do_not_reach_the_terminal_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = "\x1b]0;owned\x07\x9b2J"
    write_jsonl(str(tmp_path / "a.jsonl"), [replace(one, failure="no") for one in greedy([0], model=hostile)])
    for words in (["--baseline", "b"], []):
        main(["analyze", str(tmp_path), *words])
        told = "".join(capsys.readouterr())
        assert "owned" in told
        assert not set(hostile) & {char for char in told if not char.isprintable()}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["nowhere"], 1, "there is no file or folder"),
        (["{}", "--baseline", "bb"], 2, "there are a, b"),
        ([], 2, "arguments are required"),
    ],
)
def test_analyze_refuses_in_one_sentence(
    results: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, said: str
) -> None:
    assert main(["analyze", *(word.format(results) for word in words)]) == code
    out, err = capsys.readouterr()
    assert said in err
    assert (out, err.count("\n")) == ("", 1)
