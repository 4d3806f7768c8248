"""`rlvr score` as a user runs it: what stands on stdout, and which sentence a bad file earns."""

import gzip
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rlvr.cli.main import main
from tests.unit.rewards.official.rows import FIXTURE, data_folder, read_rows

GOOD = {"vid": "a", "task": "gsm8k", "prediction": "#### 18", "golds": ["#### 18"]}


def write(folder: Path, *lines: str | Mapping[str, Any]) -> str:
    file = folder / "rows.jsonl"
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    file.write_text(text, encoding="utf-8", errors="surrogateescape")
    return str(file)


def json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The sentence on stderr of a command that fails without a word on stdout."""
    assert main(["score", *argv]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("rlvr: error: ")
    assert err.count("\n") == 1
    return err


def test_the_real_vectors_agree_through_the_real_command() -> None:
    file = data_folder() / "scoring_vectors.jsonl"
    command = [sys.executable, "-m", "rlvr", "score", str(file), "--json", "--check"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    *lines, summary = json_lines(result.stdout)
    rows = read_rows(file)
    assert [line["vid"] for line in lines] == [row["vid"] for row in rows]
    assert [line["task"] for line in lines] == [row["task"] for row in rows]
    assert [line["metrics"] for line in lines] == [row["expected"] for row in rows]
    assert sum(task["num_rows"] for task in summary["summary"].values()) == 110
    assert result.stderr == "110 of 110 rows agree with their 'expected'\n"


def test_json_prints_one_line_a_row_and_then_the_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", str(FIXTURE), "--json"]) == 0
    *lines, last = json_lines(capsys.readouterr().out)
    rows = read_rows(FIXTURE)
    assert [(line["vid"], line["task"], line["metrics"]) for line in lines] == [
        (row["vid"], row["task"], row["expected"]) for row in rows
    ]
    assert all(line.keys() == {"vid", "task", "metrics"} for line in lines)
    assert last.keys() == {"summary"}
    assert list(last["summary"]) == list(dict.fromkeys(row["task"] for row in rows))
    finqa = last["summary"]["finqa_program"]
    assert finqa.keys() == {"num_rows"} | {
        name + end for name in ("invalid_flag", "exe_correct", "program_correct") for end in ("", "_low", "_high")
    }
    expected = [row["expected"]["exe_correct"] for row in rows if row["task"] == "finqa_program"]
    assert finqa["exe_correct"] == pytest.approx(sum(expected) / len(expected))
    assert finqa["exe_correct_low"] < finqa["exe_correct"] < finqa["exe_correct_high"]


def test_the_table_has_counts_means_and_intervals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = GOOD | {"prediction": "#### 19"}
    text = {"vid": 3, "task": "musique_answer", "prediction": "Eton", "golds": ["Eton College"]}
    assert main(["score", write(tmp_path, GOOD, wrong, "", text)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["mean", "95", "%", "interval"]
    assert lines[2] == "gsm8k, 2 rows"
    assert lines[3].split() == ["correct", "50.0%", "9.5%", "to", "90.5%"]  # Wilson, 1 of 2
    assert lines[4] == "musique_answer, 1 row"
    assert lines[5].split()[:2] == ["em", "0.0%"]
    assert lines[6].split()[:2] == ["f1", "66.7%"]
    assert len(lines) == 7


@pytest.mark.parametrize("name", ["new/scores.jsonl", "scores.jsonl.gz"])
def test_output_holds_the_lines_of_the_rows(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / name
    assert main(["score", str(FIXTURE), "--json", "--output", str(output)]) == 0
    data = output.read_bytes()
    text = (gzip.decompress(data) if name.endswith(".gz") else data).decode()
    assert text.splitlines() == capsys.readouterr().out.splitlines()[:-1]


def test_check_names_the_first_row_that_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    right = GOOD | {"expected": {"extracted": "18", "correct": True}}
    wrong = GOOD | {"vid": "b", "expected": {"extracted": "18", "correct": False}}
    assert main(["score", write(tmp_path, right, GOOD), "--check"]) == 0
    assert capsys.readouterr().err == "1 of 1 rows agree with their 'expected'\n"
    assert main(["score", write(tmp_path, right, wrong, GOOD), "--check"]) == 1
    assert "1 of 2 rows differ from their 'expected', the first is vid b" in capsys.readouterr().err
    assert main(["score", write(tmp_path, right, wrong)]) == 0  # without --check the field is ignored
    capsys.readouterr()
    assert main(["score", write(tmp_path, GOOD), "--check"]) == 1
    assert "no row with a field 'expected'" in capsys.readouterr().err


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
def test_a_bad_row_is_named_by_file_and_line_and_nothing_is_printed(
    line: str | dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, GOOD, line)
    output = tmp_path / "scores.jsonl"
    err = refused(capsys, file, "--output", str(output))
    assert f"{file}, {message}" in err
    assert not output.exists()
