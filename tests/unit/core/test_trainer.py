import traceback
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import pytest
import torch

from rlvr.algorithms.objective import Objective
from rlvr.algorithms.ppo import Ppo
from rlvr.core.errors import NonFiniteError
from rlvr.core.parallel import Float16
from rlvr.core.sums import critic_metrics
from rlvr.models.policy import HubPolicy
from rlvr.types import TokenBatch
from tests.unit.core.tiny import gradient, plain_logprobs, tiny_batch, tiny_policy, tiny_trainer, update

ALGORITHMS = ["grpo", "dr_grpo", "dapo", "rloo", "reinforce_pp", "gspo", "cispo", "ppo"]


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal but for the rounding of float32 sums."""
    return bool((a - b).norm() < 1e-5 * b.norm())


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["packed", "rows"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_pitfall_09_the_gradient_ignores_how_the_batch_is_cut(algorithm: str, layout: str) -> None:
    batch, critic = tiny_batch(tiny_policy()), algorithm == "ppo"
    once = [f"algorithm={algorithm}", "algorithm.num_epochs=1", "algorithm.num_minibatches=1"]
    whole = gradient(tiny_trainer(tiny_policy(critic=critic), *once), batch)
    order = torch.randperm(len(batch.ids), generator=torch.Generator().manual_seed(3)).tolist()
    cut = tiny_trainer(tiny_policy(critic=critic), *once, "trainer.microbatch_tokens=25", layout=layout)
    assert whole.norm() > 1e-3
    assert close(gradient(cut, batch.take(order)), whole)


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return ((found - exact).norm() / exact.norm()).item()


def test_float16_is_nearer_to_float32_than_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = tiny_batch(tiny_policy())
    exact = gradient(tiny_trainer(tiny_policy(), "trainer.precision=fp32"), batch)
    half, bfloat = (
        error(gradient(tiny_trainer(tiny_policy(), f"trainer.precision={name}"), batch), exact)
        for name in ("fp16", "bf16")
    )
    assert 0 < 3 * half < bfloat < 0.1


def scaled(monkeypatch: pytest.MonkeyPatch, batch: TokenBatch, *scales: float) -> tuple[torch.Tensor, list[float]]:
    """The gradient of a loss whose weights are a millionth, with these factors to try; those that were tried."""
    tried = []

    def given(self: Float16, weights: torch.Tensor) -> Iterator[float]:
        for scale in scales or loss_scales(self, weights):
            tried.append(scale)
            yield scale

    loss_scales, loss_weights = Float16.loss_scales, Objective.loss_weights
    with monkeypatch.context() as patch:
        patch.setattr(Float16, "loss_scales", given)
        patch.setattr(Objective, "loss_weights", lambda self, rows: 1e-6 * loss_weights(self, rows))
        return gradient(tiny_trainer(tiny_policy(), "trainer.precision=fp16"), batch), tried


def test_the_loss_of_float16_is_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it small gradients are lost; one that overflows is computed again."""
    batch = tiny_batch(tiny_policy())
    exact = 1e-6 * gradient(tiny_trainer(tiny_policy(), "trainer.precision=fp32"), batch)
    found, tried = scaled(monkeypatch, batch)
    assert len(tried) == 1
    assert error(found, exact) < 0.01
    assert error(scaled(monkeypatch, batch, 1.0)[0], exact) > 0.1
    again, tried = scaled(monkeypatch, batch, 2.0**60, 2.0**22)
    assert len(tried) == 2
    assert error(again, exact) < 0.01


def test_rows_without_gradient_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, trainer = tiny_batch(tiny_policy()), tiny_trainer(tiny_policy())
    skipped = gradient(trainer, batch)
    ready = trainer.objective.advantages(batch)
    assert trainer.objective.has_gradient(ready).tolist()[:4] == [False] * 4  # the group without spread
    monkeypatch.setattr(Objective, "has_gradient", lambda self, batch: torch.ones(len(batch.ids), dtype=torch.bool))
    assert torch.allclose(gradient(tiny_trainer(tiny_policy()), batch), skipped, atol=1e-7)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_pitfall_19_the_trainer_scores_at_the_temperature(temperature: float) -> None:
    policy = tiny_policy()
    batch = tiny_batch(policy)
    batch = replace(batch, behavior_logprobs=plain_logprobs(policy, batch, temperature) * batch.loss_mask)
    metrics = update(tiny_trainer(policy, f"rollout.temperature={temperature}", temperature=temperature), batch)
    assert metrics["policy/mismatch_weight"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["policy/mismatch_kl"] == pytest.approx(0.0, abs=1e-8)


@pytest.mark.parametrize("kl_coef", [0.0, 0.3])
@pytest.mark.parametrize("temperature", [1.0, 1.4])
def test_pitfall_17_the_gradient_is_that_of_the_formula(kl_coef: float, temperature: float) -> None:
    """GRPO by hand: one padded forward pass of transformers, the loss as in the paper, autograd."""
    policy = tiny_policy()
    batch = tiny_batch(policy)
    reference = padded_logprobs(policy, batch, temperature).detach()
    overrides = ["algorithm=grpo", "algorithm.aggregation=token_mean", f"algorithm.kl_coef={kl_coef}"]
    trainer = tiny_trainer(policy, *overrides, "trainer.microbatch_tokens=60", temperature=temperature)
    with torch.no_grad():  # away from the reference, where the KL has a gradient
        for index, parameter in enumerate(policy.parameters()):
            parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(index))

    logprobs = padded_logprobs(policy, batch, temperature)
    rewards = batch.rewards.view(3, 4)
    advantages = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).view(12, 1)
    toward_reference = reference - logprobs
    kl = toward_reference.exp() - 1 - toward_reference
    loss = (-(logprobs - logprobs.detach()).exp() * advantages + kl_coef * kl)[batch.loss_mask].mean()
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(policy.parameters()))])

    assert expected.norm() > 1e-2
    assert close(gradient(trainer, batch), expected)


