"""The format of tool calls is a setting of each task."""

import pytest

from rlvr.config import Config
from rlvr.config.compose import load_config
from rlvr.models.policy import HubPolicy
from rlvr.run.tasks import make_chat
from tests.unit.chat.tokenizers import byte_tokenizer
from tests.unit.engines.tiny import tiny_model

HF = ("model=hf", "model.name_or_path=somewhere")


class Speaker:
    stop_words = ()

    def __init__(self, name: str) -> None:
        self.name = name


def spoken(config: Config, name: str) -> str:
    policy = HubPolicy(model=tiny_model("llama"), tokenizer=byte_tokenizer())
    return make_chat(config, policy, Speaker(name)).tool_format.name


@pytest.mark.parametrize("tool_format", ["hermes", "llama"])
def test_pitfall_28_tool_calls_have_the_chosen_format(tool_format: str) -> None:
    config = load_config([*HF, f"prompt.tool_format={tool_format}"], config_name="musique")
    assert spoken(config, "musique") == tool_format


def test_pitfall_28_each_task_has_the_format_of_its_prompt() -> None:
    llama = "{set: ['prompt.tool_format=llama']}"
    also = "+evaluation.also={other: {task: wiki2, set: ['prompt.tool_format=hermes']}}"
    config = load_config(["task=mix", *HF, f"task.parts={{gsm8k: 1, musique: {llama}}}", also])
    assert [spoken(config, name) for name in ("mix", "musique", "other")] == ["llama", "llama", "hermes"]
