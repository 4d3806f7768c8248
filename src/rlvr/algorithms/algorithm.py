"""What the trainer and the loop see of an algorithm."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from rlvr.types import TokenBatch


@dataclass(frozen=True, kw_only=True)
class LossTerms:
    """The loss of some rows, and what to log.

    `sums` are sums over the rows' trained tokens (weight > 0), without gradient; `sums["tokens"]` is their count, so
    `sums[name] / sums["tokens"]`, added up over microbatches first, is a mean per token. The names:

        policy_loss, ratio, entropy
        clip_fraction (= clip_low + clip_high)      tokens whose gradient the clip stops
        approx_kl                                   k3 estimate of KL(old || current)
        mismatch_kl, mismatch_weight                k3 of KL(behavior || old); old / behavior before any cap
        mismatch_capped                             tokens above mismatch_cap
        clamped_tokens                              tokens with an extreme or missing logprob
        reference_kl                                k3 of KL(current || reference), where there is a reference
        value_loss                                  where there is a critic
    """

    loss: Tensor  # []
    sums: Mapping[str, Tensor]  # []


class LossFunction(Protocol):
    """`rows` [b, T] of a minibatch with their `weights`, and the current policy's numbers for them."""

    def __call__(
        self, rows: TokenBatch, weights: Tensor, logprobs: Tensor, entropy: Tensor, values: Tensor | None
    ) -> LossTerms: ...


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """A row of the table with its numbers filled in: pure functions, no state.

    advantages(batch)  shapes rewards and sets `advantages` (and `returns`), 0 outside the loss; the whole batch at once
    weights(minibatch) [B, T] loss weights of a whole minibatch, with its denominator
    trainable(batch)   [B] bool, rows that can move the gradient; the others need no forward pass
    loss(rows, ...)    the sum over any of the minibatch's rows; adding up the parts gives the whole
    """

    name: str
    needs: frozenset[str]  # of "old_logprobs", "reference_logprobs", "values": to be in the batch before `advantages`
    num_epochs: int
    num_minibatches: int
    target_kl: float | None  # stop this batch's updates once approx_kl per token exceeds 1.5 x this
    entropy_coef: float  # 0: `entropy` needs no gradient
    dynamic_sampling: bool  # replace dead groups by new prompts
    max_refills: int
    is_dead_group: Callable[[Sequence[float]], bool]
    advantages: Callable[[TokenBatch], TokenBatch]
    weights: Callable[[TokenBatch], Tensor]
    trainable: Callable[[TokenBatch], Tensor]
    loss: LossFunction
