"""GRPO and PPO in one file, to read from top to bottom: torch and transformers, no rlvr.

    python examples/grpo_in_one_file.py                     watch a tiny model learn sums modulo 5 (a few seconds)
    python examples/grpo_in_one_file.py --algorithm ppo     the same with a critic instead of groups

Everything is done in the simplest way: padded batches, one forward pass each, explicit loops. rlvr itself packs rows,
shares prompts, skips rows without gradient and uses microbatches, only for speed: on the recorded tokens and rewards of
a run, `update` gives the same losses, gradient norms and weights (replay.py).
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

# ------------------------------------------------------------------------------------------------- records


@dataclass(frozen=True, kw_only=True)
class Batch:
    """B completions with their prompts, padded on the right to T tokens. Example: `prompt 1 7, completion 5 9`

    ids    1  7  5  9  0  0
    mask   0  0  1  1  0  0      sampled tokens, which are trained on
    """

    ids: Tensor  # [B, T]
    mask: Tensor  # [B, T] bool
    rewards: Tensor  # [B]
    groups: Tensor  # [B] same number for completions of one prompt


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the update; the defaults belong to the demonstration below."""

    algorithm: str = "grpo"
    learning_rate: float = 1e-3
    warmup_steps: int = 5
    betas: tuple[float, float] = (0.9, 0.95)
    max_grad_norm: float = 1.0
    temperature: float = 1.0
    clip_low: float = 0.2
    clip_high: float = 0.2
    aggregation: str = "token_mean"
    num_epochs: int = 1
    num_minibatches: int = 1
    seed: int = 0
    std_normalization: str = "sample"  # grpo
    gamma: float = 1.0  # from here on: ppo
    gae_lambda: float = 1.0
    value_coef: float = 0.1
    value_clip: float | None = 0.2
    whiten_advantages: bool = False
    target_kl: float | None = None


class Policy(nn.Module):
    """A causal language model and a critic: one linear output on the model's last hidden state, initially zero."""

    def __init__(self, model: Any, with_critic: bool) -> None:
        super().__init__()
        self.model = model
        self.critic = nn.Linear(model.config.hidden_size, 1) if with_critic else None
        if self.critic is not None:
            nn.init.zeros_(self.critic.weight)
            nn.init.zeros_(self.critic.bias)

    def forward(self, ids: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """Logprob of each token given those before it, and the critic's value before it: [B, T], 0 for the first.

        The hidden state at t - 1 predicts token t. Padding is on the right, so no token attends to it.
        """
        hidden = self.model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
        logits = self.model.lm_head(hidden) / temperature
        logprobs = logits.log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
        values = torch.zeros_like(logprobs) if self.critic is None else self.critic(hidden)[..., 0]
        return nn.functional.pad(logprobs, (1, 0)), nn.functional.pad(values, (1, 0))


# ------------------------------------------------------------------------------------------------------ advantages


def group_advantages(batch: Batch, std_normalization: str) -> Tensor:
    """GRPO: the reward relative to other completions of the same prompt, (r - mean) / std, for all of its tokens."""
    advantages = torch.zeros_like(batch.rewards)
    for group in batch.groups.unique():
        rows = batch.groups == group
        rewards = batch.rewards[rows]
        if (rewards == rewards[0]).all():
            continue  # equal rewards: nothing to learn; do not divide rounding noise by a tiny std
        std = rewards.std(correction=1 if std_normalization == "sample" else 0) + 1e-4
        advantages[rows] = (rewards - rewards.mean()) / (1.0 if std_normalization == "none" else std)
    return advantages[:, None] * batch.mask


def critic_advantages(batch: Batch, values: Tensor, s: Settings) -> tuple[Tensor, Tensor]:
    """PPO: the reward relative to the critic's expectation. Generalized advantages and the critic's targets, [B, T].

    delta_t = r_t + gamma V_{t+1} - V_t      A_t = delta_t + gamma lambda A_{t+1}      R_t = A_t + V_t
    """
    advantages, returns = torch.zeros_like(values), torch.zeros_like(values)
    for row in range(len(values)):
        reward, next_value, next_advantage = batch.rewards[row], torch.tensor(0.0), torch.tensor(0.0)
        for t in reversed(batch.mask[row].nonzero()[:, 0].tolist()):
            delta = reward + s.gamma * next_value - values[row, t]
            next_advantage = delta + s.gamma * s.gae_lambda * next_advantage
            advantages[row, t], returns[row, t] = next_advantage, next_advantage + values[row, t]
            reward, next_value = torch.tensor(0.0), values[row, t]  # the reward comes at the last token
    if s.whiten_advantages:
        kept = advantages[batch.mask]
        advantages = (advantages - kept.mean()) / (kept.std(correction=0) + 1e-4) * batch.mask
    return advantages, returns


# ------------------------------------------------------------------------------------------------ loss and update


def token_weights(mask: Tensor, aggregation: str) -> Tensor:
    """Weight of each token's loss, [B, T]: these choices are the length bias discussed in the literature."""
    if aggregation == "token_mean":
        return mask / mask.sum()
    per_row = mask / mask.any(1).sum()
    return per_row / mask.sum(1, keepdim=True).clamp(min=1) if aggregation == "sequence_mean" else per_row


def policy_loss(log_ratio: Tensor, advantages: Tensor, s: Settings) -> Tensor:
    """The clipped surrogate: no gain from moving a token's probability beyond the clip range, [B, T]."""
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - s.clip_low, 1 + s.clip_high)
    return -torch.minimum(ratio * advantages, clipped * advantages)


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, s: Settings) -> Tensor:
    """Half the critic's squared error, or that of its clipped value if larger, [B, T]."""
    error = (values - returns) ** 2
    if s.value_clip is not None:
        near_old = old_values + (values - old_values).clamp(-s.value_clip, s.value_clip)
        error = torch.maximum(error, (near_old - returns) ** 2)
    return error / 2


