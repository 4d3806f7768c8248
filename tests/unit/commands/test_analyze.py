"""`rlvr analyze`: its output and its errors."""

from dataclasses import replace
from pathlib import Path

import pytest

from rlvr.records.graded import write_jsonl
from tests.unit.cli.conftest import Rlvr
from tests.unit.evaluation.records import greedy


@pytest.fixture
def results(tmp_path: Path) -> Path:
    write_jsonl(str(tmp_path / "a.jsonl"), greedy([0] * 20))
    write_jsonl(str(tmp_path / "b.jsonl"), greedy([1] * 15 + [0] * 5, model="b"))
    return tmp_path


def test_analyze_prints_tables_and_comparisons(results: Path, rlvr: Rlvr) -> None:
    ran = rlvr("analyze", results)
    assert (ran.code, ran.err) == (0, "")
    assert "75.0% (53.1 to 88.8)" in ran.out
    assert "b is better than a on rpn by 75.0 points" in ran.out
    assert "Where they disagree: 0 that only a gets right, 15 only b" in ran.out


def test_analyze_json_and_markdown(results: Path, rlvr: Rlvr) -> None:
    lines = rlvr("analyze", results, "--json", "--output", results / "new" / "a.md").lines
    assert [line["kind"] for line in lines] == ["cell", "cell", "comparison"]
    assert "| accuracy " in (results / "new" / "a.md").read_text()


def test_names_in_records_are_escaped(tmp_path: Path, rlvr: Rlvr) -> None:
    hostile = "\x1b]0;owned\x07\x9b2J"
    write_jsonl(str(tmp_path / "a.jsonl"), [replace(one, failure="no") for one in greedy([0], model=hostile)])
    for words in (["--baseline", "b"], []):
        ran = rlvr("analyze", tmp_path, *words)
        told = ran.out + ran.err
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
def test_analyze_refuses_in_one_sentence(results: Path, words: list[str], code: int, said: str, rlvr: Rlvr) -> None:
    ran = rlvr("analyze", *(word.format(results) for word in words))
    assert (ran.code, ran.out, ran.err.count("\n")) == (code, "", 1)
    assert said in ran.err


def test_the_tables_are_written_into_folders_that_are_not_there(results: Path, rlvr: Rlvr) -> None:
    output = results / "some" / "new" / "a.md"
    for _ in range(2):
        assert rlvr("analyze", results, "--output", output).code == 0
    assert "| accuracy " in output.read_text()


@pytest.mark.parametrize(("words", "shown"), [((), 2), (("--examples", 1), 1), (("--examples", 0), 0)])
def test_two_examples_of_each_kind_are_shown(words: tuple[object, ...], shown: int, results: Path, rlvr: Rlvr) -> None:
    out = rlvr("analyze", results, *words).out
    names = [line.partition(":")[0] for line in out.splitlines() if line.endswith(" =")]
    numbers = ([0, 1], [0, 1], [15, 16], [0, 1])  # worst of a, best and worst of b, where they disagree
    assert names == [f"e{number}" for kind in numbers for number in kind[:shown]]


def test_a_baseline_is_compared_with_every_other_model(results: Path, rlvr: Rlvr) -> None:
    write_jsonl(str(results / "c.jsonl"), greedy([1] * 20, model="c"))
    lines = rlvr("analyze", results, "--baseline", "b", "--json").lines
    assert [(one["first"], one["second"]) for one in lines if one["kind"] == "comparison"] == [("b", "a"), ("b", "c")]