def padded_logprobs(policy: HubPolicy, batch: TokenBatch, temperature: float) -> torch.Tensor:
    """[B, T] with a gradient, from one forward pass of transformers over the padded batch; 0 at the first token."""
    attention = torch.arange(batch.ids.shape[1]) < batch.lengths[:, None]
    logits = policy.model(input_ids=batch.ids, attention_mask=attention.long(), use_cache=False).logits[:, :-1]
    chosen = torch.log_softmax(logits / temperature, -1).gather(2, batch.ids[:, 1:, None])[..., 0]
    return torch.cat([torch.zeros(len(chosen), 1), chosen], 1)


def test_pitfall_21_the_reference_stays_the_start_policy() -> None:
    policy = tiny_policy()
    trainer, batch = tiny_trainer(policy, "algorithm.kl_coef=0.1", "trainer.learning_rate=0.01"), tiny_batch(policy)
    start = plain_logprobs(policy, batch) * batch.loss_mask
    update(trainer, batch)
    now = plain_logprobs(policy, batch) * batch.loss_mask
    assert (now - start).abs().max() > 0.05
    after = trainer.score(batch).columns["reference_logprobs"]
    assert torch.allclose(after, start, atol=1e-5)
    assert update(trainer, batch)["policy/reference_kl"] > 1e-4


def test_pitfall_22_old_logprobs_stay_for_all_updates() -> None:
    policy = tiny_policy()
    trainer = tiny_trainer(policy, "algorithm.num_epochs=4", "trainer.learning_rate=0.01")
    batch = tiny_batch(policy)
    before = plain_logprobs(policy, batch) * batch.loss_mask
    ready = trainer.objective.advantages(trainer.score(batch))
    metrics, after = trainer.update(ready, 0)
    assert torch.allclose(after.columns["old_logprobs"], before, atol=1e-5)
    assert metrics["policy/updates"] == 4
    assert metrics["policy/approx_kl"] > 1e-4
    assert metrics["policy/clip_fraction"] > 0


def test_the_batch_comes_back_with_the_updates_logprobs() -> None:
    policy = tiny_policy()
    trainer, batch = tiny_trainer(policy), tiny_batch(policy)
    expected = plain_logprobs(policy, batch)
    _, after = trainer.update(trainer.objective.advantages(trainer.score(batch)), 0)
    assert after.columns["old_logprobs"][:4].isnan().all()  # the group without spread got no forward pass
    trained = batch.loss_mask & ~after.columns["old_logprobs"].isnan()
    assert trained[4:].any()
    assert torch.allclose(after.columns["old_logprobs"][trained], expected[trained], atol=1e-5)


def test_pitfall_33_a_tiny_update_is_not_rounded_away() -> None:
    policy = tiny_policy(initializer_range=0.02)
    metrics = update(tiny_trainer(policy, "trainer.learning_rate=1e-6"), tiny_batch(policy))
    assert metrics["policy/changed_weight_share"] > 0.9


def test_pitfall_34_dropout_in_the_model_config_stays_off() -> None:
    policy = tiny_policy(attention_dropout=0.5)
    metrics = update(tiny_trainer(policy), tiny_batch(policy))
    assert metrics["policy/mismatch_kl"] == pytest.approx(0.0, abs=1e-8)


def test_from_an_update_to_a_backward_there_are_three_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    stacks, backward = set(), torch.Tensor.backward

    def seen(loss: torch.Tensor) -> None:
        stacks.add(tuple(frame.name for frame in traceback.extract_stack() if "/rlvr/core/" in frame.filename))
        backward(loss)

    monkeypatch.setattr(torch.Tensor, "backward", seen)
    policy = tiny_policy()
    update(tiny_trainer(policy, "trainer.microbatch_tokens=60"), tiny_batch(policy))
    assert stacks == {("update", "gradient", "_backward")}


def test_a_non_finite_gradient_leaves_the_weights_alone() -> None:
    policy = tiny_policy()
    batch = tiny_batch(policy)
    trainer = tiny_trainer(policy)
    ready = trainer.objective.advantages(trainer.score(batch))
    ready.advantages[5, :] = float("nan")
    before = [p.clone() for p in policy.parameters()]
    with pytest.raises(NonFiniteError) as error:
        trainer.update(ready, 0)
    assert 5 in error.value.rows
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))


