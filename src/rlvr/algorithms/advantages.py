"""Rewards -> advantages [B, T]. An algorithm calls one of `group_normalized`, `leave_one_out` and `token_returns`.

Each takes the batch (`rewards` already shaped) and `penalties` [B, T] (the KL cost of each sampled token, 0 without KL
in the reward); `mask` [B, T] are the tokens in the loss.

Statistics subtract a value of the set first, so equal rewards give exactly 0 and not rounding noise over a tiny std: in
float32 the mean of eight times 0.1 is not 0.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from rlvr.algorithms.weights import sampled_tokens, sum_within, within
from rlvr.types import TokenBatch

if TYPE_CHECKING:
    from torch import Tensor

STD_EPSILON = 1e-4  # added to each standard deviation


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """`Estimate(advantages=[[0, 0, 1.2, 1.2]])`; returns are the critic's targets."""

    advantages: Tensor  # [B, T]
    returns: Tensor | None = None  # [B, T]


# ------------------------------------------------------------------------------------------- one number per episode


def group_normalized(batch: TokenBatch, penalties: Tensor, mask: Tensor, std_normalization: str) -> Estimate:
    """A_i = (r_i - mean_group r) / (std_group r + epsilon); GRPO, arXiv:2402.03300, section 4.1.2.

    `std_normalization`: "sample" (ddof 1), "population" (ddof 0) or "none" (r - mean; Dr. GRPO, arXiv:2503.20783,
    section 3.2). Rewards 1 0 0 0 have mean 1/4 and std 1/2 or .433:
    sample 1.5 -.5 -.5 -.5; population 1.73 -.58 -.58 -.58; none .75 -.25 -.25 -.25. "batch" divides by the std of all
    r_i - mean_group r of the batch (ddof 1), so that a group's spread keeps its weight; ScaleRL, arXiv:2510.13786.
    """
    episodes = compared(batch, penalties)
    if std_normalization == "none":
        return episodes.spread(episodes.centered, batch, mask)
    if std_normalization == "batch":
        std = (episodes.centered.square().sum() / max(len(episodes.centered) - 1, 1)).sqrt()
        return episodes.spread(episodes.centered / (std + STD_EPSILON), batch, mask)
    ddof = 1 if std_normalization == "sample" else 0
    squares = episodes.counts.new_zeros(episodes.counts.shape).index_add(0, episodes.group, episodes.centered.square())
    std = (squares / (episodes.counts - ddof).clamp(min=1)).sqrt()
    return episodes.spread(episodes.centered / (std[episodes.group] + STD_EPSILON), batch, mask)


def leave_one_out(batch: TokenBatch, penalties: Tensor, mask: Tensor) -> Estimate:
    """A_i = r_i - mean_{j != i} r_j over the group; RLOO, arXiv:2402.14740.

    r_i - (S - r_i) / (n - 1) = (r_i - mean) n / (n - 1). Rewards 1 0 0 0 -> 1 -1/3 -1/3 -1/3.
    """
    episodes = compared(batch, penalties)
    factor = episodes.counts / (episodes.counts - 1).clamp(min=1)
    return episodes.spread(episodes.centered * factor[episodes.group], batch, mask)


class Compared(NamedTuple):
    """The E valid episodes of a batch, compared within G groups."""

    centered: Tensor  # [E] reward - KL cost, minus the group's mean; 0 in a group of one
    counts: Tensor  # [G] episodes of the group
    group: Tensor  # [E] 0 .. G - 1
    episode: Tensor  # [valid rows] 0 .. E - 1

    def spread(self, values: Tensor, batch: TokenBatch, mask: Tensor) -> Estimate:
        """The episode's value [E] at each of its tokens; 0 in rows without a score."""
        per_row = batch.rewards.new_zeros(batch.rewards.shape).masked_scatter(batch.valid, values[self.episode])
        return Estimate(advantages=per_row[:, None].expand(mask.shape))


def compared(batch: TokenBatch, penalties: Tensor) -> Compared:
    """Each valid episode counts once, however many rows it has."""
    rewards = batch.rewards - sum_within(penalties.sum(1), batch.episodes)
    first = batch.valid & (batch.episodes.diff(prepend=batch.episodes[:1] - 1) != 0)
    episode = first.cumsum(0)[batch.valid] - 1
    return Compared(*center_within_groups(rewards[first], batch.groups[first]), episode)


