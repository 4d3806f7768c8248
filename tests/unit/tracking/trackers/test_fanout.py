import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlvr.settings import validated
from rlvr.tracking.jsonl import MetricsFile
from rlvr.tracking.rollouts import EpisodeRecord, TurnRecord
from rlvr.tracking.settings import TrackerSettings
from rlvr.tracking.trackers.fanout import MAX_TEXT, Reported, Trackers, completion_rows
from tests.unit.tracking.trackers.fake import NAME, calls, prepare


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the fake was asked."""
    prepare(monkeypatch, tmp_path / "fake.jsonl")
    return tmp_path / "fake.jsonl"


def opened(folder: Path, note: Callable[[str], None] = lambda text: None, **values: Any) -> Trackers:
    """Reported to the fake, unless the values say otherwise."""
    settings = validated(TrackerSettings, {"report_to": [NAME]} | values)
    return Trackers(settings, Reported(experiment="rpn", config={"seed": 5, "run_dir": None}), folder, note)


def record(number: int = 0, **changes: Any) -> EpisodeRecord:
    turn = TurnRecord(
        prompt_ids=[1],
        completion_ids=[2],
        prompt="question ",
        completion="call ",
        stop_reason="stop",
        policy_version=0,
        behavior_logprobs=[-0.5],
        sampling_logprobs=[-0.5],
        calls=[],
        reply="found ",
    )
    last = replace(turn, completion="answer", reply=None)
    values: dict[str, Any] = {
        "example_id": f"e{number}",
        "answer": "7",
        "group": 0,
        "sample_index": number,
        "seed": 1,
        "policy_version": 0,
        "reward": 0.5,
        "reward_parts": {"correct": 1.0},
        "score_status": "ok",
        "diagnostics": {},
        "stop_reason": "stop",
        "advantage": -0.25,
        "trace": [],
        "turns": [turn, last],
        "rows": [],
    }
    return EpisodeRecord(**values | changes)


def test_pitfall_38_trackers_get_the_numbers_of_the_file(fake: Path, tmp_path: Path) -> None:
    metrics = {"reward/mean": 0.1 + 0.2, "loss/kl": float("nan"), "policy/ratio": float("inf"), "rollout/episodes": 8}
    file, notes = MetricsFile(tmp_path / "metrics.jsonl"), []
    with opened(tmp_path, notes.append) as trackers:
        trackers.begin(0)
        for step in range(3):
            file.append(step, metrics)
            trackers.log(step, metrics)
        trackers.end("finished")
    lines = [json.loads(line) for line in file.path.read_text().splitlines()]
    expected = [[line.pop("step"), {k: v for k, v in line.items() if v is not None}] for line in lines]
    assert calls(fake, "log") == expected
    assert set(expected[0][1]) == {"reward/mean", "rollout/episodes"}
    assert notes == ["Fake: look here"]


def test_what_a_tracker_is_told(fake: Path, tmp_path: Path) -> None:
    folder = tmp_path / "my-run"
    folder.mkdir()
    (folder / "config.yaml").write_text("a: 1\n")
    (folder / "final").mkdir()
    values = {"group": "sweep", "run_name": "mine", "tags": ["a", "b"], "fake": {"extra": "some"}}
    with opened(folder, **values) as trackers:
        trackers.begin(0)
        trackers.end("finished")
    (told,) = calls(fake, "start")
    assert (told["name"], told["group"], told["tags"], told["experiment"]) == ("mine", "sweep", ["a", "b"], "rpn")
    assert told["config"] == {"seed": 5, "run_dir": None}
    assert calls(fake, "load")[0]["extra"] == "some"
    assert calls(fake, "files") == [[str(folder / "config.yaml")]]
    assert calls(fake, "model") == [str(folder / "final")]


@pytest.mark.parametrize(("error", "status"), [(None, "killed"), (ValueError("why"), "failed")])
def test_pitfall_37_how_a_run_ended_is_told(error: Exception | None, status: str, fake: Path, tmp_path: Path) -> None:
    (tmp_path / "final").mkdir()  # of an earlier end

    def run() -> None:
        with opened(tmp_path, run_name="x") as trackers:
            trackers.begin(0)
            if error is not None:
                raise error
            trackers.end("killed")

    if error is None:
        run()
    else:
        with pytest.raises(ValueError, match=r"^why$"):
            run()
    assert calls(fake, "finish") == [status]
    assert calls(fake, "model") == []


def test_a_run_without_a_name_is_called_as_its_folder(fake: Path, tmp_path: Path) -> None:
    with opened(tmp_path) as trackers:
        trackers.begin(0)
        trackers.end("finished")
    (told,) = calls(fake, "start")
    assert told["name"] == tmp_path.name


def test_a_run_that_ends_before_its_first_number_begins_nowhere(fake: Path, tmp_path: Path) -> None:
    notes: list[str] = []
    with opened(tmp_path, notes.append):
        pass
    assert calls(fake, "start") == []
    assert notes == []


def test_without_trackers_nothing_is_started_or_written(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with opened(tmp_path, pytest.fail, report_to=[]) as trackers:
        trackers.begin(0)
        trackers.log(0, {"x": 1.0})
        trackers.completions(0, [record()])
        trackers.end("finished")
        assert set(threading.enumerate()) <= before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("limit", "count"), [(2, 2), (0, 0)])
def test_only_so_many_completions_are_shown(limit: int, count: int, fake: Path, tmp_path: Path) -> None:
    with opened(tmp_path, max_completions=limit) as trackers:
        trackers.begin(0)
        trackers.completions(1, [record(number) for number in range(5)])
        trackers.end("finished")
    assert [len(rows) for _, rows in calls(fake, "completions")] == ([count] if count else [])


def test_a_row_tells_what_was_said_and_what_it_was_worth() -> None:
    other = record(1, reward=None, reward_parts={"format": 0.0}, answer="x" * (MAX_TEXT + 3))
    rows = completion_rows(10, [record(), other])
    assert rows[0] == {
        "step": 10,
        "example_id": "e0",
        "group": 0,
        "sample_index": 0,
        "prompt": "question ",
        "completion": "call found answer",
        "answer": "7",
        "reward": 0.5,
        "advantage": -0.25,
        "stop_reason": "stop",
        "part_correct": 1.0,
        "part_format": None,
    }
    assert list(rows[0]) == list(rows[1])
    assert rows[1]["answer"] == f"{'x' * MAX_TEXT} [... 3 more characters]"
