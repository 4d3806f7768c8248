"""Values of Python reach the configuration unchanged."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from rlvr.config.compose import load_config
from rlvr.config.overrides import parse_overrides
from rlvr.errors import ConfigError
from rlvr.lines import override_lines, quoted


def read_back(text: str) -> Any:
    """Through Hydra's grammar and OmegaConf's interpolation."""
    value = parse_overrides([f"key={quoted(text)}"])[0].value()
    return OmegaConf.to_container(OmegaConf.create({"key": value}), resolve=True)["key"]  # type: ignore[index, call-overload]


@given(st.text(alphabet=st.sampled_from("ab \\'\"${}[],=:\n#"), max_size=12) | st.text(max_size=20))
def test_any_text_arrives_unchanged(text: str) -> None:
    assert read_back(text) == text


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ['it\'s "here"', "größer 漢字", "a,b={c: [d]}", "\\boxed{x}\\", "${oc.env:HOME}", "null"]
)
def test_a_text_arrives_in_a_configuration(text: str) -> None:
    config = load_config(["task=jsonl", *override_lines({"task": {"path": text}})], config_name="gsm8k")
    assert config.task.path == text  # type: ignore[union-attr]


def test_choices_sections_keys_and_lists() -> None:
    values = {
        "algorithm": "dapo",
        "seed": 3,
        "trainer": {"max_steps": 5, "learning_rate": 1e-6, "checkpoint_every": None},
        "warm_start": {"enabled": False},
        "rollout.top_p": 0.5,
        "task": {"operators": ["+", "-"], "operand_range": (0, 4)},
    }
    config: Any = load_config(override_lines(values))
    trainer, task = config.trainer, config.task
    assert (config.algorithm.name, config.seed, trainer.max_steps, trainer.learning_rate) == ("dapo", 3, 5, 1e-6)
    assert (trainer.checkpoint_every, config.warm_start.enabled, config.rollout.top_p) == (None, False, 0.5)
    assert (task.operators, task.operand_range) == (("+", "-"), (0, 4))


def test_arguments_of_a_function_and_a_mix_are_mappings() -> None:
    values = {"task": {"name": "generator", "source": "module:function", "settings": {"noise_rate": 0.5}}}
    config = load_config(override_lines(values), config_name="gsm8k")
    assert config.task.settings == {"noise_rate": 0.5}  # type: ignore[union-attr]
    parts = {"gsm8k": 2, "finqa": {"weight": 0.5, "set": ["prompt.few_shot=1"]}}
    config = load_config(["task=mix", *override_lines({"task": {"parts": parts}})], config_name="gsm8k")
    weights = {name: part.weight for name, part in config.task.parts.items()}  # type: ignore[union-attr]
    assert weights == {"gsm8k": 2, "finqa": 0.5}


def test_paths_and_numbers_of_arrays() -> None:
    values = {"run_dir": Path("a b"), "seed": np.int64(3), "rollout": {"temperature": np.float32(0.5)}}
    config = load_config(override_lines(values))
    assert (config.run_dir, config.seed, config.rollout.temperature) == ("a b", 3, 0.5)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, object, b"bytes", np.zeros(2), [{"a": 1}]])
def test_a_value_that_is_no_setting_is_one_sentence(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^trainer\.learning_rate=.*: a setting is a text, .* of these\.$"):
        override_lines({"trainer": {"learning_rate": value}})


def test_what_one_run_does_to_a_value_no_other_one_sees() -> None:
    """A line is parsed once in a process."""
    first, second = (parse_overrides(["task.operators=['+']"])[0].value() for _ in range(2))
    assert isinstance(first, list)
    first.append("-")
    assert second == parse_overrides(["task.operators=['+']"])[0].value() == ["+"]
