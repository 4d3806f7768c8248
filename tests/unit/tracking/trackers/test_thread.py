import json
import time
from pathlib import Path

import pytest

from rlvr.tracking.trackers import fanout
from rlvr.tracking.trackers.base import sentence
from tests.system.harness import wait_until
from tests.unit.records.made import episode_record
from tests.unit.tracking.trackers.fake import GATE, INSIDE, Run


def test_pitfall_37_every_number_arrives_once_and_in_order(tmp_path: Path) -> None:
    run = Run(tmp_path, "log:slow")
    (tmp_path / "config.yaml").write_text("a: 1\n")
    (tmp_path / "final").mkdir()
    run.all(*range(30))
    assert run.calls("log") == [[step, {"x/y": step / 7}] for step in range(30)]
    others = [kind for kind, _ in run.calls() if kind != "log"]
    assert others == ["load", "prepare", "start", "files", "model", "finish"]
    assert run.calls()[-1] == ["finish", "finished"]
    assert run.notes == ["Fake: look here"]


def test_pitfall_37_a_resumed_run_sends_only_missing_numbers(tmp_path: Path) -> None:
    Run(tmp_path).all(0, 1, 2)
    for step in (3, 4):  # of a part without a tracker
        Run(tmp_path).metrics.append(step, {"x/y": step / 7, "loss": float("nan")})
    Run(tmp_path).all(5, first_step=5)
    third = Run(tmp_path)  # the run was killed: it goes on from step 4
    third.metrics.cut_back(3)
    with third.trackers as trackers:
        trackers.begin(4, {})
        for step in (4, 5, 6):
            trackers.completions(step, [episode_record()])
            third.steps(step)
        trackers.end("finished")
    assert third.calls("log") == [[step, {"x/y": step / 7}] for step in range(7)]
    assert [step for step, _ in third.calls("completions")] == [6]
    assert [run["known"] and run["known"]["last_step"] for run in third.calls("start")] == [None, 2, 5]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("does", "reason"),
    [
        ("log:hang", "no answer to `log` within 1 s"),
        ("start:hang", "no answer to `start` within 1 s"),
        ("load:hang", "no answer to `load` within 1.1 s"),
        ("finish:hang", "1 s"),
        ("log:exit", "SystemExit: 3"),
        ("start:nothing", "TypeError: asdict() should be called on dataclass instances"),
        ("load:exit", "SystemExit: 3"),
        ("log:fail", "RuntimeError: the request failed: ConnectionRefusedError: nobody is there"),
    ],
)
def test_pitfall_37_a_failing_tracker_is_disabled_with_one_note(
    does: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fanout, "LOAD_S", 1.1)
    run = Run(tmp_path, does, timeout_s=1.0)
    begin = time.perf_counter()
    run.all(*range(50))
    assert time.perf_counter() - begin < 100  # it hangs for ten minutes
    assert reason in run.warning()
    resumes = f"the run goes on, metrics.jsonl has all numbers, and `rlvr train run_dir={tmp_path} resume=true`"
    assert resumes in run.warning()
    assert "disabled: " in (tmp_path / "trackers" / "fake.log").read_text()


def test_pitfall_37_a_hang_is_reported_while_the_run_goes_on(tmp_path: Path) -> None:
    run = Run(tmp_path, "log:wait", timeout_s=1.0)
    with run.trackers as trackers:
        trackers.begin(0, {})
        run.steps(0)

        def is_said() -> bool:
            trackers.log(0)
            return any(note.startswith("warning: ") for note in run.notes)

        wait_until(is_said)
        assert "no answer to `log`" in run.warning()
        GATE.set()  # it comes back, and is disabled all the same
        trackers._all[0].thread.join(20)
        trackers.end("finished")
    GATE.clear()
    assert run.calls("log") == [[0, {"x/y": 0.0}]]
    assert json.loads((tmp_path / "trackers" / "fake.json").read_text())["last_step"] == -1


@pytest.mark.slow
def test_pitfall_37_a_slow_tracker_is_not_waited_for(tmp_path: Path) -> None:
    # no single call takes too long, only all of them together
    run = Run(tmp_path, "completions:late", timeout_s=2.0)
    with run.trackers as trackers:
        trackers.begin(0, {})
        for step in range(20):
            run.steps(step)
            trackers.completions(step + 1, [episode_record()])
        trackers.end("finished")
    assert "it did not take the rest within 2 s" in run.warning()


def test_pitfall_37_a_full_queue_costs_completions_but_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fanout, "MAX_WAITING", 4)
    run = Run(tmp_path, "log:wait")
    with run.trackers as trackers:
        trackers.begin(0, {})
        run.steps(0)
        wait_until(lambda: run.calls("start") != [])
        for step in range(1, 20):
            trackers.completions(step, [episode_record()])
            run.steps(step)
        GATE.set()
        trackers.end("finished")
    GATE.clear()
    assert run.calls("log") == [[step, {"x/y": step / 7}] for step in range(20)]
    shown = len(run.calls("completions"))
    assert 0 < shown <= 4
    assert f"it has all numbers, but no completions of {19 - shown} steps" in run.warning()
    made = [value for kind, value in run.calls() if kind in ("log", "completions")]
    assert [step for step, _ in made] == sorted(step for step, _ in made)  # W&B takes no step after a later one


def test_output_of_a_library_goes_to_the_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = Run(tmp_path, "log:print")
    run.all(0, before_end=lambda: print("of the run"))
    assert (tmp_path / "trackers" / "fake.log").read_text() == "a line on stdout\nand another\n"
    assert capfd.readouterr() == ("of the run\n", "")
    assert run.notes == ["Fake: look here"]


@pytest.mark.parametrize(("does", "last"), [("", [["finish", "killed"]]), ("log:hang", [])])
def test_pitfall_37_a_killed_run_is_marked_without_waiting(
    does: str, last: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fanout, "LEAVE_S", 0.5 if does else 60.0)
    INSIDE.clear()
    run = Run(tmp_path, does)
    run.trackers.__enter__()
    run.trackers.begin(0, {})
    run.steps(0)
    wait_until(INSIDE.is_set if does else lambda: run.calls("start") != [])
    begin = time.monotonic()
    run.trackers.__exit__(SystemExit, SystemExit(130), None)
    assert time.monotonic() - begin < 100
    assert [call for call in run.calls() if call[0] == "finish"] == last


def test_an_error_shows_no_password() -> None:
    error = RuntimeError("API request to http://me:s3cret@host/api failed")
    assert sentence(error) == "RuntimeError: API request to http://host/api failed"


def test_an_error_is_one_line_with_its_root() -> None:
    error = ValueError("x" * 500)
    error.__cause__ = OSError("disk\nfull")
    assert sentence(error) == f"ValueError: {'x' * 108}...: OSError: disk full"
    assert sentence(KeyError("a")) == "KeyError: 'a'"
