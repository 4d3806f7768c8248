"""`rlvr score` as a user runs it: its output, and the error of a bad file."""

import gzip
import json
import math
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rlvr.commands.score import ScoredRow, _agrees
from tests.unit.cli.conftest import Rlvr
from tests.unit.rewards.official.rows import FIXTURE, data_folder, read_rows

GOOD = {"vid": "a", "task": "gsm8k", "prediction": "#### 18", "golds": ["#### 18"]}


def write(folder: Path, *lines: str | Mapping[str, Any]) -> str:
    file = folder / "rows.jsonl"
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    file.write_text(text, encoding="utf-8", errors="surrogateescape")
    return str(file)


def test_the_real_vectors_agree_through_the_real_command() -> None:
    file = data_folder() / "scoring_vectors.jsonl"
    command = [sys.executable, "-m", "rlvr", "score", str(file), "--json", "--check"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    *lines, summary = map(json.loads, result.stdout.splitlines())
    rows = read_rows(file)
    assert [line["vid"] for line in lines] == [row["vid"] for row in rows]
    assert [line["task"] for line in lines] == [row["task"] for row in rows]
    assert [line["metrics"] for line in lines] == [row["expected"] for row in rows]
    assert sum(task["num_rows"] for task in summary["summary"].values()) == 110
    assert result.stderr == "110 of 110 rows agree with their 'expected'\n"


def test_json_prints_one_line_a_row_and_then_the_summary(rlvr: Rlvr) -> None:
    *lines, last = rlvr("score", FIXTURE, "--json").lines
    rows = read_rows(FIXTURE)
    assert lines == [{"vid": row["vid"], "task": row["task"], "metrics": row["expected"]} for row in rows]
    assert last.keys() == {"summary"}
    assert list(last["summary"]) == list(dict.fromkeys(row["task"] for row in rows))
    finqa = last["summary"]["finqa_program"]
    assert finqa.keys() == {"num_rows"} | {
        name + end for name in ("invalid_flag", "exe_correct", "program_correct") for end in ("", "_low", "_high")
    }
    expected = [row["expected"]["exe_correct"] for row in rows if row["task"] == "finqa_program"]
    assert finqa["exe_correct"] == pytest.approx(sum(expected) / len(expected))
    assert finqa["exe_correct_low"] < finqa["exe_correct"] < finqa["exe_correct_high"]


def test_the_table_has_counts_means_and_intervals(tmp_path: Path, rlvr: Rlvr) -> None:
    wrong = GOOD | {"prediction": "#### 19"}
    text = {"vid": 3, "task": "musique_answer", "prediction": "Eton", "golds": ["Eton College"]}
    ran = rlvr("score", write(tmp_path, GOOD, wrong, "", text))
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[1].split() == ["mean", "95", "%", "interval"]
    assert lines[2] == "gsm8k, 2 rows"
    assert lines[3].split() == ["correct", "50.0%", "9.5%", "to", "90.5%"]  # Wilson, 1 of 2
    assert lines[4] == "musique_answer, 1 row"
    assert lines[5].split()[:2] == ["em", "0.0%"]
    assert lines[6].split()[:2] == ["f1", "66.7%"]
    assert len(lines) == 7


@pytest.mark.parametrize("name", ["new/scores.jsonl", "scores.jsonl.gz"])
def test_output_holds_the_lines_of_the_rows(name: str, tmp_path: Path, rlvr: Rlvr) -> None:
    output = tmp_path / name
    ran = rlvr("score", FIXTURE, "--json", "--output", output)
    data = output.read_bytes()
    text = (gzip.decompress(data) if name.endswith(".gz") else data).decode()
    assert text.splitlines() == ran.out.splitlines()[:-1]


RIGHT = GOOD | {"expected": {"extracted": "18", "correct": True}}
DIFFERS = GOOD | {"vid": "b", "expected": {"extracted": "18", "correct": False}}


@pytest.mark.parametrize(
    ("rows", "code", "said"),
    [
        ([RIGHT, GOOD], 0, "1 of 1 rows agree with their 'expected'\n"),
        ([RIGHT, DIFFERS, GOOD], 1, "1 of 2 rows differ from their 'expected', the first is vid b"),
        ([GOOD | {"expected": {"correct": True}}], 1, "1 of 1 rows differ"),
        ([GOOD | {"expected": {}}], 1, "1 of 1 rows differ"),
        ([GOOD | {"expected": 1}], 1, "1 of 1 rows differ"),
        ([GOOD | {"expected": {"extracted": "18", "correct": True, "more": 1}}], 1, "1 of 1 rows differ"),
        ([GOOD], 1, "no row with a field 'expected'"),
    ],
)
def test_check_names_the_first_row_that_differs(rows: Any, code: int, said: str, tmp_path: Path, rlvr: Rlvr) -> None:
    ran = rlvr("score", write(tmp_path, *rows), "--check")
    assert ran.code == code
    assert said in ran.err


def test_without_check_expected_values_are_ignored(tmp_path: Path, rlvr: Rlvr) -> None:
    assert rlvr("score", write(tmp_path, RIGHT, DIFFERS)).code == 0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 is not JSON"),
        ("[" * 100_000, "line 2 is not JSON"),
        ("1" * 5000, "line 2 is not JSON"),
        ("[1]", "line 2 is not JSON"),
        ("\udcff", "line 2 is not UTF-8"),
        ({"vid": "a", "task": "gsm8k", "prediction": "x"}, "line 2 has no field 'golds'; add it"),
        (GOOD | {"task": "gsm"}, "line 2: there is no task 'gsm'; use one of gsm8k, "),
        (GOOD | {"prediction": 18}, "line 2: prediction=18: give a text."),
        (GOOD | {"golds": ["18"]}, "line 2: the gold answer has no line `#### N`."),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(line: Any, message: str, tmp_path: Path, rlvr: Rlvr) -> None:
    file = write(tmp_path, GOOD, line)
    output = tmp_path / "scores.jsonl"
    ran = rlvr("score", file, "--output", output)
    assert ran.code == 1
    assert f"{file}, {message}" in ran.error
    assert not output.exists()


@pytest.mark.parametrize(
    ("found", "expected", "agrees"),
    [
        ({"f1": 0.5}, {"f1": 0.5 + 0.9e-6}, True),
        ({"f1": 0.5}, {"f1": 0.5 - 1.1e-6}, False),
        ({"f1": 1000.0}, {"f1": 1000.0005}, False),  # the tolerance is not relative
        ({"f1": 1.0}, {"f1": 1}, True),
        ({"f1": 1.0}, {"f1": "1.0"}, False),
        ({"f1": math.nan}, {"f1": math.nan}, True),
        ({"f1": math.nan}, {"f1": 0.0}, False),
        ({"f1": 0.0}, {"f1": math.nan}, False),
        ({"f1": math.inf}, {"f1": math.inf}, True),
        ({"f1": math.inf}, {"f1": -math.inf}, False),
        ({"correct": True}, {"correct": 1}, False),
        ({"num": 1}, {"num": 1.0}, False),
        ({"extracted": "a"}, {"extracted": "a"}, True),
        ({"extracted": "a"}, {"extracted": "b"}, False),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({"a": 1}, ["a"], False),
    ],
)
def test_metrics_agree_with_what_was_expected_of_them(found: Any, expected: Any, agrees: bool) -> None:
    assert _agrees(ScoredRow(vid="v", task="t", metrics=found, expected=expected)) == agrees
