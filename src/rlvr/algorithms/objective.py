"""The steps shared by all algorithms: rewards to advantages, logprobs to loss.

To add a loss term: add its coefficient to `Algorithm` and to `Objective.coefs`, and the term to `Objective.loss` under
the same name. It becomes a metric by itself: `policy/NAME`, or `loss/NAME` if the name is `NAME_loss` (`sums.py`).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from rlvr.algorithms.advantages import Estimate
from rlvr.algorithms.algorithm import Algorithm, Critic
from rlvr.algorithms.columns import Column
from rlvr.algorithms.losses import (
    MIN_LOGPROB,
    Surrogate,
    bounded_log_ratio,
    kl_estimate,
    mismatch_factor,
    mismatch_log_weight,
    mismatch_weight,
)
from rlvr.algorithms.weights import longest_turn, loss_weights, sampled_tokens, trained_tokens, within
from rlvr.errors import StepError, UserError
from rlvr.types import Predictions, TokenBatch


@dataclass(eq=False)
class AlgorithmError(StepError):
    """A method of the user's algorithm raised, or returned what it must not."""

    algorithm: str
    method: str
    problem: str
    text = "algorithm {algorithm}: its method {method} {problem}"


@dataclass(frozen=True, kw_only=True)
class LossTerms:
    """The loss of some rows, and values to log.

    `sums` are sums over the rows' trained tokens (weight > 0), without gradient; `sums["tokens"]` is their count, so
    `sums[name] / sums["tokens"]`, added up over microbatches first, is a mean per token. The names:

        policy_loss, ratio, entropy
        clip_fraction (= clip_low + clip_high)      tokens whose gradient the clip stops
        approx_kl                                   k3 estimate of KL(old || current)
        mismatch_kl, mismatch_weight                k3 of KL(behavior || old); old / behavior before any cap
        mismatch_capped                             tokens above mismatch_cap
        clamped_tokens                              tokens with an extreme or missing logprob
        reference_kl                                k3 of KL(current || reference), only with a reference
        value_loss                                  only with a critic
    """

    loss: Tensor  # []
    sums: Mapping[str, Tensor]  # []


