import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rlvr.tracking.jsonl import MetricsFile
from rlvr.tracking.trackers import remote
from rlvr.tracking.trackers.base import RunFacts
from rlvr.tracking.trackers.pipe import TrackerProcess
from rlvr.tracking.trackers.remote import RemoteTracker
from rlvr.tracking.trackers.worker import sentence
from tests.unit.tracking.trackers.fake import Fake, calls, prepare

Open = Callable[..., RemoteTracker]


def facts(folder: Path, first_step: int = 0) -> RunFacts:
    return RunFacts(
        name="run",
        experiment="rpn",
        group=None,
        tags=[],
        config={"seed": 0},
        folder=str(folder),
        timeout_s=5.0,
        version="1",
        known=None,
        first_step=first_step,
    )


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def start(tmp_path: Path, notes: list[str], monkeypatch: pytest.MonkeyPatch) -> Open:
    def build(misbehavior: str = "", *, timeout_s: float = 20.0) -> RemoteTracker:
        prepare(monkeypatch, tmp_path / "fake.jsonl", misbehavior)
        folder = tmp_path / "trackers"
        folder.mkdir(exist_ok=True)
        return RemoteTracker(Fake(), folder=folder, note=notes.append, timeout_s=timeout_s, upload_timeout_s=20.0)

    return build


def finish(tracker: RemoteTracker) -> None:
    tracker.end("finished", [], None)
    tracker.join(since=time.monotonic(), with_model=False)


def history(tmp_path: Path, steps: int) -> Path:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    for step in range(steps):
        file.append(step, {"x/y": step / 3, "loss": float("nan")})
    return file.path


def test_pitfall_37_every_number_arrives_once_and_in_order(start: Open, tmp_path: Path, notes: list[str]) -> None:
    tracker = start("log:slow")
    tracker.begin(facts(tmp_path), tmp_path / "absent")
    numbers = [{"a/b": step / 7, "c": 1e-300} for step in range(30)]
    for step, values in enumerate(numbers):
        tracker.log(step, values)
    tracker.end("finished", [tmp_path / "config.yaml"], tmp_path / "final")
    tracker.join(since=time.monotonic(), with_model=True)
    found = calls(tmp_path / "fake.jsonl")
    assert [value for kind, value in found if kind == "log"] == [[step, values] for step, values in enumerate(numbers)]
    assert [kind for kind, _ in found if kind != "log"] == ["load", "prepare", "start", "files", "model", "finish"]
    assert found[-1] == ["finish", "finished"]
    assert notes == ["Fake: look here"]


def test_pitfall_37_a_resumed_run_sends_what_is_missing_and_nothing_twice(start: Open, tmp_path: Path) -> None:
    first = start()
    first.begin(facts(tmp_path), tmp_path / "absent")
    for step in range(3):
        first.log(step, {"x": step})
    finish(first)
    second = start()  # the tracker has 0, 1, 2; the run has made 0 to 4 and repeats none
    second.begin(facts(tmp_path, first_step=5), history(tmp_path, 5))
    second.log(5, {"x": 5})
    finish(second)
    third = start()  # the run was killed: it goes on from step 4
    third.begin(facts(tmp_path, first_step=4), history(tmp_path / "trackers", 4))
    for step in range(4, 7):
        third.completions(step, [{"step": step}])
        third.log(step, {"x": step})
    finish(third)
    logged = calls(tmp_path / "fake.jsonl", "log")
    assert [step for step, _ in logged] == [0, 1, 2, 3, 4, 5, 6]
    assert logged[3] == [3, {"x/y": 1.0}]  # as metrics.jsonl has it, without what is not finite
    assert [step for step, _ in calls(tmp_path / "fake.jsonl", "completions")] == [6]
    known = [run["known"] and run["known"]["last_step"] for run in calls(tmp_path / "fake.jsonl", "start")]
    assert known == [None, 2, 5]


def test_a_tracker_that_comes_later_gets_the_whole_history(start: Open, tmp_path: Path) -> None:
    tracker = start()
    tracker.begin(facts(tmp_path, first_step=250), history(tmp_path, 250))
    finish(tracker)
    assert [step for step, _ in calls(tmp_path / "fake.jsonl", "log")] == list(range(250))


