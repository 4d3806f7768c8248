"""debug=true: a small run, in which the user's own values win."""

from pathlib import Path

import pytest

from rlvr.config.compose import load_config, to_run_yaml
from rlvr.config.config import Config
from rlvr.settings import dumped

pytestmark = pytest.mark.slow

HF = ("model=hf", "model.name_or_path=somewhere", "task=gsm8k")


def debug(*overrides: str, **options: str) -> Config:
    return load_config(["debug=true", *overrides], **options)


def size(config: Config) -> tuple[int, int, int]:
    return config.trainer.max_steps, config.rollout.prompts_per_step, config.rollout.group_size


def test_a_debug_run_is_small_and_everything_of_it_is_logged() -> None:
    config = debug()
    assert size(config) == (3, 2, 4)
    assert (config.evaluation.num_examples, config.evaluation.every) == (4, 1)
    assert (config.tracker.rollouts_every, config.tracker.rollouts_max_groups, config.tracker.log_every) == (1, None, 1)
    assert config.trainer.warmup_steps == 0
    assert config.warm_start.num_steps == 300
    assert config.warm_start.final_phase_steps == 20
    assert debug("algorithm=ppo").algorithm.num_minibatches == 2
    plain = load_config([])
    changed = {"debug", "trainer", "rollout", "evaluation", "tracker", "warm_start"}
    assert {name for name, value in dumped(config).items() if value != dumped(plain)[name]} <= changed
    assert load_config(["debug=false"]) == plain


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("trainer", {"max_steps": 50, "warmup_steps": 2}),
        ("rollout", {"prompts_per_step": 7, "group_size": 16}),
        ("evaluation", {"num_examples": 200, "every": 2}),
        ("tracker", {"rollouts_every": None}),
        ("tracker", {"rollouts_max_groups": 1}),
        ("warm_start", {"num_steps": 900, "final_phase_steps": 5}),
    ],
)
def test_pitfall_37_a_value_of_the_users_own_wins(section: str, said: dict[str, int | None]) -> None:
    lines = [f"{section}.{key}={'null' if value is None else value}" for key, value in said.items()]
    found = getattr(debug(*lines), section)
    assert {key: getattr(found, key) for key in said} == said


@pytest.mark.parametrize(
    "lines", [("trainer.max_steps=7",), HF, ("tracker.console=none", "tracker.rollouts_every=null")]
)
def test_pitfall_37_the_file_of_a_debug_run_composes(lines: tuple[str, ...], tmp_path: Path) -> None:
    # as a resume does: nothing is made smaller again, and nothing is taken for the user's own
    config = debug(*lines)
    (tmp_path / "config.yaml").write_text(to_run_yaml(config))
    assert load_config([], config_name="config", config_dir=str(tmp_path)) == config
    assert debug(config_name="config", config_dir=str(tmp_path)) == config


def test_a_file_wins_over_debug(tmp_path: Path) -> None:
    head = "defaults: [rpn, _self_]\nname: mine\n"
    (tmp_path / "mine.yaml").write_text(f"{head}debug: true\ntrainer: {{max_steps: 9}}\n")
    assert size(load_config([], config_name="mine", config_dir=str(tmp_path))) == (9, 2, 4)
    (tmp_path / "mine.yaml").write_text(f"{head}trainer: {{max_steps: 9}}\n")
    assert size(debug(config_name="mine", config_dir=str(tmp_path))) == (3, 2, 4)
