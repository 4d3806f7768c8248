from pathlib import Path

import pytest

from rlvr.records.jsonl import read_metrics
from rlvr.tracking.console import Console
from rlvr.tracking.losses import NAME, Losses


@pytest.mark.parametrize("writes", [True, False])
def test_losses_are_in_the_folder_and_begin_again_after_a_stop(writes: bool, tmp_path: Path) -> None:
    with Console("none", 1, 1) as console:
        for values in ((3.0, 2.0, 1.5), (3.0, 2.5)):
            losses = Losses(console=console, folder=tmp_path, num_steps=3, writes=writes)
            for step, loss in enumerate(values, start=1):
                losses.show(step, loss)
    assert (tmp_path / NAME).exists() == writes
    if writes:
        assert read_metrics(tmp_path / NAME) == [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.5}]
