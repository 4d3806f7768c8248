"""Run folders of rlvr 0.1.0: their config.yaml is read as one of today."""

from pathlib import Path
from typing import Any

import pytest

from rlvr.config import Config
from rlvr.config.compose import load_config, read_yaml
from rlvr.errors import ConfigError
from rlvr.settings import dumped

FOLDER = Path(__file__).resolve().parents[2] / "fixtures" / "runs_of_0_1_0"
RECIPE = {"optimizer": "adamw", "learning_rate": 3e-3, "warmup_steps": 20, "final_learning_rate_share": 0.05}
RECIPE |= {"weight_decay": 0.01, "num_steps": 60, "final_phase_steps": 20, "final_worked_share": 0.15}  # of that time


def warm(**changes: Any) -> tuple[str, ...]:
    return tuple(f"warm_start.{key}={value}" for key, value in (RECIPE | changes).items())


WARM = warm()
PPO = ("trainer.max_steps=4", *WARM, "evaluation.num_examples=64")
HOP = ("trainer.max_steps=3", *WARM, "warm_start.worked_share=0.3", "evaluation.num_examples=16")
GSM = ("trainer.max_steps=3", *warm(num_steps=30, final_phase_steps=10, learning_rate=4e-3), HOP[-1])
COMMANDS = {
    "rpn": ("rpn_test", ("rollout.prompts_per_step=4",)),
    "ppo": ("rpn_ppo", PPO),
    "hop": ("two_hop", HOP),
    "gsm": ("gsm8k_smoke", GSM),
}


def values(config: Config) -> dict[str, Any]:
    """All but the name of a prompt, which had none as it says all of itself, and a share that has no effect."""
    found = dumped(config)
    if not found["warm_start"]["final_phase_steps"]:
        del found["warm_start"]["final_worked_share"]
    found["prompt"].pop("name")
    return found


@pytest.mark.parametrize("run", COMMANDS)
def test_an_old_run_equals_its_command_today(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLVR_DATA", raising=False)
    name, words = COMMANDS[run]
    today = load_config(list(words), config_name=name)
    old = read_yaml((FOLDER / f"{run}.yaml").read_text())
    assert values(old) == values(today)


def test_a_run_that_trained_on_tool_tokens_cannot_go_on() -> None:
    text = (FOLDER / "hop.yaml").read_text().replace("train_on_tool_tokens: false", "train_on_tool_tokens: true")
    with pytest.raises(ConfigError, match=r"train_on_tool_tokens.*is not a setting here; .*benchmarks/tool_tokens\.py"):
        read_yaml(text)
