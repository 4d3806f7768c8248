"""What a step logs: the terms of its losses, added up over microbatches, ranks and minibatches; and its time."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor

from rlvr.core.algorithms.objective import LossTerms
from rlvr.types import TokenBatch

ALWAYS_LOGGED = ("policy_loss", "clip_fraction", "approx_kl")
"""Names that a step logs even if no row could move the gradient: a curve without holes."""


class Sums:
    """Sums of the loss's terms over tokens, and the optimizer steps that were made."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._norms: list[float] = []
        self._num_sampled = 0

    def add_terms(self, terms: LossTerms) -> None:
        """One microbatch's terms."""
        for name, value in (*terms.sums.items(), ("total", terms.loss.detach())):
            self._sums[name] = self._sums.get(name, 0.0) + value.item()

    def add_update(self, grad_norm: float, num_sampled: int) -> None:
        """One optimizer step on a minibatch with this many sampled tokens."""
        self._norms.append(grad_norm)
        self._num_sampled += num_sampled

    def add(self, other: Sums) -> None:
        """Another accumulation."""
        self._norms += other._norms
        self._num_sampled += other._num_sampled
        for name, value in other._sums.items():
            self._sums[name] = self._sums.get(name, 0.0) + value

    def mean(self, name: str) -> float:
        """Mean over trained tokens; 0 where nothing was trained."""
        return self._sums.get(name, 0.0) / max(1.0, self._sums.get("tokens", 0.0))

    def metrics(self) -> dict[str, float]:
        """`loss/total`: mean over updates; the others are means over the trained tokens of all updates."""
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
    """Mean value and explained variance of the critic over the tokens in the loss, `trained` [B, T]; {} without one."""
    if batch.values is None or batch.returns is None:
        return {}
    values, returns = batch.values[trained], batch.returns[trained]
    spread = returns.var(correction=0).item()
    alike = spread <= 1e-12 * returns.square().mean().item()  # returns that differ by rounding only
    explained = 0.0 if alike else 1 - (returns - values).var(correction=0).item() / spread
    return {"critic/value_mean": values.mean().item(), "critic/explained_variance": explained}


@dataclass
class Clock:
    """Seconds per stage of one step; each is entered once."""

    start: float = field(default_factory=time.perf_counter)
    stages: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Count the block's time as `stage`."""
        begin = time.perf_counter()
        yield
        self.stages[stage] = time.perf_counter() - begin

    def metrics(self, num_sampled: int) -> dict[str, float]:
        """`time/...` and `system/...`: all that depends on the clock and the machine."""
        total = time.perf_counter() - self.start
        shares = {f"time/{stage}_share": seconds / total for stage, seconds in self.stages.items()}
        shares["time/other_share"] = max(0.0, 1 - sum(shares.values()))
        kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "darwin" else 1)
        return shares | {
            "time/step_s": total,
            "time/tokens_per_s": num_sampled / total,
            "system/peak_memory_mb": kilobytes / 1024,
        }
