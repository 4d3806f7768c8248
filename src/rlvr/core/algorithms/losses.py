"""Policy surrogates and the critic's loss, per token and before any averaging.

A surrogate takes `log_ratio` = log pi - log pi_old (bounded), `logprobs` = log pi, `advantages` and `mask`, each
[b, T] with zeros at masked tokens. Its gradient flows through `log_ratio` and `logprobs` only.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rlvr.core.algorithms.ratios import sequence_log_ratio


@dataclass(frozen=True, kw_only=True)
class Surrogate:
    """`loss` [b, T] to be minimized; `ratio` [b, T] before clipping; where the clip stops the gradient, bool [b, T]."""

    loss: Tensor
    ratio: Tensor
    clipped_low: Tensor
    clipped_high: Tensor


def token_clip(
    log_ratio: Tensor, logprobs: Tensor, advantages: Tensor, mask: Tensor, *, clip_low: float, clip_high: float
) -> Surrogate:
    """-min(r A, clip(r, 1 - low, 1 + high) A), one ratio a token; PPO, arXiv:1707.06347, eq. 7.

    `clip_high > clip_low` is DAPO's clip-higher, arXiv:2503.14476, eq. 10.
    """
    return clip(log_ratio.exp(), advantages, clip_low, clip_high)


def sequence_clip(
    log_ratio: Tensor, logprobs: Tensor, advantages: Tensor, mask: Tensor, *, clip_low: float, clip_high: float
) -> Surrogate:
    """The same with one ratio a sequence, s = exp(mean_t log r_t); GSPO, arXiv:2507.18071, eq. 5 and 7.

    grad = s A mean_t grad log pi_t: every token of the row shares the ratio and is clipped, or not, together.
    """
    return clip(sequence_log_ratio(log_ratio, mask).exp(), advantages, clip_low, clip_high)


def detached_clip(
    log_ratio: Tensor, logprobs: Tensor, advantages: Tensor, mask: Tensor, *, clip_high: float
) -> Surrogate:
    """-stop_gradient(min(r, 1 + high)) A log pi: no token loses its gradient; CISPO, arXiv:2506.13585, eq. 4."""
    ratio = log_ratio.detach().exp()
    above = ratio > 1 + clip_high
    loss = -ratio.clamp(max=1 + clip_high) * advantages * logprobs
    return Surrogate(loss=loss, ratio=ratio, clipped_low=torch.zeros_like(above), clipped_high=above)


def clip(ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> Surrogate:
    """The pessimistic clipped surrogate [b, T].

    With low 0.2 and high 0.3:   A = 1: r 0.5 -> -0.5   1.5 -> -1.3 (no gradient)
                                 A = -1: r 0.5 -> 0.8 (no gradient)   1.5 -> 1.5
    """
    loss = torch.maximum(-ratio * advantages, -ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)
    return Surrogate(
        loss=loss,
        ratio=ratio.detach(),
        clipped_low=(ratio < 1 - clip_low) & (advantages < 0),
        clipped_high=(ratio > 1 + clip_high) & (advantages > 0),
    )


def clipped_value_loss(values: Tensor, old_values: Tensor, returns: Tensor, *, value_clip: float | None) -> Tensor:
    """max((V - R)^2, (V_old + clip(V - V_old, +-c) - R)^2) / 2 [b, T]; PPO as in arXiv:2005.12729, section 3."""
    error = (values - returns).square()
    if value_clip is not None:
        near_old = old_values + (values - old_values).clamp(-value_clip, value_clip)
        error = torch.maximum(error, (near_old - returns).square())
    return 0.5 * error