def test_a_damaged_memory_begins_a_new_run(start: Open, tmp_path: Path) -> None:
    (tmp_path / "trackers").mkdir()
    (tmp_path / "trackers" / "fake.json").write_text('{"id": 3')
    tracker = start()
    tracker.begin(facts(tmp_path), tmp_path / "absent")
    finish(tracker)
    assert calls(tmp_path / "fake.jsonl", "start")[0]["known"] is None


@pytest.mark.parametrize(
    ("misbehavior", "reason"),
    [
        ("log:hang", "no answer to `log` within 1 s"),
        ("start:hang", "no answer to `start` within 1 s"),
        ("finish:hang", "1 s"),
        ("log:exit", "its process has ended"),
        ("load:exit", "its process has ended"),
        ("log:fail", "RuntimeError: the request failed: ConnectionRefusedError: nobody is there"),
    ],
)
def test_pitfall_37_a_tracker_that_fails_is_given_up_with_one_note_and_never_waited_for(
    misbehavior: str, reason: str, start: Open, tmp_path: Path, notes: list[str]
) -> None:
    tracker = start(misbehavior, timeout_s=1.0)
    begin = time.perf_counter()
    tracker.begin(facts(tmp_path), tmp_path / "absent")
    for step in range(100):
        tracker.log(step, {"x": step})
        tracker.completions(step, [{"step": step}])
    assert time.perf_counter() - begin < 0.9  # an answer is waited for longer than that
    if not misbehavior.startswith("finish"):
        wait_for(lambda: notes[-1:] != [] and notes[-1].startswith("warning"))
    begin = time.perf_counter()
    finish(tracker)
    assert time.perf_counter() - begin < 10
    (warning,) = [note for note in notes if note.startswith("warning: ")]
    assert reason in warning
    assert "the run goes on" in warning
    assert f"rlvr train run_dir={tmp_path} resume=true" in warning


def test_pitfall_37_what_a_slow_tracker_has_not_taken_at_the_end_is_not_waited_for(
    start: Open, tmp_path: Path, notes: list[str]
) -> None:
    """No single message takes too long: only all of them together do."""
    tracker = start("completions:late", timeout_s=2.5)
    tracker.begin(facts(tmp_path), tmp_path / "absent")
    for step in range(20):
        tracker.completions(step, [{"step": step}])
    finish(tracker)
    (warning,) = [note for note in notes if note.startswith("warning: ")]
    assert "it did not take the rest within 2.5 s" in warning


def test_pitfall_37_a_tracker_that_is_too_slow_does_not_fill_the_memory(
    start: Open, tmp_path: Path, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "MAX_BACKLOG", 2_000)
    tracker = start("log:hang")
    tracker.begin(facts(tmp_path), tmp_path / "absent")
    for step in range(200):
        tracker.log(step, {"x": step})
    assert len(tracker._waiting) < 100
    finish(tracker)
    assert [note for note in notes if "it is slower than the run" in note] == notes[-1:]


