"""Rewards -> advantages. One function per way of choosing the baseline; an algorithm calls one of them.

Each takes the batch (`rewards` already shaped), `penalties` [B, T] (the KL cost of each sampled token, 0 without KL in
the reward) and `mask` [B, T] (the tokens in the loss), and returns an `Estimate`. Keyword-only arguments are settings.

Statistics are taken after subtracting one of the values, so equal rewards give exactly 0, not rounding noise over a
tiny std: in float32 the mean of eight times 0.1 is not 0.1.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from rlvr.core.algorithms.gae import discounted_returns, generalized_advantage_estimate, potential_shaping
from rlvr.core.algorithms.masking import over_episode, sampled_tokens
from rlvr.types import TokenBatch

STD_EPSILON = 1e-4  # added to every standard deviation that divides


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """`Estimate(advantages=[[0, 0, 1.2, 1.2]])`; returns are the critic's targets."""

    advantages: Tensor  # [B, T]
    returns: Tensor | None = None  # [B, T]


# ------------------------------------------------------------------------------------------ one number an episode


def group_normalized(batch: TokenBatch, penalties: Tensor, mask: Tensor, *, std_normalization: str) -> Estimate:
    """A_i = (r_i - mean_group r) / (std_group r + epsilon); GRPO, arXiv:2402.03300, section 4.1.2."""
    normalized = partial(normalize_within_groups, std_normalization=std_normalization)
    return spread(compared(batch, penalties, normalized), mask)


def group_centered(batch: TokenBatch, penalties: Tensor, mask: Tensor) -> Estimate:
    """A_i = r_i - mean_group r; Dr. GRPO, arXiv:2503.20783, section 3.2."""
    return group_normalized(batch, penalties, mask, std_normalization="none")


def leave_one_out(batch: TokenBatch, penalties: Tensor, mask: Tensor) -> Estimate:
    """A_i = r_i - mean_{j != i} r_j over the group; RLOO, arXiv:2402.14740."""
    return spread(compared(batch, penalties, subtract_leave_one_out), mask)


