"""What `rlvr diagnose` prints, refuses and compares."""

import json
from pathlib import Path

import pytest

import rlvr
from rlvr.cli.main import main
from rlvr.commands.diagnose import told, told_trial
from rlvr.commands.diagnose.trial import _latest_kept, differences
from rlvr.errors import UserError
from rlvr.records.jsonl import MetricsFile
from rlvr.trust.chain import Effect, RemedyTrial, checks, diagnosed, of_record, warning
from tests.unit.trust.made import ACCURACY, STEP, record

ENDS = "Completions were cut off: they end before their answer."
REMEDY = "Raise rollout.max_completion_tokens, or check that the model can produce its stop token."


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
    assert lines[2] == f"1. ends, 100%: {ENDS}"
    assert lines[3].startswith("   seen: rollout/truncated_share: 0.9 in step 1, 0.9 in step 8")
    assert lines[-1] == f"   do:   {REMEDY}"


def test_no_cause_is_said_and_what_little_speaks_for_one(tmp_path: Path) -> None:
    lines = list(told(diagnosed(a_run(tmp_path / "flat", 8, **{"rollout/truncated_share": 0.14}))))
    assert lines[1].startswith("I do not know why this curve is flat")
    assert lines[2:5] == [
        "Weak evidence for:",
        "",
        f"1. ends, 13%: {ENDS}",
    ]
    assert list(told(diagnosed(a_run(tmp_path / "other", 8))))[2:] == []


def test_json_has_everything(cut_off: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(cut_off), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["causes"][0]["name"] == "ends"
    assert (found["steps"], found["learned"], found["named"]) == (8, 0.0, "ends")
    assert found["verdict"] == "Completions were cut off: they end before their answer."


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
        (["RUN/code", "--try"], 1, "the remedy of paid is in your code, model or data"),
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
    assert said == (f"the curve is flat: {ENDS} {REMEDY} More: rlvr diagnose {cut_off}")
    assert warning(a_run(tmp_path / "short", 4, **{"rollout/truncated_share": 0.9})) is None
    assert warning(a_run(tmp_path / "unknown", 8)) is None


def test_rows_of_the_report(cut_off: Path) -> None:
    curve, cause = checks(diagnosed(cut_off))
    assert (curve.name, curve.status) == ("curve", "notice")
    assert (cause.name, cause.status) == ("ends", "fail")
    learned = of_record(record(accuracy=((0.1, 0.05, 0.15), (0.9, 0.85, 0.95))))
    assert [row.status for row in checks(learned)] == ["ok"]


# --------------------------------------------------------------------------------------------------------- --try


def ends(before: tuple[float, float, float], after: tuple[float, float, float]) -> Effect:
    metric, reward = differences(*(record(accuracy=(ACCURACY, end)) for end in (before, after)))
    assert reward.name == "rise of the reward"
    return metric


def test_the_difference_of_two_evaluations_has_an_interval() -> None:
    found = ends((0.4, 0.35, 0.45), (0.6, 0.55, 0.65))
    assert str(found) == "held-out accuracy 0.400 -> 0.600, +0.200 (95 % interval +0.129 to +0.271)"
    assert ends((0.4, 0.35, 0.45), (0.45, 0.4, 0.5)).low < 0
    assert ends((0.6, 0.55, 0.65), (0.4, 0.35, 0.45)).high < 0


def test_rewards_are_compared_by_their_rise() -> None:
    before = [0.5, 0.4, 0.6, 0.5, 0.4, 0.6, 0.5, 0.4, 0.6, 0.5]
    level = [value + 0.3 + 0.01 * (step % 2) for step, value in enumerate(before)]
    rising = [value + 0.04 * step for step, value in enumerate(before)]
    (same,) = differences(record({"reward/mean": before}, accuracy=()), record({"reward/mean": level}, accuracy=()))
    assert same.low < 0 < same.high
    (more,) = differences(record({"reward/mean": before}, accuracy=()), record({"reward/mean": rising}, accuracy=()))
    assert more.value == pytest.approx(0.2)
    assert more.low > 0.1


def test_answers_that_are_only_read_again_are_no_progress() -> None:
    """With room for a whole completion the same weights are right more often: what is learned since then counts."""
    cut, read, better = (0.0, 0.0, 0.02), (0.2, 0.17, 0.23), (0.5, 0.45, 0.55)
    unchanged = record(accuracy=(cut, cut), settings={"rollout": {"max_completion_tokens": 1}})
    same, learned = (record(accuracy=(read, end)) for end in (read, better))
    held_out, _ = differences(unchanged, same)
    assert (held_out.name, held_out.remedy) == ("rise of held-out accuracy", 0.0)
    assert held_out.low < 0 < held_out.high
    held_out, _ = differences(unchanged, learned)
    assert held_out.value == pytest.approx(0.3)
    assert held_out.low > 0.2


def test_of_a_later_start_nothing_is_known_about_what_is_read_again() -> None:
    """Only step 0 is evaluated before an update: a run that goes on from step 20 has no level to compare with."""
    unchanged = record(accuracy=(ACCURACY, ACCURACY), settings={"rollout": {"max_completion_tokens": 1}})
    remedy, as_long = record(accuracy=(ACCURACY, (0.6, 0.55, 0.65))), record()
    for one in (unchanged, remedy, as_long):
        del one.history.rows[0]
    assert [one.name for one in differences(unchanged, remedy)] == ["rise of the reward"]
    assert [one.name for one in differences(as_long, remedy)] == ["held-out accuracy", "rise of the reward"]


@pytest.mark.parametrize(
    ("intervals", "moved"),
    [
        ([(0.1, 0.3), (-0.1, 0.2)], True),
        ([(-0.1, 0.3), (-0.1, 0.2)], False),
        ([(0.1, 0.3), (-0.3, -0.1)], False),
    ],
    ids=["better", "chance", "better and worse"],
)
def test_a_curve_moves_if_something_is_better_and_nothing_worse(
    intervals: list[tuple[float, float]], moved: bool
) -> None:
    gaps = [Effect(name="", unchanged=0.0, remedy=0.0, low=low, high=high) for low, high in intervals]
    assert RemedyTrial(cause="", overrides=[], start=0, steps=1, folder="", differences=gaps).moved == moved


def test_what_was_tried_is_told() -> None:
    gap = Effect(name="held-out accuracy", unchanged=0.2, remedy=0.5, low=0.2, high=0.4)
    about = {"cause": "ends", "overrides": ["a=1", "b=2"], "start": 20, "steps": 10, "folder": "runs/x.try"}
    lines = list(told_trial(RemedyTrial(**about, differences=[gap])))
    assert lines == [
        "tried a=1 b=2 for 10 steps from step 20, beside the unchanged run: the curve moves",
        "   held-out accuracy 0.200 -> 0.500, +0.300 (95 % interval +0.200 to +0.400)",
        "   runs: runs/x.try/unchanged and runs/x.try/remedy",
    ]


def test_the_newest_run_stays_the_newest(tmp_path: Path) -> None:
    latest = tmp_path / "latest"
    latest.symlink_to("mine")
    with _latest_kept(latest):
        latest.unlink()
        latest.symlink_to("tried")
    assert str(latest.readlink()) == "mine"