@dataclass(frozen=True, kw_only=True)
class Objective:
    """Interface of the loop and the trainer to the algorithm; stateless.

    `Objective(algorithm=Grpo(), max_completion_tokens=512, temperature=1.0)`
    """

    algorithm: Algorithm
    max_completion_tokens: int
    temperature: float  # of sampling, applied to all logprobs

    @cached_property
    def columns(self) -> Mapping[str, Column]:
        """What the trainer computes for the algorithm before `advantages`, by name."""
        return self.algorithm.columns()

    def advantages(self, batch: TokenBatch) -> TokenBatch:
        """The whole batch with shaped rewards and KL cost turned into advantages (and returns), 0 outside the loss.

        Raises ValueError if the batch lacks a column of the algorithm.
        """
        for name in self.columns:
            column(batch, name)
        sampled, trained = sampled_tokens(batch), self.trained(batch)
        rewards, num_tokens = within(batch.rewards, batch.valid), longest_turn(batch.loss_mask, batch.episodes)
        rewards = self.algorithm.shaped_rewards(rewards, num_tokens, self.max_completion_tokens)
        penalties = torch.zeros_like(batch.behavior_logprobs)
        kl_coef = self.algorithm.kl_coef_in("reward")
        if kl_coef > 0:
            old, reference = column(batch, "old_logprobs"), column(batch, "reference_logprobs")
            log_ratio, _ = bounded_log_ratio(within(old, sampled), within(reference, sampled))
            penalties = kl_coef * kl_estimate(log_ratio, self.algorithm.kl_estimator)
        with _errors_of(self.algorithm, "advantages"):
            estimate = self.algorithm.advantages(replace(batch, rewards=rewards), penalties, trained)
        inputs = (penalties, column(batch, "values")) if "values" in self.columns else (penalties,)
        check_estimate(self.algorithm, estimate, trained, inputs)
        returns = None if estimate.returns is None else within(estimate.returns, trained)
        return replace(batch, advantages=within(estimate.advantages, trained), returns=returns)

    def loss_weights(self, minibatch: TokenBatch) -> Tensor:
        """[B, T] loss weights of a whole minibatch, with its denominator; 0 outside the loss."""
        sets = (minibatch.episodes, minibatch.groups)
        weights = loss_weights(self.trained(minibatch), *sets, self.algorithm.aggregation, self.max_completion_tokens)
        return weights.to(minibatch.rewards.dtype)

    @property
    def coefs(self) -> dict[str, float]:
        """Coefficients of the enabled loss terms other than the policy's, by name."""
        algorithm = self.algorithm
        coefs = {
            "entropy": -algorithm.entropy_coef,
            "kl": algorithm.kl_coef_in("loss"),
            "value_loss": algorithm.value_coef if isinstance(algorithm, Critic) else 0.0,
        }
        return {name: coef for name, coef in coefs.items() if coef}

    def has_gradient(self, batch: TokenBatch) -> Tensor:
        """[B] bool, rows that can change the gradient; the others need no forward pass.

        With another loss term, every token in the loss counts, even with advantage 0.
        """
        trained = self.trained(batch)
        if self.coefs or self.reads_more:
            return trained.any(1)
        return (trained & (set_before(batch.advantages) != 0)).any(1)

    @property
    def reads_more(self) -> bool:
        """True if the algorithm overrides `token_loss`, which is given more than `surrogate`."""
        return type(self.algorithm).token_loss is not Algorithm.token_loss

    def loss(self, rows: TokenBatch, weights: Tensor, predicted: Predictions) -> LossTerms:
        """sum over tokens of weight x (policy + kl_coef KL - entropy_coef entropy + value_coef value).

        `rows` [b, T] are any part of a minibatch, with their `weights`; the losses of all parts add up to the whole.
        Tokens of weight 0 are ignored. The mismatch factor applies to the policy term alone; tokens it removes stay in
        the denominator, and metrics report the weights before any cap. Gradient flows only through `predicted` [b, T].
        Raises ValueError if the rows lack an input of a term.
        """
        algorithm, mask = self.algorithm, weights > 0
        predicted = predicted.map(lambda x: within(x, mask))
        current = predicted.logprobs.clamp(min=MIN_LOGPROB)
        predicted = predicted._replace(logprobs=current)
        advantages = within(set_before(rows.advantages), mask)
        # with one update per batch the old policy is the current one
        old = within(column(rows, "old_logprobs"), mask) if "old_logprobs" in self.columns else current
        log_ratio, extreme = bounded_log_ratio(current, old.detach())
        log_weight, odd = mismatch_log_weight(old.detach(), within(rows.behavior_logprobs, mask))
        clamped = extreme | odd

        # loss per token: the policy's, then the other terms
        method = "token_loss" if self.reads_more else "surrogate"
        with _errors_of(algorithm, method):
            policy = algorithm.token_loss(log_ratio, predicted, replace(rows, advantages=advantages), mask)
        check_surrogate(algorithm, method, policy, mask, (log_ratio, current, advantages))
        weight = mismatch_weight(log_weight, mask, algorithm.mismatch_correction)
        factor = mismatch_factor(weight, log_weight, algorithm.mismatch_correction, algorithm.mismatch_cap)
        per_token = policy_loss = policy.loss * factor
        terms = {"entropy": predicted.entropy}
        if "reference_logprobs" in self.columns:
            to_reference, far = bounded_log_ratio(current, within(column(rows, "reference_logprobs"), mask))
            importance = log_ratio.exp() if algorithm.kl_unbiased else 1.0
            terms["kl"], clamped = importance * kl_estimate(to_reference, algorithm.kl_estimator), clamped | far
            terms["reference_kl"] = kl_estimate(to_reference, "k3")
        if isinstance(algorithm, Critic):
            assert predicted.values is not None, "the policy has no value head"
            old_values, returns = within(column(rows, "values"), mask), within(set_before(rows.returns), mask)
            terms["value_loss"] = algorithm.value_loss(predicted.values, old_values, returns)
        for name, coef in self.coefs.items():
            per_token = per_token + coef * terms[name]
        terms.pop("kl", None)  # only the k3 estimate is logged

        logged = {
            "ratio": policy.ratio,  # before any clip
            "clip_low": policy.clipped_low,
            "clip_high": policy.clipped_high,
            "clip_fraction": policy.clipped_low | policy.clipped_high,
            "approx_kl": kl_estimate(-log_ratio.detach(), "k3"),
            "mismatch_kl": kl_estimate(-log_weight, "k3"),
            "mismatch_weight": weight,
            "mismatch_capped": (weight > algorithm.mismatch_cap) | (factor == 0),
            "policy_loss": policy_loss,
            **terms,
            "tokens": torch.ones_like(weights),
            "clamped_tokens": clamped,
        }
        sums = {name: within(x.detach().to(weights.dtype), mask).sum() for name, x in logged.items()}
        return LossTerms(loss=(weights * per_token).sum(), sums=sums)

    def trained(self, batch: TokenBatch) -> Tensor:
        """[B, T] bool: the tokens in the loss."""
        return trained_tokens(batch, truncated=self.algorithm.truncated)


