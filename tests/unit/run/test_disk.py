"""Less free disk than the plan's is one sentence, before the run takes hours."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlvr.run.disk import disk_of_models, disk_warnings, sizes_of
from tests.unit.core.tiny import tiny_config, tiny_policy

EVERY = ("trainer.max_steps=4", "trainer.checkpoint_every=2", "trainer.keep_last=2", "trainer.keep_best=false")


def test_less_space_than_checkpoints_and_models_need_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, policy = tiny_config(*EVERY), tiny_policy()
    saved, trained = sizes_of(policy)
    needed = sum(disk_of_models(config, saved, trained).values())
    assert needed == 2 * (saved + 2 * trained) + 2 * saved  # two checkpoints, warm_start/ and final/

    def said(free: int) -> list[str]:
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
        return list(disk_warnings(config, policy, tmp_path))

    assert said(needed) == []
    (line,) = said(needed - 1)
    assert line.startswith("warning: checkpoints and models will take 531.")
    (tmp_path / "final").mkdir()
    (tmp_path / "final" / "model.safetensors").write_bytes(bytes(saved))  # of the run that is resumed
    assert said(needed - saved) == []
