"""The configurations of the multi-hop tasks: data sets, settings of the task, foreign keys."""

from pathlib import Path

import pytest

from rlvr.commands.train.summary import summary
from rlvr.config.compose import load_config
from rlvr.errors import ConfigError
from rlvr.models.settings import PretrainedModel
from rlvr.tasks.multihop_settings import MultiHopSettings

pytestmark = pytest.mark.slow

FIXTURES = Path(__file__).parents[2] / "fixtures"
HUB = {
    "musique": ("bdsaglam/musique,answerable,train", "bdsaglam/musique,answerable,validation"),
    "hotpotqa": ("hotpotqa/hotpot_qa,distractor,train", "hotpotqa/hotpot_qa,distractor,validation"),
    "wiki2": ("xanhho/2WikiMultihopQA,,train", "xanhho/2WikiMultihopQA,,validation"),
}


@pytest.mark.parametrize("name", HUB)
def test_sets_come_from_the_hub_or_rlvr_data(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLVR_DATA", raising=False)
    task = load_config([], config_name=name).task
    assert isinstance(task, MultiHopSettings)
    assert (task.train_sets, task.eval_sets) == HUB[name]
    monkeypatch.setenv("RLVR_DATA", str(FIXTURES))
    task = load_config([], config_name=name).task
    folder = FIXTURES / {"wiki2": "2wikimultihopqa"}.get(name, name)
    assert isinstance(task, MultiHopSettings)
    assert (task.train_sets, task.eval_sets) == (f"{folder},train", f"{folder},dev")


def test_a_run_has_the_settings_of_the_project() -> None:
    config = load_config([], config_name="musique")
    model = config.model
    assert isinstance(model, PretrainedModel)
    assert (model.name_or_path, model.lora.enabled, model.lora.r) == ("Qwen/Qwen2.5-7B-Instruct", True, 16)
    assert config.algorithm.name == "dr_grpo"
    assert (config.trainer.learning_rate, config.trainer.max_grad_norm) == (1e-5, 0.1)
    assert config.prompt.answer_in == "complete"
    assert any("retriever bm25" in line for line in summary(config))


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("retriever_top_k=3", "task.top_n"),
        ("datasets=x", "task.train_sets"),
        ("noise_rate=0.5", "task.noise_rate"),
        ("num_train_examples=10", "task.max_train_examples"),
        ("few_shot_prob=0.1", "is not a setting here"),
        ("kl_beta=0.04", "algorithm.kl_coef"),
    ],
)
def test_options_of_the_musique_project_name_ours(theirs: str, ours: str) -> None:
    with pytest.raises(ConfigError, match=ours.replace(".", r"\.")):
        load_config([theirs], config_name="musique")
