"""Which folder a MODEL argument means."""

from pathlib import Path

import pytest

from rlvr.errors import ConfigError, UserError
from rlvr.run.sources import run_of, servable, weights_of, with_absolute_model
from tests.unit.core.tiny import tiny_config


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty run in the present folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "config.yaml").touch()
    return Path("runs/a")


@pytest.mark.parametrize("inside", ["", "final", "warm_start", "checkpoints/step_000010", "checkpoints/x/model"])
def test_the_run_of_a_folder_inside_of_it(run: Path, inside: str) -> None:
    assert run_of(run / inside) == run.absolute()
    assert run_of(run / "rollouts" / inside) is None


def test_the_weights_of_a_run(run: Path) -> None:
    """Its final model; before there is one, its newest checkpoint."""
    with pytest.raises(UserError, match=r"neither final/ nor a checkpoint yet: .* resume=true\.$"):
        weights_of("runs/a")
    (run / "warm_start").mkdir()
    with pytest.raises(UserError, match=r"or use runs/a/warm_start\.$"):
        weights_of("runs/a")
    for step in (2, 10):
        (run / "checkpoints" / f"step_{step:06d}").mkdir(parents=True)
    assert weights_of("runs/a") == "runs/a/checkpoints/step_000010"
    (run / "final").mkdir()
    assert weights_of("runs/a") == servable("runs/a") == "runs/a/final"
    with pytest.raises(ConfigError, match="is an endpoint already"):
        servable("openai:http://127.0.0.1:1/v1#x")


def test_a_name_with_one_slash_may_be_of_the_hub(run: Path) -> None:
    assert weights_of("Qwen/Qwen3") == "Qwen/Qwen3"
    assert weights_of("gpt2") == "gpt2"
    for folder in ("runs/b", "x/y/z", str(run.absolute() / "b")):  # there is a folder runs, and no hub has three parts
        with pytest.raises(UserError, match="there is no folder"):
            weights_of(folder)
    with pytest.raises(UserError, match=r"did you mean runs/a\?"):
        weights_of("runs/aa")


def test_models_of_a_run_keep_their_place(run: Path) -> None:
    (run / "final").mkdir()
    of = ("algorithm=distill", "algorithm.reward_coef=1", "rollout.group_size=8")
    for teacher, found in (
        ("runs/a", str(run.absolute() / "final")),
        ("start", "start"),
        ("openai:http://127.0.0.1:1/v1#x", "openai:http://127.0.0.1:1/v1#x"),
        ("Qwen/Qwen3", "Qwen/Qwen3"),
    ):
        config = with_absolute_model(tiny_config(*of, f"algorithm.teacher='{teacher}'"))
        assert config.algorithm.teacher == found  # type: ignore[attr-defined]