def test_a_gradient_with_nan_makes_no_step() -> None:
    """Finite losses: only the norm shows it."""
    policy = tiny_policy()
    batch, trainer = tiny_batch(policy), tiny_trainer(policy)
    ready = trainer.objective.advantages(trainer.score(batch))
    before = [p.clone() for p in policy.parameters()]
    next(policy.parameters()).register_hook(lambda grad: grad * float("nan"))
    with pytest.raises(NonFiniteError, match="gradient norm"):
        trainer.update(ready, 0)
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))


@pytest.mark.parametrize(("target", "num_updates"), [("null", 6), ("1e3", 6), ("1e-4", 2)])
def test_pitfall_22_target_kl_ends_the_updates_of_a_batch(target: str, num_updates: int) -> None:
    """The first update starts at KL 0; the second sees what the first did, far above 1e-4, and is the last."""
    overrides = ["algorithm=ppo", "rollout.group_size=1", "rollout.prompts_per_step=12", "trainer.learning_rate=0.05"]
    overrides += ["algorithm.num_epochs=6", "algorithm.num_minibatches=1", f"algorithm.target_kl={target}"]
    policy = tiny_policy(critic=True)
    metrics = update(tiny_trainer(policy, *overrides), tiny_batch(policy))
    assert metrics["policy/updates"] == num_updates
    assert 1e-2 < metrics["policy/approx_kl"] < 1e2


def test_target_kl_sees_the_newest_update_not_their_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    monkeypatch.setattr(Ppo, "stop_early", lambda self, approx_kl: bool(seen.append(approx_kl)))
    overrides = ["algorithm=ppo", "rollout.group_size=1", "rollout.prompts_per_step=12", "trainer.learning_rate=0.05"]
    overrides += ["algorithm.num_epochs=3", "algorithm.num_minibatches=1"]
    policy = tiny_policy(critic=True)
    metrics = update(tiny_trainer(policy, *overrides), tiny_batch(policy))
    assert seen[0] == pytest.approx(0.0, abs=1e-6)  # the first update starts at the old policy
    assert metrics["policy/approx_kl"] == pytest.approx(sum(seen) / 3)  # each update trains on the same tokens


def test_pitfall_36_minibatches_visit_every_row_once_an_epoch() -> None:
    settings = ("rollout.prompts_per_step=12", "algorithm.num_minibatches=3", "algorithm.num_epochs=2")
    trainer = tiny_trainer(tiny_policy(), *settings)
    batch = tiny_batch(tiny_policy())
    parts, again, other = (list(trainer.minibatches(batch, step=step)) for step in (0, 0, 1))
    assert [len(part) for part in parts] == [4] * 6
    assert sorted(chain(*parts[:3])) == sorted(chain(*parts[3:])) == list(range(12))
    assert parts[:3] != parts[3:]
    assert parts == again
    assert parts != other


def test_pitfall_07_the_rows_of_an_episode_stay_in_one_minibatch() -> None:
    trainer = tiny_trainer(tiny_policy(), "rollout.prompts_per_step=12", "algorithm.num_minibatches=3")
    batch = replace(tiny_batch(tiny_policy()), episodes=torch.tensor([0, 0, 1, 2, 3, 3, 3, 4, 5, 6, 7, 8]))
    parts = list(trainer.minibatches(batch, step=0))
    episodes = [set(batch.episodes[part].tolist()) for part in parts]
    assert sorted(chain(*episodes)) == list(range(9))
    assert sorted(chain(*parts)) == list(range(12))


@pytest.mark.parametrize(("apart", "explained"), [(0.0, 0.0), (1e-7, 0.0), (0.5, 0.75)])
def test_returns_equal_up_to_rounding_explain_nothing(apart: float, explained: float) -> None:
    """All completions right: returns are 1.0 and 0.9999999, whose variance is about 1e-15."""
    batch = tiny_batch(tiny_policy())
    sign = torch.where(torch.arange(batch.ids.shape[1]) % 2 == 0, 1.0, -1.0).expand(batch.ids.shape)
    returns, values = 1.0 + apart * sign, 1.0 + max(apart, 0.1) / 2 * sign
    found = critic_metrics(replace(batch, returns=returns).with_columns(values=values), batch.loss_mask)
    assert found["critic/explained_variance"] == pytest.approx(explained, abs=1e-5)


def test_a_right_critic_explains_all_but_truncated_rows() -> None:
    batch = tiny_batch(tiny_policy())
    truncated = torch.arange(len(batch.ids)) % 2 == 0
    objective = Objective(algorithm=Ppo(truncated="mask"), max_completion_tokens=8, temperature=1.0)
    batch = replace(batch, truncated=truncated)
    trained, values = objective.trained(batch), torch.linspace(-1, 1, batch.ids.numel()).view(batch.ids.shape)
    batch = replace(batch, returns=torch.where(trained, values, 0.0)).with_columns(values=values)
    assert trained.sum() < batch.loss_mask.sum()
    assert critic_metrics(batch, trained)["critic/explained_variance"] == pytest.approx(1.0)
