from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from rlvr.tracking.trackers.base import RunFacts, Started
from rlvr.tracking.trackers.tensorboard import Tensorboard
from tests.system.tracker_readers import from_tensorboard

pytestmark = pytest.mark.trackers


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


def part(folder: Path, steps: range, known: Started | None, *, end: bool = True) -> Started:
    """A run, or its continuation, that makes some steps."""
    backend = Tensorboard()
    about = replace(facts(folder, steps.start), known=known)
    with patch("time.time", return_value=1e9 + (known is not None)):  # the name of its file
        started = backend.start(about)
    backend.log([(step, {"loss/total": float(step + 10 * (known is not None))}) for step in steps])
    if end:
        backend.finish("finished")
    return replace(started, last_step=steps[-1])


def test_pitfall_37_repeated_steps_replace_the_first_ones(tmp_path: Path) -> None:
    first = part(tmp_path, range(6), None, end=False)  # killed after step 5, with a checkpoint of step 2
    second = part(tmp_path, range(3, 8), first)
    kept = from_tensorboard(tmp_path / "tensorboard")
    assert kept.doubled == []
    found = {step: row["loss/total"] for step, row in kept.numbers.items()}
    assert found == dict(enumerate([0.0, 1.0, 2.0, 13.0, 14.0, 15.0, 16.0, 17.0]))
    assert second.id == first.id
    again = Tensorboard().start(replace(facts(tmp_path, 3), known=replace(first, last_step=5)))
    assert again.last_step == 2  # replaced steps must be sent again


def test_text_of_a_model_is_never_read_as_markdown(tmp_path: Path) -> None:
    backend = Tensorboard()
    backend.start(facts(tmp_path))
    backend.completions(1, [{"step": 1, "prompt": "# title", "completion": "<script>\n![x](http://x/y.png)\udc80"}])
    backend.finish("killed")
    (text,) = from_tensorboard(tmp_path / "tensorboard").completions[1]
    assert "<script>" in text
    assert all(line.startswith("    ") for line in text.split("\n"))
