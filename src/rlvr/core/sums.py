"""Metrics of an update: loss terms summed over microbatches, ranks and minibatches."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from rlvr.algorithms.columns import Column
from rlvr.algorithms.objective import LossTerms
from rlvr.types import TokenBatch

ALWAYS_LOGGED = ("policy_loss", "clip_fraction", "approx_kl")
"""Metrics that every step logs, even if no row could move the gradient."""


class Sums:
    """Sums of loss terms over tokens, and the gradient norms of the optimizer steps."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin again."""
        self.non_finite: list[int] = []  # rows of microbatches whose loss is not finite
        self._sums: dict[str, float] = {}
        self._norms: list[float] = []
        self._num_sampled = 0

    def add_terms(self, terms: LossTerms, rows: Tensor) -> None:
        """Record the loss of these rows of the batch."""
        for name, value in (*terms.sums.items(), ("total", terms.loss.detach())):
            self._sums[name] = self._sums.get(name, 0.0) + value.item()
        if not terms.loss.isfinite():
            self.non_finite += rows.tolist()

    def add_update(self, grad_norm: float, num_sampled: int) -> None:
        """Record one optimizer step on a minibatch with this many sampled tokens."""
        self._norms.append(grad_norm)
        self._num_sampled += num_sampled

    def add(self, other: Sums) -> None:
        self.non_finite += other.non_finite
        self._norms += other._norms
        self._num_sampled += other._num_sampled
        for name, value in other._sums.items():
            self._sums[name] = self._sums.get(name, 0.0) + value

    def mean(self, name: str) -> float:
        """Mean over trained tokens; 0 without any."""
        return self._sums.get(name, 0.0) / max(1.0, self._sums.get("tokens", 0.0))

    def metrics(self) -> dict[str, float]:
        """`loss/total` is a mean over updates; the others are means over the trained tokens of all updates."""
        updates, tokens = len(self._norms), self._sums.get("tokens", 0.0)
        logged = [name for name in dict.fromkeys((*self._sums, *ALWAYS_LOGGED)) if name not in ("tokens", "total")]
        means = {f"loss/{n[:-5]}" if n.endswith("_loss") else f"policy/{n}": self.mean(n) for n in logged}
        return means | {
            "loss/total": self._sums.get("total", 0.0) / updates,
            "policy/trained_tokens": tokens,
            "policy/trained_token_share": tokens / max(1, self._num_sampled),
            "policy/grad_norm": sum(self._norms) / updates,
            "policy/updates": float(updates),
        }


def critic_metrics(batch: TokenBatch, trained: Tensor) -> dict[str, float]:
    """Mean value and explained variance of the critic over the tokens in the loss, `trained` [B, T]; {} without a
    critic."""
    if "values" not in batch.columns or batch.returns is None:
        return {}
    values, returns = batch.columns["values"][trained], batch.returns[trained]
    spread = returns.var(correction=0).item()
    alike = spread <= 1e-12 * returns.square().mean().item()  # returns differ by rounding only
    explained = 0.0 if alike else 1 - (returns - values).var(correction=0).item() / spread
    return {"critic/value_mean": values.mean().item(), "critic/explained_variance": explained}


def teacher_metrics(batch: TokenBatch, columns: Mapping[str, Column], trained: Tensor) -> dict[str, float]:
    """k1 estimate of KL(behavior || teacher) per token in the loss, `trained` [B, T], for each column of a
    teacher's logprobs: `policy/teacher_kl` for `teacher`. Tokens without a logprob are left out, and the reference has
    `policy/reference_kl`, of the current policy."""
    of_teachers = {name for name, column in columns.items() if column.teacher} - {"reference_logprobs"}
    named = {name: logprobs for name, logprobs in batch.columns.items() if name in of_teachers}
    gaps = {name: (batch.behavior_logprobs - logprobs)[trained] for name, logprobs in named.items()}
    return {f"policy/{name}_kl": gap.nanmean().item() for name, gap in gaps.items() if not gap.isnan().all()}
