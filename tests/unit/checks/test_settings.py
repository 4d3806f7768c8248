"""Checks of settings, without a model's folder."""

from types import SimpleNamespace
from typing import Any

import pytest

from rlvr.checks.settings import (
    credit_arrives,
    optimizer_fits,
    reward_outweighs_entropy,
    rows_suffice,
    sampling_explores,
    updates_stay_near,
)
from tests.unit.core.tiny import tiny_config, tiny_policy


def of(*overrides: str, sizes: tuple[int, int] | None = None, name: str = "rpn") -> Any:
    config, policy = tiny_config(*overrides, name=name), tiny_policy()
    return SimpleNamespace(
        config=config,
        as_run=SimpleNamespace(config=config),
        policy=policy,
        model=policy.model,
        task=SimpleNamespace(sizes=sizes),
    )


STEPS = ("trainer.max_steps=156", "rollout.prompts_per_step=32")


@pytest.mark.parametrize(
    ("sizes", "status", "says"),
    [
        ((10, 8), "ok", "the run goes 5e+02 times over 10 training rows"),
        ((9, 8), "fail", "156 steps of 32 prompts go 555 times over 9 training rows: the answers are learnt by heart"),
        (None, "skipped", "the task makes its examples, or is a part of several"),
    ],
)
def test_a_run_may_go_five_hundred_times_over_its_rows(sizes: tuple[int, int] | None, status: str, says: str) -> None:
    found = rows_suffice(of(*STEPS, sizes=sizes))
    assert (found.status, found.says) == (status, says)


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ((), None),
        (("temperature=2",), None),
        (("temperature=2.5",), "temperature=2.5: all tokens become likely, and completions noise"),
        (("temperature=2.5", "min_p=0.1"), None),  # noise is left out
        (("temperature=0.05",), "temperature=0.05: completions of a group are equal"),
        (("top_p=0.2",), "top_p=0.2: mostly the likeliest token alone is left"),
        (("min_p=0.8",), "min_p=0.8: mostly the likeliest token alone is left"),
    ],
)
def test_sampling_lets_completions_differ(settings: tuple[str, ...], wrong: str | None) -> None:
    found = sampling_explores(of(*(f"rollout.{one}" for one in settings)))
    assert found.status == ("ok" if wrong is None else "fail")
    assert wrong is None or found.says == f"rollout.{wrong}"


@pytest.mark.parametrize(("coef", "status"), [(0, "ok"), (0.01, "ok"), (0.35, "ok"), (0.36, "fail")])
def test_noise_earns_less_than_an_advantage(coef: float, status: str) -> None:
    """The logarithm of 17 words is 2.83."""
    assert reward_outweighs_entropy(of(f"algorithm.entropy_coef={coef}")).status == status


@pytest.mark.parametrize(
    ("algorithm", "settings", "wrong"),
    [
        ("grpo", (), None),
        ("ppo", (), None),
        ("ppo", ("value_coef=0",), "algorithm.value_coef=0: the critic is never trained"),
        ("reinforce_pp", ("gamma=0.9",), None),  # 0.9 ** 24 is 0.08
        ("reinforce_pp", ("gamma=0.8",), "algorithm.gamma=0.8: of a reward at the end of 24 tokens 0.005"),
    ],
)
def test_the_first_token_hears_of_the_reward(algorithm: str, settings: tuple[str, ...], wrong: str | None) -> None:
    found = credit_arrives(of(f"algorithm={algorithm}", *(f"algorithm.{one}" for one in settings)))
    assert found.status == ("ok" if wrong is None else "fail")
    assert wrong is None or found.says.startswith(wrong)


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ((), None),
        (("algorithm.num_epochs=16",), None),
        (("algorithm.num_epochs=17",), "algorithm.num_epochs=17 passes"),
        (("algorithm=ppo", "algorithm.num_epochs=17", "algorithm.target_kl=0.01"), None),
        (("algorithm.num_minibatches=2", "algorithm.clip_high=0.005"), "algorithm.clip_high=0.005"),
        (("algorithm=gspo",), None),  # its bounds are that small
        (("trainer.max_steps=10", "rollout.max_staleness=5"), None),
        (("trainer.max_steps=10", "rollout.max_staleness=6"), "rollout.max_staleness=6"),
    ],
)
def test_samples_stay_near_the_policy(settings: tuple[str, ...], wrong: str | None) -> None:
    found = updates_stay_near(of(*settings))
    assert found.status == ("ok" if wrong is None else "fail")
    assert wrong is None or found.says.startswith(wrong)


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ((), None),
        (("adam_beta1=0.95", "adam_beta2=0.95"), None),
        (("adam_beta1=0.96", "adam_beta2=0.95"), "trainer.adam_beta1=0.96 is above adam_beta2=0.95"),
        (("weight_decay=10", "learning_rate=1e-3", "max_steps=100"), None),
        (("weight_decay=10", "learning_rate=1e-3", "max_steps=101"), "trainer.weight_decay=10 at a learning rate"),
        (("max_grad_norm=1e-5",), None),
        (("max_grad_norm=1e-7",), "trainer.max_grad_norm=1e-07 over 16,608 weights leaves gradients"),
    ],
)
def test_the_optimizer_moves_weights_and_keeps_them(settings: tuple[str, ...], wrong: str | None) -> None:
    found = optimizer_fits(of(*(f"trainer.{one}" for one in settings)))
    assert found.status == ("ok" if wrong is None else "fail")
    assert wrong is None or found.says.startswith(wrong)
