"""MLflow's own store, without a run."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from rlvr.tracking.trackers.base import Started
from rlvr.tracking.trackers.mlflow import Mlflow, default_store
from tests.system.tracker_readers import from_mlflow
from tests.unit.tracking.trackers.test_tensorboard import facts

pytestmark = [pytest.mark.trackers, pytest.mark.filterwarnings("ignore"), pytest.mark.slow]


def test_runs_and_sweeps_share_the_default_store(tmp_path: Path) -> None:
    run = facts(tmp_path / "runs" / "one")
    point = replace(facts(tmp_path / "runs" / "seeds" / "seed=1"), group="seeds")
    assert default_store(run) == default_store(point) == f"sqlite:///{tmp_path / 'runs' / 'mlflow.db'}"
    older = f"sqlite:///{tmp_path / 'runs' / 'seeds' / 'mlflow.db'}"
    assert default_store(replace(point, known=Started(id="x", store=older))) == older


def test_a_database_that_cannot_be_written_fails_at_once(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    start = time.monotonic()
    with pytest.raises(OSError, match="taken"):
        Mlflow(tracking_uri=f"sqlite:///{tmp_path / 'taken'}").prepare(facts(tmp_path / "run"))
    assert time.monotonic() - start < 60  # MLflow tries again for longer


def test_pitfall_37_numbers_sent_before_a_kill_are_not_doubled(tmp_path: Path) -> None:
    rows = [(step, {"loss/total": step / 2, "reward/mean": 1.0}) for step in range(3)]
    run = facts(tmp_path / "run")
    first = Mlflow()
    first.prepare(run)
    started = first.start(run)
    first.log([*rows[:2], (2, {"loss/total": 1.0})])  # killed in the middle of step 2, before it was noted
    second = Mlflow()
    second.prepare(again := replace(run, known=started))
    second.start(again)
    second.log(rows)
    (kept,) = from_mlflow(f"sqlite:///{tmp_path / 'mlflow.db'}", "rpn").values()
    assert kept.doubled == []
    assert kept.numbers == dict(rows)