def update(
    policy: Policy, optimizer: torch.optim.Optimizer, batch: Batch, s: Settings, step: int
) -> tuple[float, float]:
    """All optimizer steps on one batch of completions; mean loss and mean gradient norm (before clipping)."""
    optimizer.param_groups[0]["lr"] = s.learning_rate * min(1.0, (step + 1) / max(1, s.warmup_steps))
    with torch.no_grad():
        old_logprobs, old_values = policy(batch.ids, s.temperature)
    if s.algorithm == "ppo":
        advantages, returns = critic_advantages(batch, old_values, s)
    else:
        advantages, returns = group_advantages(batch, s.std_normalization), torch.zeros_like(old_values)
    losses, norms = [], []
    for rows in minibatches(len(batch.ids), s, step):
        mask = batch.mask[rows]
        logprobs, values = policy(batch.ids[rows], s.temperature)
        log_ratio = (logprobs - old_logprobs[rows]) * mask
        per_token = policy_loss(log_ratio, advantages[rows], s)
        if s.algorithm == "ppo":
            per_token = per_token + s.value_coef * value_loss(values, old_values[rows], returns[rows], s)
        loss = (token_weights(mask, s.aggregation) * per_token).sum()
        optimizer.zero_grad()
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(policy.parameters(), s.max_grad_norm).item())
        optimizer.step()
        losses.append(loss.item())
        kl = (log_ratio.exp() - 1 - log_ratio)[mask].mean().item()  # KL(old || current), before this step
        if s.target_kl is not None and kl > 1.5 * s.target_kl:
            break  # the policy is too far from the one that sampled
    return sum(losses) / len(losses), sum(norms) / len(norms)


def minibatches(num_rows: int, s: Settings, step: int) -> Iterator[Tensor]:
    """Each epoch visits every row once, in random minibatches determined by seed, step and epoch."""
    for epoch in range(s.num_epochs):
        if s.num_minibatches == 1:
            yield torch.arange(num_rows)
            continue
        name = "\x1f".join([str(s.seed), "minibatches", str(step), str(epoch)])
        seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> 1
        order = torch.randperm(num_rows, generator=torch.Generator().manual_seed(seed))
        yield from order.tensor_split(s.num_minibatches)


# ------------------------------------------------------------------------------------- demonstration: sums modulo 5

STOP, PLUS, EQUALS, MODULUS = 5, 6, 7, 5  # digits are tokens 0..4; RPN: the answer to `3 4 + =` is `2 STOP`


@torch.no_grad()
def sample(policy: Policy, prompts: Tensor, max_new_tokens: int, *, greedy: bool = False) -> tuple[Tensor, Tensor]:
    """Completions of `prompts` [B, P]: ids [B, P + N] and the mask of the sampled tokens, the stop token included."""
    ids, running = prompts, torch.ones(len(prompts), dtype=torch.bool)
    mask = torch.zeros_like(prompts, dtype=torch.bool)
    for _ in range(max_new_tokens):
        logits = policy.model(input_ids=ids, use_cache=False).logits[:, -1]
        token = logits.argmax(-1) if greedy else torch.multinomial(logits.softmax(-1), 1)[:, 0]
        ids = torch.cat([ids, torch.where(running, token, 0)[:, None]], 1)
        mask = torch.cat([mask, running[:, None]], 1)
        running = running & (token != STOP)
    return ids, mask


def is_right(ids: Tensor) -> Tensor:
    """The reward [B]: 1 for the right digit and then STOP, else 0."""
    right = (ids[:, 0] + ids[:, 1]) % MODULUS
    return ((ids[:, 4] == right) & (ids[:, 5] == STOP)).float()


def demonstrate(settings: Settings, num_steps: int = 100, group_size: int = 16) -> float:
    """Train a model from random weights by reward alone; prints the curve and returns the final greedy accuracy."""
    torch.manual_seed(settings.seed)
    shape = LlamaConfig(vocab_size=8, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    shape.initializer_range = 0.1
    policy = Policy(LlamaForCausalLM(shape), with_critic=settings.algorithm == "ppo")
    optimizer = torch.optim.AdamW(policy.parameters(), betas=settings.betas, weight_decay=0.0)
    pairs = torch.cartesian_prod(torch.arange(MODULUS), torch.arange(MODULUS))
    problems = torch.cat([pairs, torch.tensor([PLUS, EQUALS]).expand(len(pairs), 2)], 1)  # [25, 4]
    accuracy = 0.0
    for step in range(num_steps):
        chosen = torch.randperm(len(problems))[:16].repeat_interleave(group_size)
        ids, mask = sample(policy, problems[chosen], max_new_tokens=2)
        batch = Batch(ids=ids, mask=mask, rewards=is_right(ids), groups=chosen)
        loss, norm = update(policy, optimizer, batch, settings, step)
        if (step + 1) % 10 == 0:
            accuracy = is_right(sample(policy, problems, 2, greedy=True)[0]).mean().item()
            reward = batch.rewards.mean().item()
            print(f"step {step + 1:3}  reward {reward:.2f}  accuracy {accuracy:.2f}  loss {loss:+.3f}  norm {norm:.3f}")
    return accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description="GRPO and PPO in one file.")
    parser.add_argument("--algorithm", choices=["grpo", "ppo"], default="grpo")
    algorithm = parser.parse_args().algorithm
    times = 2 if algorithm == "ppo" else 1  # a critic needs several passes per batch to pay off
    demonstrate(Settings(algorithm=algorithm, num_epochs=times, num_minibatches=times))


if __name__ == "__main__":
    main()
