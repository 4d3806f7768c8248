"""Does the whole loss have the right gradient, and does following it learn?"""

import pytest
import torch
from torch import Tensor

from rlvr.types import Predictions, TokenBatch
from tests.unit.algorithms.cases import NAMES, OWN_NAME, algorithm, batch_of, changed, loss_of, ragged_batch
from tests.variants import variants

pytestmark = pytest.mark.slow

NUM_IDS, WIDTH = 5, 4


def tiny_model(parameters: list[Tensor], ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Logprobs, entropy and values [B, T] of two layers over the token before; zeros at t = 0."""
    embedding, hidden, head, critic = parameters
    state = torch.tanh(torch.tanh(embedding[ids[:, :-1]]) @ hidden)
    distribution = (state @ head).log_softmax(-1)
    logprobs = distribution.gather(2, ids[:, 1:, None]).squeeze(2)
    entropy = -(distribution.exp() * distribution).sum(-1)
    return tuple(torch.nn.functional.pad(x, (1, 0)) for x in (logprobs, entropy, state @ critic))  # type: ignore


def tiny_case() -> tuple[list[Tensor], TokenBatch]:
    """Parameters, and a batch whose old, behavior and reference policies lie around them."""
    draw = torch.Generator().manual_seed(3)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    parameters = [noise(NUM_IDS, WIDTH), noise(WIDTH, WIDTH), noise(WIDTH, NUM_IDS), noise(WIDTH)]
    batch = ragged_batch(num_ids=NUM_IDS)
    logprobs, _, values = tiny_model(parameters, batch.ids)
    old = logprobs + 0.2 * noise(*logprobs.shape)
    return parameters, changed(
        batch,
        old_logprobs=old,
        behavior_logprobs=torch.where(batch.loss_mask, old + 0.4 * noise(*old.shape), 0.0),
        reference_logprobs=old + 0.3 * noise(*old.shape),
        values=values + 0.3 * noise(*old.shape),
    )


@pytest.mark.parametrize(
    ("name", "estimator"), [*((name, "k3") for name in NAMES), ("grpo", "k1"), ("grpo", "k2"), ("ppo", "k2")]
)
def test_pitfall_17_the_loss_gradient_is_the_finite_difference(name: str, estimator: str):
    parameters, batch = tiny_case()
    mismatch = {"mismatch_correction": "truncate", "mismatch_cap": 1.3}
    terms = {"kl_coef": 0.1, "kl_estimator": estimator, "entropy_coef": 0.05, "truncated": "mask"} | mismatch
    clip = {"clip_low": 0.02, "clip_high": 0.02} if name == "gspo" else {}  # its ratios are means, hence near 1
    chosen = algorithm(name, aggregation="sequence_mean", **terms, **clip)
    batch = chosen.advantages(batch)
    weights, at_start = chosen.loss_weights(batch), tiny_model(parameters, batch.ids)[0]

    def loss(now: list[Tensor]) -> tuple[Tensor, dict[str, float]]:
        logprobs, entropy, values = tiny_model(now, batch.ids)
        rows = batch
        if name == "cispo":  # its ratio is detached: hold it by moving the old policy along
            moved = (logprobs - at_start).detach()
            old = batch.columns["old_logprobs"] + moved
            rows = changed(batch, old_logprobs=old, behavior_logprobs=batch.behavior_logprobs + moved)
        found = chosen.loss(rows, weights, Predictions(logprobs, entropy, values))
        return found.loss, {key: x.item() for key, x in found.sums.items()}

    leaves = [x.clone().requires_grad_() for x in parameters]
    value, sums = loss(leaves)
    value.backward()
    assert 0 < sums["clip_fraction"] < 0.9 * sums["tokens"]
    assert sums["mismatch_capped"] > 0
    assert sums["clamped_tokens"] == 0
    for which, leaf in enumerate(leaves):
        if which == 3 and name != "ppo":
            assert leaf.grad is None or (leaf.grad == 0).all()
            continue
        numeric = []
        for step in 1e-6 * torch.eye(leaf.numel(), dtype=torch.float64):
            moved = [
                [*parameters[:which], leaf.detach() + s * step.view_as(leaf), *parameters[which + 1 :]] for s in (1, -1)
            ]
            above, below = (loss(x)[0] for x in moved)
            numeric.append((above - below) / 2e-6)
        torch.testing.assert_close(leaf.grad.flatten(), torch.stack(numeric), rtol=1e-5, atol=1e-8)


def play(name: str, reward_of: str, seed: int, num_steps: int, learning_rate: float, start: float = 0.5) -> float:
    """Probability of token 1 after training a 2-token bandit: two groups of 8 per step, two updates each."""
    draw = torch.Generator().manual_seed(seed)
    logits = torch.tensor([1 - start, start], dtype=torch.float64).log().requires_grad_()
    critic = torch.zeros((), dtype=torch.float64, requires_grad=True)
    chosen = algorithm(name)
    for _ in range(num_steps):
        tokens = (torch.rand(16, generator=draw) < logits.detach().softmax(0)[1]).long()
        coins = (torch.rand(16, generator=draw) < 0.5).double()
        rewards = {"token 1": tokens.double(), "token 0": 1.0 - tokens.double(), "coin": coins}[reward_of]
        old = logits.detach().log_softmax(0)[tokens][:, None].expand(16, 2)
        tensors = {"old_logprobs": old, "behavior_logprobs": old, "values": critic.detach().expand(16, 2).clone()}
        tensors["groups"] = torch.arange(16) // 8
        batch = chosen.advantages(batch_of([[0, 1]] * 16, rewards.tolist(), **tensors))
        for _ in range(2):
            logprobs = logits.log_softmax(0)[tokens][:, None].expand(16, 2)
            loss = loss_of(chosen, batch, Predictions(logprobs, torch.zeros(16, 2), critic.expand(16, 2))).loss
            gradients = torch.autograd.grad(loss, [logits, critic], allow_unused=True)
            with torch.no_grad():
                for parameter, gradient in zip((logits, critic), gradients, strict=True):
                    if gradient is not None:
                        parameter -= learning_rate * gradient
    return logits.softmax(0)[1].item()


@pytest.mark.parametrize(("reward_of", "probability"), [("token 1", 1.0), ("token 0", 0.0)])
@pytest.mark.parametrize("name", [*NAMES, OWN_NAME])
def test_pitfall_18_a_bandit_is_learned(name: str, reward_of: str, probability: float):
    assert play(name, reward_of, seed=0, num_steps=60, learning_rate=2.0) == pytest.approx(probability, abs=0.01)


@pytest.mark.parametrize("name", variants([*NAMES, OWN_NAME], always=3))
def test_pitfall_18_a_random_reward_teaches_nothing(name: str):
    found = [play(name, "coin", seed=seed, num_steps=15, learning_rate=0.5, start=0.8) for seed in range(16)]
    assert 0.7 < sum(found) / len(found) < 0.82  # the spread of the logits pulls the mean down a little
