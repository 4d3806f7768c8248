"""What `rlvr diagnose` prints, refuses and compares."""

import json
from pathlib import Path

import pytest

import rlvr
from rlvr.cli.main import main
from rlvr.commands.diagnose import told
from rlvr.commands.diagnose.trial import _compared, _latest_kept
from rlvr.errors import UserError
from rlvr.report.diagnosis import checks, diagnosed, of_record, warning
from rlvr.tracking.jsonl import MetricsFile
from tests.unit.report.diagnosis.made import ACCURACY, STEP, record


def a_run(folder: Path, steps: int, **changed: float) -> Path:
    folder.mkdir()
    (folder / "config.yaml").write_text("evaluation: {headline: accuracy}\nalgorithm: {name: grpo}\n")
    file = MetricsFile(folder / "metrics.jsonl")
    for step in range(1, steps + 1):
        file.append(step, STEP | changed)
    return folder


@pytest.fixture
def cut_off(tmp_path: Path) -> Path:
    return a_run(tmp_path / "run", 8, **{"rollout/truncated_share": 0.9})


def test_the_curve_the_verdict_and_each_cause(cut_off: Path) -> None:
    lines = list(told(diagnosed(cut_off)))
    assert lines[0] == f"{cut_off}: 8 steps; reward 0.500 in step 1 -> 0.500"
    assert lines[2] == "1. truncated, 100%: Completions are cut off before they can end."
    assert lines[3].startswith("   seen: rollout/truncated_share: 0.9 in step 1, 0.9 in step 8")
    assert lines[-1] == "   do:   Raise rollout.max_completion_tokens."


def test_no_cause_is_said_and_what_little_speaks_for_one(tmp_path: Path) -> None:
    lines = list(told(diagnosed(a_run(tmp_path / "flat", 8, **{"rollout/truncated_share": 0.14}))))
    assert lines[1].startswith("I do not know why this curve is flat")
    assert lines[2:5] == ["A little speaks for:", "", "1. truncated, 13%: Completions are cut off before they can end."]
    assert list(told(diagnosed(a_run(tmp_path / "other", 8))))[2:] == []


def test_json_has_everything(cut_off: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(cut_off), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["causes"][0]["name"] == "truncated"
    assert (found["steps"], found["learned"]) == (8, 0.0)


def test_the_function_is_the_command(cut_off: Path) -> None:
    assert rlvr.diagnose(cut_off) == diagnosed(cut_off)
    with pytest.raises(UserError, match="there is no folder"):
        rlvr.diagnose(cut_off / "missing")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["RUN/missing"], 1, "there is no folder RUN/missing"),
        (["RUN/empty"], 1, "RUN/empty is no run folder to diagnose: it has no metrics.jsonl."),
        (["RUN/short"], 1, "RUN/short has made 4 of the 5 steps or more that a curve needs"),
        (["RUN/flat", "--try"], 1, "no cause is named (I do not know why this curve is flat"),
        (["RUN/code", "--try"], 1, "the remedy of verifier_fails is in your code, model or data"),
        (["RUN/flat", "--steps", "3"], 2, "--steps: nothing is trained; add --try."),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    words: list[str], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    a_run(tmp_path / "short", 4)
    a_run(tmp_path / "flat", 8)
    a_run(tmp_path / "code", 8, **{"rollout/error_share": 0.9})
    assert main(["diagnose", *(word.replace("RUN", str(tmp_path)) for word in words)]) == code
    captured = capsys.readouterr()
    assert captured.err.startswith("rlvr: error: ")
    assert said.replace("RUN", str(tmp_path)) in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_a_flat_run_ends_with_its_cause_and_others_do_not(cut_off: Path, tmp_path: Path) -> None:
    said = warning(cut_off)
    assert said == (
        "the curve is flat: Completions are cut off before they can end. Raise rollout.max_completion_tokens. "
        f"More: rlvr diagnose {cut_off}"
    )
    assert warning(a_run(tmp_path / "short", 4, **{"rollout/truncated_share": 0.9})) is None
    assert warning(a_run(tmp_path / "unknown", 8)) is None


def test_rows_of_the_report(cut_off: Path) -> None:
    curve, cause = checks(diagnosed(cut_off))
    assert (curve.name, curve.status) == ("curve", "notice")
    assert (cause.name, cause.status) == ("truncated", "fail")
    learned = of_record(record(accuracy=((0.1, 0.05, 0.15), (0.9, 0.85, 0.95))))
    assert [row.status for row in checks(learned)] == ["ok"]


# --------------------------------------------------------------------------------------------------------- --try


def compared(before: tuple[float, float, float], after: tuple[float, float, float]) -> tuple[bool, float]:
    arms = [(record(accuracy=(ACCURACY, end)), Path(name)) for end, name in ((before, "unchanged"), (after, "remedy"))]
    found = _compared("truncated", ["a=1"], 0, 10, arms)
    return found.moved, found.difference


def test_a_curve_moves_if_the_difference_is_more_than_chance() -> None:
    moved, difference = compared((0.4, 0.35, 0.45), (0.6, 0.55, 0.65))
    assert (moved, difference) == (True, pytest.approx(0.2))
    assert not compared((0.4, 0.35, 0.45), (0.45, 0.4, 0.5))[0]
    assert not compared((0.6, 0.55, 0.65), (0.4, 0.35, 0.45))[0]


def test_without_evaluations_rewards_of_the_same_prompts_are_compared() -> None:
    before = [0.5, 0.4, 0.6, 0.5, 0.4, 0.6, 0.5, 0.4, 0.6, 0.5]
    higher = [value + 0.1 + 0.01 * (step % 2) for step, value in enumerate(before)]
    arms = [
        (record({"reward/mean": values}, accuracy=()), Path(name))
        for values, name in ((before, "unchanged"), (higher, "remedy"))
    ]
    found = _compared("truncated", ["a=1"], 5, 10, arms)
    assert found.moved
    assert found.difference == pytest.approx(0.106)
    assert found.says.startswith("tried a=1 for 10 steps from step 5: the curve moves, reward +0.106")


def test_the_newest_run_stays_the_newest(tmp_path: Path) -> None:
    latest = tmp_path / "latest"
    latest.symlink_to("mine")
    with _latest_kept(latest):
        latest.unlink()
        latest.symlink_to("tried")
    assert str(latest.readlink()) == "mine"
