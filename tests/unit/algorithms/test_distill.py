"""Distillation: a token's advantage is how much more likely the teacher finds it."""

import math

import pytest
import torch

from rlvr.config.compose import load_config
from rlvr.errors import ConfigError
from tests.unit.algorithms.cases import algorithm, batch_of
from tests.unit.core.tiny import tiny_config

MASK = [[0, 1, 1, 1], [0, 1, 0, 1]]
TEACHER = [[0.0, -0.5, -3.0, -40.0], [0.0, math.nan, 0.0, -1.0]]


def scored(**overrides: object):
    """The behavior's logprobs are -1."""
    chosen = algorithm("distill", teacher="other", **overrides)
    batch = batch_of(MASK, [1.0, 0.0], teacher=torch.tensor(TEACHER, dtype=torch.float64))
    return chosen.advantages(batch)


def test_each_token_gets_its_own_difference() -> None:
    """A tool's token has none, an unknown logprob counts as equal, and one that the teacher excludes is bounded."""
    expected = [[0.0, 0.5, -1.0, -1.0], [0.0, 0.0, 0.0, 0.0]]
    assert scored().advantages.tolist() == expected
    assert scored(max_gap=10).advantages[0].tolist() == [0.0, 0.5, -2.0, -10.0]


def test_a_reward_beside_the_teacher_is_grpo_s() -> None:
    half = math.sqrt(0.5) / (math.sqrt(0.5) + 1e-4) * math.sqrt(0.5)  # (1 - 1/2) / (std + epsilon)
    found = scored(reward_coef=2.0, max_gap=10).advantages
    torch.testing.assert_close(found[0, 1:], torch.tensor([0.5, -2.0, -10.0]).double() + 2 * half)
    torch.testing.assert_close(found[1], torch.tensor([0.0, -2 * half, 0.0, -2 * half]).double())


def test_the_reward_s_advantages_are_divided_as_grpo_s_are() -> None:
    plain = scored(reward_coef=1.0, std_normalization="none").advantages - scored().advantages
    torch.testing.assert_close(plain, torch.tensor([[0, 0.5, 0.5, 0.5], [0, -0.5, 0, -0.5]]).double())


def test_a_kl_in_the_reward_is_paid_once() -> None:
    """By the episode, before it is compared, where there is a reward."""
    shared = {"max_gap": 10, "reward_coef": 1.0, "std_normalization": "none", "kl_coef": 0.1, "kl_placement": "reward"}
    chosen = algorithm("distill", teacher="other", kl_estimator="k1", **shared)
    batch = batch_of(MASK, [1.0, 0.0], teacher=torch.full((2, 4), -1.0).double())
    found = chosen.advantages(batch.with_columns(reference_logprobs=torch.full((2, 4), -3.0).double())).advantages
    half = (1.0 - 0.2 * 3 + 0.2 * 2) / 2  # of the difference of the two rewards
    torch.testing.assert_close(found, torch.tensor([[half], [-half]]).double() * torch.tensor(MASK))


def test_a_kl_in_the_reward_is_paid_by_the_token() -> None:
    chosen = algorithm("distill", teacher="other", max_gap=10, kl_coef=0.1, kl_placement="reward", kl_estimator="k1")
    batch = batch_of(MASK, [1.0, 0.0], teacher=torch.full((2, 4), -1.0).double())
    nearer = torch.full((2, 4), -3.0).double()
    found = chosen.advantages(batch.with_columns(reference_logprobs=nearer)).advantages
    torch.testing.assert_close(found, -0.2 * torch.tensor(MASK).double())


def test_the_expected_gradient_is_that_of_the_reverse_kl() -> None:
    """Enumerated for one token of five: sum over a of pi(a) grad(-A(a) log pi(a)) = grad KL(pi || teacher)."""
    logits = torch.tensor([0.3, -1.0, 0.5, 0.0, 2.0], dtype=torch.float64, requires_grad=True)
    teacher = torch.tensor([1.0, 0.2, -0.5, 0.1, 0.0], dtype=torch.float64).log_softmax(0)
    policy = logits.log_softmax(0)
    chosen = algorithm("distill", teacher="other", num_epochs=1, max_gap=10)
    batch = batch_of([[1]] * 5, [0.0] * 5, behavior_logprobs=policy.detach()[:, None])
    batch = chosen.advantages(batch.with_columns(teacher=teacher[:, None]))
    loss = (policy.detach().exp() * -batch.advantages[:, 0] * policy).sum()
    kl = (policy.exp() * (policy - teacher)).sum()
    [found], [wanted] = torch.autograd.grad(loss, logits, retain_graph=True), torch.autograd.grad(kl, logits)
    assert wanted.abs().max() > 0.1
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", "algorithm.teacher: has no default; say algorithm.teacher=..."),
        ("algorithm.teacher=start", "algorithm.teacher=start: the policy's own start teaches it nothing"),
        ("algorithm.teacher=start algorithm.refresh_every=1", "algorithm.refresh_every=1: "),
        ("algorithm.teacher=policy", "algorithm.teacher=policy: a teacher that moves with the policy collapsed it"),
        ("algorithm.teacher=x algorithm.refresh_every=5", "algorithm.refresh_every=5: has no effect"),
        ("algorithm.teacher=start algorithm.reward_coef=0.5", "algorithm.reward_coef=0.5: compares the rewards"),
        ("algorithm.teacher=x algorithm.num_minibatches=5", "algorithm.num_minibatches=5: does not divide"),
        ("algorithm.teacher=x algorithm.std_normalization=none", "algorithm.std_normalization=none: has no effect"),
    ],
)
def test_settings_that_cannot_work_are_refused(words: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(["algorithm=distill", *words.split()])
    assert str(refused.value).startswith(sentence)


def test_one_completion_of_a_prompt_unless_the_user_wants_more() -> None:
    words = ("algorithm=distill", "algorithm.teacher=other")
    assert tiny_config(*words).rollout.group_size == 1
    assert tiny_config(*words, "rollout.group_size=8").rollout.group_size == 8
    assert tiny_config("algorithm=grpo").rollout.group_size == 8