def center_within_groups(rewards: Tensor, groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """r - group mean [E], rewards per group [G], group index of each reward [E]."""
    _, group = groups.unique(return_inverse=True)
    counts = group.bincount().to(rewards.dtype)
    zeros = counts.new_zeros(counts.shape)
    lowest = zeros.scatter_reduce(0, group, rewards, "amin", include_self=False)
    above = rewards - lowest[group]  # exactly 0 if all rewards of a group are equal
    mean = zeros.index_add(0, group, above) / counts
    return above - mean[group], counts, group


def is_dead_group(rewards: Sequence[float]) -> bool:
    """True if the group has no learning signal: equal rewards (NaN, a verifier error, is ignored) or fewer than two."""
    return len({reward for reward in rewards if reward == reward}) < 2


# ---------------------------------------------------------------------------------------------- one number per token


def token_returns(
    batch: TokenBatch, penalties: Tensor, values: Tensor | None, gamma: float, gae_lambda: float
) -> tuple[Tensor, Tensor]:
    """Advantages A and returns R [B, T] over the sampled tokens of each row; 0 elsewhere. GAE, arXiv:1506.02438:

        delta_t = r_t + gamma V_{t+1} - V_t        A_t = delta_t + gamma lambda A_{t+1}        R_t = A_t + V_t

    r_t is the row's reward at its last sampled token, else 0, minus the token's penalty, plus shaping.
    `values[b, t]` is the critic's estimate of the state before token t was sampled (from the hidden state at t - 1).
    V and A are 0 after the last token, also for truncated rows: the cut-off part has no value. Without values V is 0,
    and with lambda 1 A_t is the discounted return G_t = r_t + gamma G_{t+1}.

    Tokens the policy did not sample (prompt, tool results, padding) are no steps of the episode. They are squeezed out
    first: discounting and bootstrapping skip them, and their values are not read.

        sampled  0  0  1  1  0  0  1  0          row with a tool result between two turns
        values   9  9  a  b  9  9  c  9    ->    a  b  c  0 ...
        rewards                                  0  0  r  0 ...
    """
    sampled = sampled_tokens(batch)
    order = squeeze_order(sampled)
    steps = sampled.gather(1, order)  # [B, T] bool, 1 1 1 0 ...
    last = steps & ~shifted(steps, 1)
    reward = within(batch.rewards[:, None].expand(last.shape), last) - squeeze(penalties, sampled, order)
    if batch.potentials is not None:
        reward = reward + potential_shaping(squeeze(batch.potentials, sampled, order), gamma)
    value = reward.new_zeros(reward.shape) if values is None else squeeze(values, sampled, order)
    delta = reward + gamma * shifted(value, 1) - value
    advantage = within(discounted_suffix_sums(delta, gamma * gae_lambda), steps)
    nowhere = advantage.new_zeros(advantage.shape)
    return nowhere.scatter(1, order, advantage), nowhere.scatter(1, order, within(advantage + value, steps))


def potential_shaping(potentials: Tensor, gamma: float) -> Tensor:
    """gamma Phi_{t+1} - Phi_t over the steps of each row [B, N], with Phi = 0 after the end.

        potentials   0  0  1  1  1  1      two turns before half of the way was found
        shaping      0  1  0  0  0 -1      gamma = 1

    Ng, Harada and Russell, ICML 1999: the only kind of shaping that keeps the optimal policy. Over the rest of an
    episode it sums to -Phi(now) for any actions, so going back and forth earns nothing. It has an effect with token
    returns (ppo, reinforce_pp); a comparison of whole episodes within a group cancels it.
    """
    return gamma * shifted(potentials, 1) - potentials


def discounted_suffix_sums(x: Tensor, discount: float) -> Tensor:
    """y_t = x_t + discount * y_{t+1} for [B, N], in log2(N) passes.

    After k passes y_t holds the sum over the window [t, t + 2^k); for x = [1, 1, 1, 1] and discount 1/2:
    [1.5, 1.5, 1.5, 1] and then [1.875, 1.75, 1.5, 1].
    """
    y, window = x, 1
    while window < x.shape[1]:
        y = y + discount**window * shifted(y, window)
        window *= 2
    return y


def normalize_over_tokens(x: Tensor, mask: Tensor) -> Tensor:
    """(x - mean) / (std + epsilon) over the masked tokens of the whole batch (ddof 0) [B, T]; 0 elsewhere."""
    values, zeros = x[mask], x.new_zeros(x.shape)
    if len(values) == 0:
        return zeros
    above = values - values.min()
    centered = above - above.mean()
    return zeros.masked_scatter(mask, centered / (centered.square().mean().sqrt() + STD_EPSILON))


def squeeze_order(mask: Tensor) -> Tensor:
    """Positions with the masked-in ones first, in order: [B, T] int64. `0 1 0 1` -> `1 3 0 2`."""
    return (~mask).byte().argsort(dim=1, stable=True)


def squeeze(x: Tensor, mask: Tensor, order: Tensor) -> Tensor:
    """The masked-in entries moved to the left, 0 after them [B, T]."""
    return within(x, mask).gather(1, order)


def shifted(x: Tensor, places: int) -> Tensor:
    """x_{t + places} [B, N], 0 after the end."""
    moved = x.new_zeros(x.shape)
    moved[:, :-places] = x[:, places:]
    return moved
