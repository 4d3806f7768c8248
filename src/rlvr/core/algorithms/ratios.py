"""Probability ratios that cannot overflow, and the correction for a sampler that differs from the trainer."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

MIN_LOGPROB = -1e4  # minus infinity counts as this, so that -inf - (-inf) is 0 and not NaN
MAX_LOG_RATIO = 20.0  # exp(20) = 4.9e8: far beyond any sound ratio, far below the largest float32


def bounded_log_ratio(numerator: Tensor, denominator: Tensor) -> tuple[Tensor, Tensor]:
    """log(p / q) [b, T] clamped to +-MAX_LOG_RATIO, and where it was clamped [b, T] bool.

    No gradient flows through a clamped token. A NaN stays NaN: it is a broken model, and the trainer has to see it.
    """
    raw = numerator.clamp(min=MIN_LOGPROB) - denominator.clamp(min=MIN_LOGPROB)
    return raw.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO), raw.detach().abs() > MAX_LOG_RATIO


def sequence_log_ratio(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """Mean of `log_ratio` over each row's masked tokens, at every token [b, T]; GSPO, arXiv:2507.18071, eq. 7.

    The mean, not the sum: at 0.01 per token, exp(mean) is 1.01 for any length, exp(sum) is 20 for 300 tokens.
    """
    mean = torch.where(mask, log_ratio, 0.0).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
    return mean.expand_as(log_ratio)


def mismatch_log_weight(old_logprobs: Tensor, behavior_logprobs: Tensor) -> tuple[Tensor, Tensor]:
    """log(pi_old / pi_behavior) [b, T], and where it was clamped or the sampler gave no number [b, T] bool.

    A missing (NaN) behavior logprob counts as equal to the trainer's: weight 1.
    """
    missing = behavior_logprobs.isnan()
    log_weight, clamped = bounded_log_ratio(old_logprobs, torch.where(missing, old_logprobs, behavior_logprobs))
    return log_weight, clamped | missing


# ------------------------------------------------------------------------------------- what the weight of a token is


def token_weight(log_weight: Tensor, mask: Tensor) -> Tensor:
    """The token's own weight [b, T]."""
    return log_weight.exp()


def sequence_weight(log_weight: Tensor, mask: Tensor) -> Tensor:
    """The product of the weights of a row's masked tokens, at every token [b, T]: what importance sampling asks for.

    It grows with the length: at 0.01 per token it is 1.03 for 3 tokens and 20 for 300.
    """
    total = torch.where(mask, log_weight, 0.0).sum(1, keepdim=True)
    return total.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().expand_as(log_weight)


def geometric_weight(log_weight: Tensor, mask: Tensor) -> Tensor:
    """Their geometric mean, at every token [b, T]: how far a row is from the sampler's policy, whatever its length."""
    return sequence_log_ratio(log_weight, mask).exp()


# -------------------------------------------------------------------------------------------- what is made of a weight


def uncorrected(weight: Tensor, mismatch_cap: float) -> Tensor:
    """1 for every token."""
    return torch.ones_like(weight)


def truncated_weight(weight: Tensor, mismatch_cap: float) -> Tensor:
    """min(w, C): truncated importance sampling (TIS), fengyao.notion.site/off-policy-rl; IMPALA, arXiv:1802.01561."""
    return weight.clamp(max=mismatch_cap)


def masked_weight(weight: Tensor, mismatch_cap: float) -> Tensor:
    """w where w <= C, else 0: the token leaves the policy loss; the upper side of IcePop, arXiv:2510.18855.

    Of sequence weights it is masked importance sampling (MIS), richardli.xyz/post/rl-collapse-training-inference.
    """
    return torch.where(weight <= mismatch_cap, weight, 0.0)


def banded_weight(weight: Tensor, mismatch_cap: float) -> Tensor:
    """w where 1 / C <= w <= C, else 0. For a mean, whose small values do not take themselves out of the loss."""
    return torch.where((weight <= mismatch_cap) & (weight * mismatch_cap >= 1), weight, 0.0)


class Correction(NamedTuple):
    """What the weight of a token is, before anything is cut off, and what the policy loss is multiplied by."""

    weight: Callable[[Tensor, Tensor], Tensor]  # (log weights of tokens [b, T], mask [b, T]) -> weights [b, T]
    factor: Callable[[Tensor, float], Tensor]  # (weights [b, T], cap) -> factors [b, T]


CORRECTIONS: Mapping[str, Correction] = {
    "none": Correction(token_weight, uncorrected),
    "truncate": Correction(token_weight, truncated_weight),
    "mask": Correction(token_weight, masked_weight),
    "sequence_truncate": Correction(sequence_weight, truncated_weight),
    "sequence_mask": Correction(sequence_weight, masked_weight),
    "geometric_mask": Correction(geometric_weight, banded_weight),
}
