import json
import threading
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlvr.tracking.rollouts import MAX_TEXT, EpisodeRecord, TurnRecord, completion_rows
from tests.unit.tracking.trackers.fake import Run


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
        calls=(),
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


def test_pitfall_38_trackers_get_the_numbers_of_the_file(tmp_path: Path) -> None:
    metrics = {"reward/mean": 0.1 + 0.2, "loss/kl": float("nan"), "policy/ratio": float("inf"), "rollout/episodes": 8}
    run = Run(tmp_path)
    with run.trackers as trackers:
        trackers.begin(0)
        run.steps(0, 1, 2, values=lambda step: metrics)
        trackers.end("finished")
    lines = [json.loads(line) for line in run.metrics.path.read_text().splitlines()]
    expected = [[line.pop("step"), {k: v for k, v in line.items() if v is not None}] for line in lines]
    assert run.calls("log") == expected
    assert set(expected[0][1]) == {"reward/mean", "rollout/episodes"}


def test_what_a_tracker_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "my-run"
    folder.mkdir()
    (folder / "config.yaml").write_text("a: 1\n")
    (folder / "final").mkdir()
    run = Run(folder, group="sweep", run_name="mine", tags=["a", "b"])
    run.all()
    (told,) = run.calls("start")
    assert (told["name"], told["group"], told["tags"], told["experiment"]) == ("mine", "sweep", ["a", "b"], "rpn")
    assert told["config"] == {"seed": 5, "run_dir": None}
    assert run.calls("files") == [[str(folder / "config.yaml")]]
    assert run.calls("model") == [str(folder / "final")]


@pytest.mark.parametrize(("error", "status"), [(None, "killed"), (ValueError("why"), "failed")])
def test_pitfall_37_how_a_run_ended_is_told(error: Exception | None, status: str, tmp_path: Path) -> None:
    (tmp_path / "final").mkdir()  # of an earlier end
    run = Run(tmp_path)
    with pytest.raises(ValueError, match=r"^why$") if error else nullcontext(), run.trackers as trackers:
        trackers.begin(0)
        if error is not None:
            raise error
        trackers.end("killed")
    assert run.calls("finish") == [status]
    assert run.calls("model") == []


def test_a_run_that_ends_before_its_first_number_begins_nowhere(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with run.trackers:
        pass
    assert run.calls("start") == []
    assert run.notes == []


def test_without_trackers_nothing_is_started_or_written(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    run = Run(tmp_path, report_to=[])
    with run.trackers as trackers:
        trackers.begin(0)
        trackers.log(0)
        trackers.completions(0, [record()])
        trackers.end("finished")
        assert set(threading.enumerate()) <= before
    assert (list(tmp_path.iterdir()), run.notes) == ([], [])


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
