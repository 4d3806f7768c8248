import json
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest

from rlvr.records.rollouts import MAX_TEXT, completion_rows
from tests.unit.records.made import episode_record
from tests.unit.tracking.trackers.fake import Run


def test_pitfall_38_trackers_get_the_numbers_of_the_file(tmp_path: Path) -> None:
    metrics = {"reward/mean": 0.1 + 0.2, "loss/kl": float("nan"), "policy/ratio": float("inf"), "rollout/episodes": 8}
    run = Run(tmp_path)
    with run.trackers as trackers:
        trackers.begin(0, {})
        run.steps(0, 1, 2, values=lambda step: metrics)
        trackers.end("finished")
    lines = [json.loads(line) for line in run.metrics.path.read_text().splitlines()]
    expected = [[line.pop("step"), {k: v for k, v in line.items() if v is not None}] for line in lines]
    assert run.calls("log") == expected
    assert set(expected[0][1]) == {"reward/mean", "rollout/episodes"}


def test_a_tracker_gets_the_facts_of_the_run(tmp_path: Path) -> None:
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
def test_pitfall_37_trackers_get_how_a_run_ended(error: Exception | None, status: str, tmp_path: Path) -> None:
    (tmp_path / "final").mkdir()  # of an earlier end
    run = Run(tmp_path)
    with pytest.raises(ValueError, match=r"^why$") if error else nullcontext(), run.trackers as trackers:
        trackers.begin(0, {})
        if error is not None:
            raise error
        trackers.end("killed")
    assert run.calls("finish") == [status]
    assert run.calls("model") == []


def test_a_run_without_numbers_starts_no_tracker(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with run.trackers:
        pass
    assert run.calls("start") == []
    assert run.notes == []


def test_without_trackers_nothing_is_started_or_written(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    run = Run(tmp_path, report_to=[])
    with run.trackers as trackers:
        trackers.begin(0, {})
        trackers.log(0)
        trackers.completions(0, [episode_record()])
        trackers.end("finished")
        assert set(threading.enumerate()) <= before
    assert (list(tmp_path.iterdir()), run.notes) == ([], [])


def test_a_row_has_text_reward_and_parts() -> None:
    other = episode_record(reward=None, reward_parts={"format": 0.0}, answer="x" * (MAX_TEXT + 3))
    rows = completion_rows(10, [episode_record(), other])
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
