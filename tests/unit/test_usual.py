"""Usual ranges of settings: what a run says of a value outside, in one sentence everywhere."""

import pytest

from rlvr.config.sections import unusual_settings
from tests.unit.core.tiny import tiny_config

LORA = ("model=hf", "model.name_or_path=tiny", "model.lora.enabled=true", "model.lora.r=2")


@pytest.mark.parametrize(
    ("settings", "key", "range_in_words"),
    [
        ((), None, ""),
        (("rollout.temperature=2",), None, ""),
        (("rollout.temperature=2.5",), "rollout.temperature", "0.1 to 2"),
        (("rollout.temperature=2.5", "rollout.min_p=0.1"), None, ""),  # noise is left out
        (("rollout.temperature=0.05",), "rollout.temperature", "0.1 to 2"),
        (("rollout.top_p=0.2",), "rollout.top_p", "0.3 to 1"),
        (("rollout.min_p=0.8",), "rollout.min_p", "0 to 0.7"),
        (("rollout.max_staleness=9",), "rollout.max_staleness", "0 to 8"),
        (("algorithm.entropy_coef=0.01",), None, ""),
        (("algorithm.entropy_coef=0.2",), "algorithm.entropy_coef", "0 to 0.1"),
        (("algorithm.kl_coef=1.5",), "algorithm.kl_coef", "0 to 1"),
        (("algorithm=ppo",), None, ""),
        (("algorithm=ppo", "algorithm.value_coef=0"), "algorithm.value_coef", "0.0001 or more"),
        (("algorithm=reinforce_pp", "algorithm.gamma=0.9"), None, ""),  # 0.9 ** 24 is 0.08
        (("algorithm=reinforce_pp", "algorithm.gamma=0.8"), "algorithm.gamma", "0.825 to 1"),
        (("algorithm.num_epochs=16",), None, ""),
        (("algorithm.num_epochs=17",), "algorithm.num_epochs", "1 to 16"),
        (("algorithm.num_minibatches=2", "algorithm.clip_high=0.005"), "algorithm.clip_high", "0.01 or more"),
        (("algorithm=gspo",), None, ""),  # its bounds are that small
        (("algorithm=gspo", "algorithm.clip_high=3e-4"), None, ""),
        (("algorithm=gspo", "algorithm.clip_high=1e-6"), "algorithm.clip_high", "1e-05 or more"),
        (("trainer.adam_beta1=0.95", "trainer.adam_beta2=0.9"), "trainer.adam_beta1", "0 to 0.9"),
        (("trainer.weight_decay=2",), "trainer.weight_decay", "0 to 1"),
        (("trainer.max_grad_norm=1e-7",), "trainer.max_grad_norm", "0.0001 or more"),
        ((*LORA, "model.lora.alpha=128"), None, ""),
        ((*LORA, "model.lora.alpha=129"), "model.lora.alpha", "0.0312 to 128"),
    ],
)
def test_a_value_outside_is_said_with_what_it_leads_to(
    settings: tuple[str, ...], key: str | None, range_in_words: str
) -> None:
    config = tiny_config(*settings)
    found = unusual_settings(config)
    assert [one.key for one in found] == ([] if key is None else [key])
    for one in found:
        assert f"{one.key}={one.value:g}: {range_in_words} is usual; {one.leads}" == str(one)
        assert one.leads
        assert str(one) in config.notes
