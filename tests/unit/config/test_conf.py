"""The YAML files: commented, complete, and what the specifications say."""

import re
from math import ceil
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import rlvr
from rlvr.config.catalog import choice_models, sections
from rlvr.config.compose import load_config

CONF = Path(rlvr.__file__).parent / "conf"
GROUP_FILES = sorted(CONF.glob("*/*.yaml"))


@pytest.mark.parametrize("file", GROUP_FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_every_key_of_a_group_carries_a_comment(file: Path) -> None:
    lines = file.read_text().splitlines()
    assert lines[0].startswith("# ")
    keys = [line for line in lines[1:] if re.match(r"\s*[\w]+:", line) and not line.startswith(("name:", "defaults:"))]
    assert [line for line in keys if "#" not in line] == []


@pytest.mark.parametrize("file", GROUP_FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_a_group_file_has_exactly_the_keys_of_its_schema(file: Path) -> None:
    values = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    assert isinstance(values, dict)
    if set(values) == {"defaults"}:  # another name of another file
        (other,) = values["defaults"]
        assert (file.parent / f"{other}.yaml").is_file()
        return
    model = choice_models(file.parent.name)[values.get("name", "default")]
    if values.pop("defaults", None) == ["default", "_self_"]:  # changes a few values of another file
        assert set(values) < set(model.model_fields)
    else:
        assert set(values) == set(model.model_fields)


def test_every_choice_of_the_schema_has_a_file() -> None:
    names = {f"{file.parent.name}/{OmegaConf.load(file).get('name', 'default')}" for file in GROUP_FILES}
    assert {f"{section}/{choice}" for section in sections() for choice in choice_models(section)} <= names


@pytest.mark.parametrize("task", sorted(choice_models("task")))
def test_every_task_has_a_reward_and_a_prompt_that_follow_it(task: str) -> None:
    assert (CONF / "reward" / f"{task}.yaml").is_file()
    assert (CONF / "prompt" / f"{task}.yaml").is_file()


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
