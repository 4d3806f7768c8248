"""The YAML files are commented and complete, and follow the specifications."""

from math import ceil
from pathlib import Path

import pytest

import rlvr
from rlvr.config.compose import load_config
from rlvr.registry import find, names

CONF = Path(rlvr.__file__).parent / "conf"
FILES = sorted(CONF.glob("**/*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_every_file_begins_with_a_comment(file: Path) -> None:
    assert file.read_text().startswith("# ")


@pytest.mark.parametrize("task", names("task"))
def test_every_task_has_a_reward_and_a_prompt_that_follow_it(task: str) -> None:
    settings = find("task", task)
    assert settings.prompt in names("prompt")
    assert not isinstance(settings.reward, str) or (CONF / "reward" / f"{settings.reward}.yaml").is_file()


@pytest.mark.parametrize(
    ("name", "epochs", "samples", "batches", "batch_size"),
    [("rpn_small", 10, 1000, 10, 8), ("rpn_large", 50, 5000, 50, 16), ("rpn_test", 3, 100, 5, 4)],
)
def test_presets_follow_the_specification(name: str, epochs: int, samples: int, batches: int, batch_size: int) -> None:
    config = load_config([], config_name=name)
    text = (CONF / f"{name}.yaml").read_text()
    steps = epochs * min(ceil(samples / batch_size), batches)
    assert config.trainer.max_steps == steps or "# measured:" in text
    assert config.rollout.prompts_per_step == batch_size or "# measured:" in text
