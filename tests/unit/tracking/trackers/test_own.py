"""The tracker in examples/own, in its own thread."""

from pathlib import Path

import pytest

from rlvr.records.jsonl import MetricsFile
from rlvr.settings import validated
from rlvr.tracking.settings import TrackerSettings
from rlvr.tracking.trackers.fanout import Trackers

EXAMPLES = Path(__file__).resolve().parents[4] / "examples" / "own"


def report(folder: Path, steps: range) -> list[str]:
    """Report some steps, those before them from metrics.jsonl; the notes."""
    settings = validated(TrackerSettings, {"report_to": ["my_tracker:Csv"], "csv": {"path": "mine.csv"}})
    file, notes = MetricsFile(folder / "metrics.jsonl"), []
    with Trackers(settings, folder, notes.append, experiment="rpn") as trackers:
        trackers.begin(steps.start, {})
        for step in steps:
            file.append(step, {"loss/total": step / 4, "reward/mean": 1.0})
            trackers.log(step)
        trackers.end("finished")
    return notes


def test_the_example_keeps_every_number_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    path = tmp_path / "mine.csv"
    assert report(tmp_path, range(3)) == [f"Csv: {path}"]
    with path.open("a") as file:
        file.write("3,loss/total,9.0\n")  # of a process that was killed before it answered
    report(tmp_path, range(3, 5))
    rows = [line.split(",") for line in path.read_text().splitlines()]
    assert rows[0] == ["step", "name", "value"]
    assert rows[1:] == [
        [str(step), name, str(value)]
        for step in range(5)
        for name, value in (("loss/total", step / 4), ("reward/mean", 1.0))
    ]
    path.unlink()  # a run that was shown, and its file is gone: everything is sent again
    report(tmp_path, range(5, 6))
    assert {line.split(",")[0] for line in path.read_text().splitlines()} == {"step", *map(str, range(6))}
