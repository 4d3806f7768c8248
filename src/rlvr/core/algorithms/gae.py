"""Returns, generalized advantages and shaping over the trainable tokens only; GAE, arXiv:1506.02438.

Tokens the policy did not sample (prompt, tool results, padding) are no steps of the episode: they are squeezed out
first, so that nothing is discounted, bootstrapped or reset across them and their values are never read.

    mask     0  0  1  1  0  0  1  0          row with a tool result between two turns
    values   9  9  a  b  9  9  c  9    ->    a  b  c     squeezed; after the end the value is 0
"""

import torch
from torch import Tensor
from torch.nn.functional import pad


def discounted_returns(rewards: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """G_t = r_t + gamma G_{t+1} over the masked tokens [B, T]; 0 elsewhere."""
    order = squeeze_order(mask)
    return unsqueeze(discounted_suffix_sums(squeeze(rewards, mask, order), gamma), order)


def generalized_advantage_estimate(
    rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, gae_lambda: float
) -> tuple[Tensor, Tensor]:
    """Advantages and returns [B, T] over the masked tokens; 0 elsewhere.

        delta_t = r_t + gamma V_{t+1} - V_t        A_t = delta_t + gamma lambda A_{t+1}        R_t = A_t + V_t

    `values[b, t]` is the critic's estimate of the state before token t was sampled (from the hidden state at t - 1).
    V and A are 0 after the last token, for truncated rows too: what was cut off earns nothing.
    """
    order = squeeze_order(mask)
    reward, value = squeeze(rewards, mask, order), squeeze(values, mask, order)
    delta = reward + gamma * pad(value[:, 1:], (0, 1)) - value
    advantage = discounted_suffix_sums(delta, gamma * gae_lambda)
    inside = squeeze(mask.to(delta.dtype), mask, order)
    return unsqueeze(advantage * inside, order), unsqueeze((advantage + value) * inside, order)


def potential_shaping(potentials: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """gamma Phi_{t+1} - Phi_t over the masked tokens of each row [B, T]; 0 elsewhere, and Phi is 0 after the end.

        potentials   0  0  .  .  1  1  .  1  1      two turns before half of the way was found, `.` was not sampled
        shaping      0  1  .  .  0  0  .  0 -1      gamma = 1

    Ng, Harada and Russell, ICML 1999: the only kind of shaping that moves no optimum. Over the rest of an episode it
    adds up to -Phi(now), whatever is done, so a policy earns nothing by going back and forth. It acts where tokens have
    returns of their own (ppo, reinforce_pp); where whole episodes of a group are compared it is the same for all.
    """
    order = squeeze_order(mask)
    before = squeeze(potentials, mask, order)
    return unsqueeze(gamma * pad(before[:, 1:], (0, 1)) - before, order)


def discounted_suffix_sums(x: Tensor, discount: float) -> Tensor:
    """y_t = x_t + discount * y_{t+1} for [B, N], in log2(N) passes.

    After k passes y_t holds the sum over the window [t, t + 2^k); for x = [1, 1, 1, 1] and discount 1/2:
    [1.5, 1.5, 1.5, 1] and then [1.875, 1.75, 1.5, 1].
    """
    y, window = x, 1
    while window < x.shape[1]:
        y = y + discount**window * pad(y[:, window:], (0, window))
        window *= 2
    return y


def squeeze_order(mask: Tensor) -> Tensor:
    """Positions with the masked-in ones first, in order: [B, T] int64. `0 1 0 1` -> `1 3 0 2`."""
    return (~mask).to(torch.uint8).argsort(dim=1, stable=True)


def squeeze(x: Tensor, mask: Tensor, order: Tensor) -> Tensor:
    """The masked-in entries moved to the left, 0 after them [B, T]."""
    return torch.where(mask, x, 0.0).gather(1, order)


def unsqueeze(x: Tensor, order: Tensor) -> Tensor:
    """Undo `squeeze` [B, T]."""
    return torch.zeros_like(x).scatter(1, order, x)
