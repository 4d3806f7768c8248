"""What `rlvr doctor` prints of its checks, and its exit status; tests/system/test_doctor.py examines models."""

import json
from pathlib import Path

import pytest

from rlvr.commands.doctor import masked, told
from rlvr.records.checks import Check
from tests.unit.cli.conftest import Rlvr

ROW = [("<s>", False), (" 3 +\n", False), (" 7", True), ("</s>", True), ("\x1b", False)]
OK = Check(
    status="ok", says="a row is\x07 right", name="rows_are_right", seconds=0.75, evidence={"row": ROW, "more": 1}
)
FAILED = Check(
    status="fail",
    says="stops do not stop",
    name="stops_stop",
    seconds=1.0,
    evidence={"row": ROW[:3], "ids": [1, 2], "path": Path("ä")},
    remedy="name the token",
)
SKIPPED = Check(status="skipped", says="no tool", name="a_name_that_is_longer_than_its_column", seconds=0.5)


def test_a_check_has_a_line_and_a_failed_one_its_evidence_and_remedy() -> None:
    assert told("runs/x", [OK, FAILED, SKIPPED], color=False).splitlines() == [
        "ok    rows_are_right            a row is\\x07 right",
        "      [<s> 3 +\\n] 7</s>[\\x1b]",
        "FAIL  stops_stop                stops do not stop",
        "      [<s> 3 +\\n] 7",
        '      found: {"ids": [1, 2], "path": "ä"}',
        "      do:    name the token",
        "skip  a_name_that_is_longer_than_its_column no tool",
        "runs/x: 1 ok, 1 failed, 0 noted, 1 skipped, in 2 s",
    ]


def test_colors_are_those_of_the_status_and_of_what_is_trained_on() -> None:
    lines = told("m", [OK, FAILED, SKIPPED], color=True).splitlines()
    assert lines[0].startswith("\x1b[32mok  \x1b[0m  rows_are_right ")
    assert lines[1] == f"      {masked(ROW, color=True)}"
    assert lines[2].startswith("\x1b[1;31mFAIL\x1b[0m  stops_stop ")
    assert lines[-2].startswith("\x1b[2mskip\x1b[0m  ")
    assert masked(ROW[1:4], color=True) == "\x1b[2m[ 3 +\\n]\x1b[0m\x1b[32m 7</s>\x1b[0m"


def test_a_row_without_tokens_is_nothing() -> None:
    assert (masked([], color=False), masked([], color=True)) == ("", "")


@pytest.mark.parametrize(("length", "is_cut"), [(600, False), (601, True)])
def test_evidence_is_cut_after_six_hundred_characters(length: int, is_cut: bool) -> None:
    text = "x" * (length - len('{"a": ""}'))
    lines = told("m", [Check(status="fail", says="s", evidence={"a": text})], color=False)
    shown = lines.partition("found: ")[2].partition("do:")[0]
    assert shown.count("x") == len(text)
    assert ('"}' in shown, "..." in shown) == (not is_cut, is_cut)


def test_lines_are_wrapped_where_a_terminal_ends() -> None:
    says = " ".join(["word"] * 40)
    lines = told("m", [Check(status="ok", says=says, name="n")], color=False).splitlines()
    assert max(map(len, lines)) <= 118
    assert len(lines) > 2


@pytest.mark.parametrize(("checks", "code"), [([OK, SKIPPED], 0), ([OK, FAILED], 1), ([], 0)])
@pytest.mark.parametrize("as_json", [False, True])
def test_the_exit_status_is_that_of_the_checks(
    checks: list[Check], code: int, as_json: bool, rlvr: Rlvr, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlvr.commands.doctor.body.examine", lambda config, on_progress: checks)
    monkeypatch.setattr("rlvr.commands.doctor.body.trained_from", lambda model, config: config)
    ran = rlvr("doctor", "some/model", "--task", "rpn_test", *["--json"] * as_json)
    assert ran.code == code, ran.err
    if as_json:
        lines = [json.loads(line) for line in ran.out.splitlines()]
        assert [(line["name"], line["status"]) for line in lines] == [(one.name, one.status) for one in checks]
    else:
        assert ran.out == told("some/model", checks, color=False)
