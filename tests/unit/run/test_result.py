"""What a run left, as Python code sees it."""

from pathlib import Path

import pytest

from rlvr.errors import UserError
from rlvr.records.rollouts import rollouts_path, write_rollouts
from rlvr.run.result import Run


def test_rollouts_are_those_of_the_last_recorded_step(tmp_path: Path) -> None:
    run = Run(folder=tmp_path, num_steps=12, finished=True)
    assert run.final == tmp_path / "final"
    with pytest.raises(UserError, match=r"has rollouts of steps \[\], not None"):
        run.rollouts()
    for step in (3, 100_000):
        write_rollouts(rollouts_path(tmp_path / "rollouts", step), [])
    (tmp_path / "rollouts" / "step_100000.jsonl.gz").write_text("x")
    assert run.rollouts(3) == []
    with pytest.raises(UserError, match=r"step_100000\.jsonl\.gz is damaged"):
        run.rollouts()
    with pytest.raises(UserError, match=r"has rollouts of steps \[3, 100000\], not 4: tracker\.rollouts_every"):
        run.rollouts(4)
