"""Log-probabilities -> a loss per token [b, T], before any averaging; see docs/algorithms.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, assert_never

from rlvr.algorithms.weights import within

if TYPE_CHECKING:
    from torch import Tensor

Estimator = Literal["k1", "k2", "k3"]  # of the KL
MIN_LOGPROB = -1e4  # minus infinity counts as this, so that -inf - (-inf) is 0 and not NaN
MAX_LOG_RATIO = 20.0  # exp(20) = 4.9e8: beyond any plausible ratio, below the largest float32


# ------------------------------------------------------------------------------------ policy loss, value loss


@dataclass(frozen=True, kw_only=True)
class Surrogate:
    """The policy loss of each token; r = pi / pi_old is the ratio of the token or of its sequence."""

    loss: Tensor  # [b, T] to be minimized
    ratio: Tensor  # [b, T] before clipping, detached
    clipped_low: Tensor  # [b, T] bool, where the clip stops the gradient
    clipped_high: Tensor


def clip(
    ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> Surrogate:
    """-min(r A, clip(r, 1 - low, 1 + high) A); PPO, arXiv:1707.06347, eq. 7.

    `clip_high > clip_low` is DAPO's clip-higher, arXiv:2503.14476, eq. 10. With low 0.2 and high 0.3:

        A = 1    r 0.5 -> -0.5                  1.5 -> -1.3 (no gradient)
        A = -1   r 0.5 ->  0.8 (no gradient)    1.5 ->  1.5

    With a dual clip c > 1, arXiv:1912.09729, eq. 5, the loss of a negative advantage is at most c |A|: at c = 3 and
    A = -1, r 5 -> 3 (no gradient).
    """
    loss = (-ratio * advantages).maximum(-ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)
    clipped_high = (ratio > 1 + clip_high) & (advantages > 0)
    if dual_clip is not None:
        loss = loss.minimum(dual_clip * advantages.abs())  # that of a good token is below 0
        clipped_high = clipped_high | ((ratio > dual_clip) & (advantages < 0))
    return Surrogate(
        loss=loss,
        ratio=ratio.detach(),
        clipped_low=(ratio < 1 - clip_low) & (advantages < 0),
        clipped_high=clipped_high,
    )


def detached_clip(ratio: Tensor, logprobs: Tensor, advantages: Tensor, clip_high: float) -> Surrogate:
    """-stop_gradient(min(r, 1 + high)) A log pi: no token loses its gradient; CISPO, arXiv:2506.13585, eq. 4."""
    ratio = ratio.detach()
    above, never = ratio > 1 + clip_high, ratio < 0
    loss = -ratio.clamp(max=1 + clip_high) * advantages * logprobs
    return Surrogate(loss=loss, ratio=ratio, clipped_low=never, clipped_high=above)


def clipped_value_loss(values: Tensor, old_values: Tensor, returns: Tensor, *, value_clip: float | None) -> Tensor:
    """max((V - R)^2, (V_old + clip(V - V_old, +-c) - R)^2) / 2 [b, T]; PPO as in arXiv:2005.12729, section 3."""
    error = (values - returns).square()
    if value_clip is not None:
        near_old = old_values + (values - old_values).clamp(-value_clip, value_clip)
        error = error.maximum((near_old - returns).square())
    return 0.5 * error


# --------------------------------------------------------------------------------------------- KL to the reference


def kl_estimate(log_ratio: Tensor, estimator: Estimator) -> Tensor:
    """KL(policy || reference) of tokens sampled from the policy [b, T]; J. Schulman, joschu.net/blog/kl-approx.html.

    `log_ratio` [b, T] is log r = log pi(token) - log pi_ref(token). At r = 2: k1 0.69, k2 0.24, k3 0.19.

        k1   log r             unbiased, high variance, can be negative
        k2   (log r)^2 / 2     biased, low variance, never negative
        k3   1 / r - 1 + log r unbiased, low variance, never negative

    Their gradients differ from the estimates (docs/algorithms.md, arXiv:2512.21852):

        in the loss    k1: zero in expectation, E[grad log pi] = 0.
                       k2: the gradient of KL(pi || ref).
                       k3: the gradient of KL(ref || pi), unbiased only for pi near ref.
        in the reward  k1: the gradient of KL(pi || ref), through the policy gradient.
                       k2, k3: biased.
        times pi / pi_old, in the loss (kl_unbiased; DeepSeek-V3.2, arXiv:2512.02556, eq. 7)
                       k1, k3: the gradient of KL(pi || ref).
    """
    match estimator:
        case "k1":
            return log_ratio
        case "k2":
            return 0.5 * log_ratio.square()
        case "k3":
            return (-log_ratio).expm1() + log_ratio
        case _:
            assert_never(estimator)


# ------------------------------------------------------- ratios and mismatch correction


def bounded_log_ratio(numerator: Tensor, denominator: Tensor) -> tuple[Tensor, Tensor]:
    """log(p / q) [b, T] clamped to +-MAX_LOG_RATIO, and where it was clamped [b, T] bool.

    No gradient flows through a clamped token. NaN stays NaN: the trainer must see a broken model.
    """
    raw = numerator.clamp(min=MIN_LOGPROB) - denominator.clamp(min=MIN_LOGPROB)
    return raw.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO), raw.detach().abs() > MAX_LOG_RATIO


def sequence_log_ratio(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """Mean of `log_ratio` over each row's masked tokens, at every token [b, T]; GSPO, arXiv:2507.18071, eq. 7.

    The mean, not the sum: at 0.01 per token, exp(mean) is 1.01 for any length, exp(sum) is 20 for 300 tokens.
    """
    mean = within(log_ratio, mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
    return mean.expand_as(log_ratio)


def mismatch_log_weight(old_logprobs: Tensor, behavior_logprobs: Tensor) -> tuple[Tensor, Tensor]:
    """log w = log(pi_old / pi_behavior) [b, T], and where it was clamped or the logprob is missing [b, T] bool.

    A missing (NaN) behavior logprob counts as equal to the trainer's: weight 1.
    """
    missing = behavior_logprobs.isnan()
    log_weight, clamped = bounded_log_ratio(old_logprobs, old_logprobs.where(missing, behavior_logprobs))
    return log_weight, clamped | missing


def mismatch_weight(log_weight: Tensor, mask: Tensor, correction: str) -> Tensor:
    """The importance weight W [b, T] of each token, before any cap, for `Algorithm.mismatch_correction`.

    none, truncate, mask, icepop        the token's own w
    sequence_truncate, sequence_mask    the product over the row's masked tokens: grows with the length,
                                        at 0.01 per token it is 1.03 for 3 tokens and 20 for 300
    geometric_mask, geometric_mask_tokens
                                        their geometric mean: independent of the length
    """
    if correction.startswith("sequence"):
        total = within(log_weight, mask).sum(1, keepdim=True)
        return total.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().expand_as(log_weight)
    if correction.startswith("geometric"):
        return sequence_log_ratio(log_weight, mask).exp()
    return log_weight.exp()


def mismatch_factor(weight: Tensor, log_weight: Tensor, correction: str, cap: float) -> Tensor:
    """The factor of the policy loss [b, T]; 0 removes a token. With C the cap and w = exp(log_weight) of the token:

    none (and auto)                1
    truncate, sequence_truncate    min(W, C): truncated importance sampling (TIS), fengyao.notion.site/off-policy-rl;
                                   IMPALA, arXiv:1802.01561
    mask, sequence_mask            W if W <= C, else 0; for sequences MIS,
                                   richardli.xyz/post/rl-collapse-training-inference
    icepop, geometric_mask         W if 1 / C <= W <= C, else 0: tokens, IcePop, arXiv:2510.18855; rows, by their mean
    geometric_mask_tokens          w if 1 / C <= W <= C, else 0: seq-mask-tis of OpenRLHF and NeMo-RL
    """
    if correction in ("none", "auto"):
        return weight.new_ones(weight.shape)
    if correction.endswith("truncate"):
        return weight.clamp(max=cap)
    inside = weight <= cap
    if correction == "icepop" or correction.startswith("geometric"):
        inside &= weight * cap >= 1
    return within(log_weight.exp() if correction == "geometric_mask_tokens" else weight, inside)
