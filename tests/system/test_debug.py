"""`debug=true`: a run of seconds that shows every episode, resumes like any other, and says what looks wrong."""

import re
from pathlib import Path

import pytest

from rlvr.records.rollouts import read_rollouts
from rlvr.tracking.signals import undocumented
from tests.system.harness import SCRATCH, SMALL, TASK, check_equal, outcome, pretrained, run_train
from tests.system.test_two_hop import ROWS_WITH_REPLIES

WORLD = ("task.num_persons=12", "task.num_organizations=9", "task.num_cities=6", "tracker.console=plain", "debug=true")


def again(two_hop_run: Path) -> tuple[str, ...]:
    """A debug run of a model that calls the tool."""
    return (*WORLD, *pretrained(two_hop_run / "warm_start"))


def test_every_episode_is_shown_by_turn_with_what_is_trained_on(
    two_hop_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_train(tmp_path / "run", *again(two_hop_run), name="two_hop")
    out, err = capsys.readouterr()
    assert out == ""
    assert len(re.findall(r"^---- step [123], group [12] of 2, episode [1234] of 4, example p", err, re.M)) == 24
    assert re.search(r"^turn 1    <call> search p\d+ </call>\n {10}calls search\(name=\"p\d+\"\)$", err, re.M)
    assert re.search(r"^reply     \[<tool> .* </tool>\]$", err, re.M)
    assert re.search(r"^answer    answer c\d: (right|wrong, c\d is right)$", err, re.M)
    assert re.search(r"^reward    [01]\.00 = 1 x correct [01]\.00", err, re.M)
    assert re.search(r"^training  advantage [+-]\d\.\d\d, (\d+) of \1 tokens with mask 1 are trained on$", err, re.M)
    assert err.count("\ndiagnosis: ") == 1
    assert len(run.rows) == 4
    assert all("eval/two_hop/accuracy" in row and undocumented(row) == [] for row in run.rows)
    files = sorted((run.folder / "rollouts").iterdir())
    assert [len(read_rollouts(file)) for file in files] == [8, 8, 8]
    calls = sum(len(turn.calls) for file in files[:1] for record in read_rollouts(file) for turn in record.turns)
    assert run.rows[1]["rollout/tool_calls_mean"] == calls / 8 > 0


def test_pitfall_05_tool_tokens_that_are_trained_on_are_seen(
    two_hop_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlvr.core.batch.episode_rows", ROWS_WITH_REPLIES)
    run_train(tmp_path / "run", *again(two_hop_run), "trainer.max_steps=1", name="two_hop")
    err = capsys.readouterr().err
    assert re.search(r"^reply     <tool> .* </tool>$", err, re.M)
    assert not re.search(r"^reply     \[", err, re.M)
    assert re.search(r"^prompt    \[<q> where p\d+\]$", err, re.M)


def test_a_stopped_debug_run_resumes_exactly(two_hop_run: Path, tmp_path: Path) -> None:
    stops = iter([False, True])
    whole = run_train(tmp_path / "whole", *again(two_hop_run), name="two_hop")
    parts = run_train(tmp_path / "parts", *again(two_hop_run), name="two_hop", stopped=lambda: next(stops))
    assert parts.result.num_steps == 1
    resumed = run_train(tmp_path / "parts", *again(two_hop_run), "resume=true", name="two_hop")
    assert resumed.result.num_steps == 3
    check_equal(outcome(whole.folder), outcome(resumed.folder))


def test_what_is_wrong_with_three_steps_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two tokens are no room for an answer: everything is cut off, nothing is rewarded, and that is said."""
    given = [line for line in SCRATCH if not line.startswith("warm_start.num")]
    lines = (*TASK, *given, "warm_start.num_steps=20", "rollout.max_completion_tokens=1", "tracker.console=plain")
    run_train(tmp_path / "run", *lines, "debug=true")
    err = capsys.readouterr().err
    told = err.partition("diagnosis: ")[2].splitlines()
    assert told[0].endswith("things to look at")
    assert any(line.startswith("- Every reward was 0 in each of the last 3 steps") for line in told)
    assert any("were cut off in each of the last 3 steps" in line for line in told)
    assert "CUT OFF after 1 token:" in err


def test_other_runs_print_no_episodes(first_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [line for line in (*SMALL, *pretrained(first_run / "warm_start")) if line != "tracker.console=none"]
    run_train(tmp_path / "run", *words, "tracker.console=plain")
    err = capsys.readouterr().err
    assert "training 2/2" in err
    assert "----" not in err
    assert "diagnosis" not in err