@contextmanager
def _errors_of(algorithm: Algorithm, method: str) -> Iterator[None]:
    """Errors of a user's method become AlgorithmError; out of memory is left to smaller microbatches."""
    try:
        yield
    except (UserError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if type(algorithm).__module__.startswith("rlvr."):
            raise
        raise AlgorithmError(algorithm.name, method, f"raised {type(error).__name__}") from error


def check_estimate(algorithm: Algorithm, estimate: object, mask: Tensor, inputs: Sequence[Tensor]) -> None:
    """AlgorithmError unless `advantages` returned an Estimate of tensors [B, T], finite in `mask` if the inputs are."""
    if problem := _problem(estimate, Estimate, mask, inputs):
        raise _must_return(algorithm, "advantages", "an Estimate with finite advantages", mask, problem)


def check_surrogate(
    algorithm: Algorithm, method: str, surrogate: object, mask: Tensor, inputs: Sequence[Tensor]
) -> None:
    """AlgorithmError unless the method returned a Surrogate of tensors [b, T], finite in `mask` if the inputs are, and
    its loss has a gradient if one of them has."""
    problem = _problem(surrogate, Surrogate, mask, inputs)
    if isinstance(surrogate, Surrogate) and not problem:
        lacks_gradient = not surrogate.loss.requires_grad and any(x.requires_grad for x in inputs)
        problem = "a loss without gradient" if lacks_gradient else ""
    if problem:
        raise _must_return(algorithm, method, "a Surrogate with finite tensors", mask, problem)


def _problem(returned: object, kind: type, mask: Tensor, inputs: Sequence[Tensor]) -> str:
    """What is wrong with a record of tensors [B, T]; empty if nothing is."""
    if not isinstance(returned, kind):
        return "None" if returned is None else f"a {type(returned).__name__}"
    for name, value in vars(returned).items():
        if value is None and name == "returns":  # for a critic only
            continue
        if not isinstance(value, Tensor):
            return f"{name} of type {type(value).__name__}"
        if value.shape != mask.shape:
            return f"{name} of shape {list(value.shape)}"
        if not value[mask].isfinite().all() and all(x[mask].isfinite().all() for x in inputs):
            return f"{name} with NaN or infinity"
    return ""


def _must_return(algorithm: Algorithm, method: str, wanted: str, mask: Tensor, problem: str) -> AlgorithmError:
    shape = f"[B, T] = {list(mask.shape)}, a number for each token"
    return AlgorithmError(algorithm.name, method, f"must return {wanted} {shape}, not {problem}")


def column(batch: TokenBatch, name: str) -> Tensor:
    """A column of the batch, or ValueError if it was not scored."""
    if name not in batch.columns:
        raise ValueError(f"the batch has no {name}: score it")
    return batch.columns[name]


def set_before(x: Tensor | None) -> Tensor:
    """Advantages or returns, or ValueError if they are not computed yet."""
    if x is None:
        raise ValueError("the batch has no advantages and returns: score it, then set them")
    return x