def test_what_has_been_sent_waits_no_more(
    start: Open, tmp_path: Path, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long run may send more than may wait at one time."""
    monkeypatch.setattr(remote, "MAX_BACKLOG", 2_000)
    tracker = start()
    tracker.begin(facts(tmp_path), tmp_path / "absent")
    for step in range(100):
        tracker.log(step, {"x": step})
        if step % 10 == 9:
            wait_for(lambda num=step + 1: len(calls(tmp_path / "fake.jsonl", "log")) == num)
    finish(tracker)
    assert notes == ["Fake: look here"]


def test_what_a_library_prints_is_no_answer_and_goes_to_the_log(
    start: Open, tmp_path: Path, notes: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    tracker = start("log:print")
    tracker.begin(facts(tmp_path), tmp_path / "absent")
    tracker.log(0, {"x": 1})
    finish(tracker)
    assert calls(tmp_path / "fake.jsonl")[-1] == ["finish", "finished"]
    assert "and another" in (tmp_path / "trackers" / "fake.log").read_text()
    assert capfd.readouterr() == ("", "")
    assert notes == ["Fake: look here"]


def test_pitfall_37_a_run_that_is_being_killed_does_not_wait_and_is_marked(start: Open, tmp_path: Path) -> None:
    tracker = start("finish:late")
    tracker.begin(facts(tmp_path), tmp_path / "absent")
    tracker.log(0, {"x": 0})
    wait_for(lambda: len(calls(tmp_path / "fake.jsonl", "log")) == 1)
    tracker.leave()
    assert calls(tmp_path / "fake.jsonl", "finish") == []  # who waits sees the mark, which is late
    wait_for(lambda: calls(tmp_path / "fake.jsonl", "finish") == ["killed"])


def test_pitfall_37_a_run_that_is_being_killed_is_not_marked_before_it_is_said(
    start: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread ends the process at once; what the process is told must not come after that."""
    tell = TrackerProcess.terminate

    def slow(process: TrackerProcess) -> None:
        time.sleep(0.3)
        tell(process)

    monkeypatch.setattr(TrackerProcess, "terminate", slow)
    tracker = start()
    tracker.begin(facts(tmp_path), tmp_path / "absent")
    wait_for(lambda: len(calls(tmp_path / "fake.jsonl", "start")) == 1)
    tracker.leave()
    wait_for(lambda: len(calls(tmp_path / "fake.jsonl", "finish")) == 1)
    assert calls(tmp_path / "fake.jsonl", "finish") == ["killed"]


def runs(pid: int) -> bool:
    """Whether a process is there, and not a zombie that nobody has asked for yet."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(") ")[2][0] != "Z"


RUN = """
import sys, time
from dataclasses import replace
from pathlib import Path
from tests.unit.tracking.trackers.fake import Fake
from tests.unit.tracking.trackers.test_remote import RemoteTracker, facts
folder = Path(sys.argv[1])
tracker = RemoteTracker(Fake(), folder=folder, note=print, timeout_s=9, upload_timeout_s=9)
tracker.begin(facts(folder), folder / "absent")
tracker.log(0, {"x": 0})
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("number", "misbehavior", "last"),
    [(signal.SIGKILL, "", "log"), (signal.SIGINT, "", "log"), (signal.SIGKILL, "log:late", "late")],
)
def test_pitfall_37_the_death_of_the_run_marks_it_as_failed(
    number: signal.Signals, misbehavior: str, last: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(monkeypatch, tmp_path / "fake.jsonl", misbehavior)
    with subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as run:
        wait_for(lambda: len(calls(tmp_path / "fake.jsonl", last)) == 1)
        assert calls(tmp_path / "fake.jsonl", "load")[0]["own_session"]
        os.killpg(run.pid, number)  # as Ctrl-C in a terminal: the whole group
    wait_for(lambda: calls(tmp_path / "fake.jsonl", "finish") == ["failed"])


def test_pitfall_37_a_tracker_that_hangs_does_not_outlive_a_run_that_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(monkeypatch, tmp_path / "fake.jsonl", "log:hang")
    quick = RUN.replace("facts(folder)", "replace(facts(folder), timeout_s=0.2)")
    with subprocess.Popen([sys.executable, "-c", quick, str(tmp_path)], stdout=subprocess.DEVNULL) as run:
        wait_for(lambda: len(calls(tmp_path / "fake.jsonl", "start")) == 1)
        run.kill()
    worker = calls(tmp_path / "fake.jsonl", "load")[0]["pid"]
    wait_for(lambda: not runs(worker))


def test_the_state_survives_as_plain_json(start: Open, tmp_path: Path) -> None:
    tracker = start()
    tracker.begin(facts(tmp_path), tmp_path / "absent")
    tracker.log(4, {"x": 0})
    finish(tracker)
    state = json.loads((tmp_path / "trackers" / "fake.json").read_text())
    assert state == {"id": "fake", "store": "memory", "where": "look here", "last_step": 4}


def test_an_error_tells_no_password() -> None:
    error = RuntimeError("API request to http://me:s3cret@host/api failed")
    assert sentence(error) == "RuntimeError: API request to http://host/api failed"


def test_an_error_is_one_line_with_its_root() -> None:
    error = ValueError("x" * 500)
    error.__cause__ = OSError("disk\nfull")
    assert sentence(error) == f"ValueError: {'x' * 108}...: OSError: disk full"
    assert sentence(KeyError("a")) == "KeyError: 'a'"


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
