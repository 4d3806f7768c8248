"""The steps every algorithm shares: rewards in, advantages out; logprobs in, loss out."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rlvr.algorithms.advantages import Estimate
from rlvr.algorithms.algorithm import LossTerms
from rlvr.algorithms.kl import k3
from rlvr.algorithms.losses import Surrogate
from rlvr.algorithms.masking import keep, longest_turn, sampled_tokens, trained_tokens
from rlvr.algorithms.ratios import MIN_LOGPROB, Correction, bounded_log_ratio, mismatch_log_weight
from rlvr.types import TokenBatch

KlEstimator = Callable[[Tensor], Tensor]

# ------------------------------------------------------------------------------------------------ before the updates


@dataclass(frozen=True, kw_only=True)
class Shaping:
    """How rewards become advantages."""

    reward: Callable[[Tensor, Tensor], Tensor]  # (rewards [B], tokens of the longest turn [B]) -> rewards [B]
    kl_estimator: KlEstimator
    kl_coef: float  # of the KL in the reward; 0: none
    advantage: Callable[[TokenBatch, Tensor, Tensor], Estimate]
    truncated: str


def estimate_advantages(batch: TokenBatch, *, shaping: Shaping) -> TokenBatch:
    """`batch` with shaped rewards and KL cost turned into advantages (and the critic's returns), 0 outside the loss."""
    sampled, trained = sampled_tokens(batch), trained_tokens(batch, truncated=shaping.truncated)
    rewards = shaping.reward(keep(batch.rewards, batch.valid), longest_turn(batch.loss_mask, batch.episodes))
    penalties = torch.zeros_like(batch.behavior_logprobs)
    if shaping.kl_coef > 0:
        old, reference = required(batch.old_logprobs), required(batch.reference_logprobs)
        log_ratio, _ = bounded_log_ratio(keep(old, sampled), keep(reference, sampled))
        penalties = shaping.kl_coef * shaping.kl_estimator(log_ratio)
    estimate = shaping.advantage(replace(batch, rewards=rewards), penalties, trained)
    returns = None if estimate.returns is None else keep(estimate.returns, trained)
    return replace(batch, advantages=keep(estimate.advantages, trained), returns=returns)


def minibatch_weights(batch: TokenBatch, *, aggregation: Callable[[Tensor, Tensor], Tensor], truncated: str) -> Tensor:
    """[B, T] loss weights of a whole minibatch; 0 outside the loss."""
    return aggregation(trained_tokens(batch, truncated=truncated), batch.episodes).to(batch.rewards.dtype)


def rows_with_gradient(batch: TokenBatch, *, always: bool, truncated: str) -> Tensor:
    """[B] bool. `always`: a term beside the policy loss acts on every token in the loss, whatever its advantage."""
    trained = trained_tokens(batch, truncated=truncated)
    return (trained if always else trained & (required(batch.advantages) != 0)).any(1)


# ------------------------------------------------------------------------------------------------------------ update


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The terms of the loss; a coefficient of 0 leaves its term out."""

    old_is_given: bool  # else the old policy is the current one, detached: right for the one update of a batch
    surrogate: Callable[[Tensor, Tensor, Tensor, Tensor], Surrogate]
    mismatch: Correction  # of the old / behavior weights
    mismatch_cap: float
    kl_estimator: KlEstimator
    kl_coef: float  # of the KL in the loss
    entropy_coef: float
    critic: Callable[[Tensor, Tensor, Tensor], Tensor] | None
    value_coef: float


def total_loss(
    rows: TokenBatch, weights: Tensor, logprobs: Tensor, entropy: Tensor, values: Tensor | None, *, objective: Objective
) -> LossTerms:
    """sum over tokens of weight x (policy + kl_coef KL - entropy_coef entropy + value_coef value).

    Tokens of weight 0 are not looked at. The mismatch factor multiplies the policy term alone; what it takes out of the
    loss stays in the denominator, and metrics show the mismatch weights before any cap. Gradient flows through
    `logprobs`, `entropy` and `values` alone. Raises ValueError if the rows lack what a term needs.
    """
    mask = weights > 0
    current, entropy = keep(logprobs, mask).clamp(min=MIN_LOGPROB), keep(entropy, mask)
    old = keep(required(rows.old_logprobs), mask) if objective.old_is_given else current
    log_ratio, extreme = bounded_log_ratio(current, old.detach())
    log_weight, odd = mismatch_log_weight(old.detach(), keep(rows.behavior_logprobs, mask))
    policy = objective.surrogate(log_ratio, current, keep(required(rows.advantages), mask), mask)

    weight = objective.mismatch.weight(log_weight, mask)
    factor = objective.mismatch.factor(weight)
    policy_loss = policy.loss * factor
    per_token, clamped = policy_loss, extreme | odd
    logged = policy_metrics(policy, log_ratio) | {
        "mismatch_kl": k3(-log_weight),
        "mismatch_weight": weight,
        "mismatch_capped": (weight > objective.mismatch_cap) | (factor == 0),
    }
    logged |= {"policy_loss": policy_loss, "entropy": entropy, "tokens": torch.ones_like(weights)}
    if objective.entropy_coef > 0:
        per_token = per_token - objective.entropy_coef * entropy
    if rows.reference_logprobs is not None:
        reference_log_ratio, far = bounded_log_ratio(current, keep(rows.reference_logprobs, mask))
        per_token, clamped = per_token + objective.kl_coef * objective.kl_estimator(reference_log_ratio), clamped | far
        logged["reference_kl"] = k3(reference_log_ratio)
    if objective.critic is not None:
        old_values, returns = keep(required(rows.values), mask), keep(required(rows.returns), mask)
        value_loss = objective.critic(keep(required(values), mask), old_values, returns)
        per_token = per_token + objective.value_coef * value_loss
        logged["value_loss"] = value_loss
    logged["clamped_tokens"] = clamped
    sums = {name: keep(x.detach().to(weights.dtype), mask).sum() for name, x in logged.items()}
    return LossTerms(loss=(weights * per_token).sum(), sums=sums)


def policy_metrics(policy: Surrogate, log_ratio: Tensor) -> dict[str, Tensor]:
    """What to log of the ratio, per token [b, T], as it is before any clip."""
    return {
        "ratio": policy.ratio,
        "clip_low": policy.clipped_low,
        "clip_high": policy.clipped_high,
        "clip_fraction": policy.clipped_low | policy.clipped_high,
        "approx_kl": k3(-log_ratio.detach()),
    }


def required(x: Tensor | None) -> Tensor:
    """`x`, or ValueError: the batch was not scored with what `Algorithm.needs` asks for, or has no advantages yet."""
    if x is None:
        raise ValueError("the batch lacks a tensor this algorithm needs: score it with `needs`, then set advantages")
    return x