def compared(batch: TokenBatch, penalties: Tensor, baseline: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
    """`baseline(scores, groups, valid)` over episodes, each counted once, on each of their rows [B]."""
    _, index = torch.unique(batch.episodes, return_inverse=True)
    places = torch.arange(len(index), device=index.device)
    first = places.new_zeros(int(index.max()) + 1).scatter_reduce(0, index, places, "amin", include_self=False)
    cost = over_episode(penalties.sum(1), batch.episodes)
    scores = (batch.rewards - cost)[first]
    return baseline(scores, batch.groups[first], batch.valid[first])[index]


# ---------------------------------------------------------------------------------------------- one number a token


def batch_normalized_returns(batch: TokenBatch, penalties: Tensor, mask: Tensor, *, gamma: float) -> Estimate:
    """A_t = (G_t - mean G) / (std G + epsilon) over the batch's tokens; REINFORCE++, arXiv:2501.03262."""
    rewards, sampled = token_rewards(batch, penalties, gamma)
    return Estimate(advantages=normalize_over_tokens(discounted_returns(rewards, sampled, gamma), mask))


def generalized_advantages(
    batch: TokenBatch, penalties: Tensor, mask: Tensor, *, gamma: float, gae_lambda: float, whiten_advantages: bool
) -> Estimate:
    """GAE with a critic, arXiv:1506.02438; the reward comes at the last token. Needs `batch.values`."""
    if batch.values is None:
        raise ValueError("generalized advantages need batch.values")
    rewards, sampled = token_rewards(batch, penalties, gamma)
    advantages, returns = generalized_advantage_estimate(rewards, batch.values, sampled, gamma, gae_lambda)
    advantages = normalize_over_tokens(advantages, mask) if whiten_advantages else advantages
    return Estimate(advantages=advantages, returns=returns)


def token_rewards(batch: TokenBatch, penalties: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """What each sampled token earns [B, T] (end reward, penalties, shaping), and which tokens these are [B, T]."""
    sampled = sampled_tokens(batch)
    rewards = reward_at_end(batch.rewards, sampled) - penalties
    if batch.potentials is not None:
        rewards = rewards + potential_shaping(batch.potentials, sampled, gamma)
    return rewards, sampled


# --------------------------------------------------------------------------------------------------- the arithmetic


def normalize_within_groups(rewards: Tensor, groups: Tensor, valid: Tensor, std_normalization: str) -> Tensor:
    """(r - mean) / (std + epsilon) over the valid rows of each group [B]; 0 for invalid rows and for a group of one.

    `std_normalization`: "sample" (ddof 1), "population" (ddof 0) or "none" (r - mean).
    Rewards 1 0 0 0: mean 1/4; sample std 1/2 -> 1.5 -.5 -.5 -.5; population std .433 -> 1.73 -.58 -.58 -.58.
    """
    centered, counts, group = center_within_groups(rewards[valid], groups[valid])
    if std_normalization != "none":
        ddof = 1 if std_normalization == "sample" else 0
        variance = torch.zeros_like(counts).index_add(0, group, centered.square()) / (counts - ddof).clamp(min=1)
        centered = centered / (variance.sqrt()[group] + STD_EPSILON)
    return rewards.new_zeros(rewards.shape).masked_scatter(valid, centered)


def subtract_leave_one_out(rewards: Tensor, groups: Tensor, valid: Tensor) -> Tensor:
    """r_i minus the mean of the other valid rows of its group [B]; 0 for invalid rows and for a group of one.

    r_i - (S - r_i) / (n - 1) = (r_i - mean) n / (n - 1). Rewards 1 0 0 0 -> 1 -1/3 -1/3 -1/3.
    """
    centered, counts, group = center_within_groups(rewards[valid], groups[valid])
    scaled = centered * (counts / (counts - 1).clamp(min=1))[group]
    return rewards.new_zeros(rewards.shape).masked_scatter(valid, scaled)


def center_within_groups(rewards: Tensor, groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """r - mean of its group [N], rows of each group [groups], each row's group as 0, 1, ... [N]."""
    _, group = torch.unique(groups, return_inverse=True)
    counts = torch.bincount(group).to(rewards.dtype)
    lowest = torch.zeros_like(counts).scatter_reduce(0, group, rewards, "amin", include_self=False)
    above = rewards - lowest[group]  # exactly 0 where all rewards of a group are equal
    mean = torch.zeros_like(counts).index_add(0, group, above) / counts
    return above - mean[group], counts, group


def normalize_over_tokens(x: Tensor, mask: Tensor) -> Tensor:
    """(x - mean) / (std + epsilon) over the masked tokens of the whole batch (ddof 0) [B, T]; 0 elsewhere."""
    values = x[mask]
    if len(values) == 0:
        return torch.zeros_like(x)
    above = values - values.min()
    centered = above - above.mean()
    return torch.zeros_like(x).masked_scatter(mask, centered / (centered.square().mean().sqrt() + STD_EPSILON))


def reward_at_end(rewards: Tensor, mask: Tensor) -> Tensor:
    """The row's reward at its last masked token, 0 elsewhere [B, T]. Reward 7, mask 0 1 0 1 0 -> 0 0 0 7 0."""
    tokens_from_here = mask.flip(1).cumsum(1).flip(1)
    return torch.where(mask & (tokens_from_here == 1), rewards[:, None], 0.0)


def spread(per_row: Tensor, mask: Tensor) -> Estimate:
    """One advantage for every token of a row."""
    return Estimate(advantages=per_row[:, None].expand(mask.shape))


# ----------------------------------------------------------------------------------------------------------- rewards


def soft_overlong(
    rewards: Tensor,
    num_tokens: Tensor,
    *,
    max_completion_tokens: int,
    overlong_buffer_tokens: int,
    overlong_penalty: float,
) -> Tensor:
    """r - penalty * clamp((L - (L_max - L_buffer)) / L_buffer, 0, 1) [B]; DAPO, arXiv:2503.14476, eq. 13.

    L_max 100, buffer 20, penalty 1: 80 tokens cost 0, 90 cost 0.5, 100 cost 1. A buffer of 0 costs nothing.
    """
    if overlong_buffer_tokens == 0:
        return rewards
    over = (num_tokens - (max_completion_tokens - overlong_buffer_tokens)) / overlong_buffer_tokens
    return rewards - overlong_penalty * over.clamp(0, 1)


def is_dead_group(rewards: Sequence[float]) -> bool:
    """True if the group cannot teach: all rewards equal (NaN, a verifier error, left out), or fewer than two."""
    return len({reward for reward in rewards if reward == reward}) < 2
