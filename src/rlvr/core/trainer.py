"""Scores a batch and updates the policy on it. The algorithm says what the loss is, this file takes its gradient."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from rlvr.core.algorithms.objective import Objective
from rlvr.core.budget import Budget, cpu_tokens
from rlvr.core.forward import forward, scatter
from rlvr.core.optimizer import adamw, learning_rate, set_learning_rate
from rlvr.core.packing import Layout, Microbatch, microbatches
from rlvr.core.parallel import Spread, start_alike
from rlvr.core.policy import Policy
from rlvr.core.settings import TrainerSettings
from rlvr.core.sums import Sums, critic_metrics
from rlvr.core.world import ALONE, World
from rlvr.errors import ConfigError
from rlvr.seeding import derive_seed
from rlvr.types import TokenBatch

BF16_PAYS_FROM_WIDTH = 128
"""Hidden size from which bf16 autocast is faster than fp32: updates were 1.3x to 1.5x faster at 128 (docs/log.md); an
earlier prototype lost 2x at 64. Both on a CPU with bf16 instructions."""

log = logging.getLogger(__name__)


class NonFiniteError(Exception):
    """Loss or gradient is NaN or infinite; `rows` are the rows of the batch whose microbatch it came from.

    Raised on all ranks alike.
    """

    def __init__(self, what: str, rows: Sequence[int]) -> None:
        super().__init__(f"{what} is not finite")
        self.what, self.rows = what, list(rows)


@dataclass(frozen=True, kw_only=True)
class _Minibatch:
    """What one optimizer step is made with: b rows of a batch."""

    batch: TokenBatch  # these rows alone
    rows: Sequence[int]  # their numbers in the whole batch
    weights: Tensor  # [b, T] of the loss
    chosen: list[int]  # those of the b that can move the gradient

    @classmethod
    def of(cls, batch: TokenBatch, rows: Sequence[int], objective: Objective) -> Self:
        """Some rows of a batch."""
        own = _take(batch, rows)
        chosen = torch.nonzero(objective.trainable(own))[:, 0].tolist()
        return cls(batch=own, rows=rows, weights=objective.weights(own), chosen=chosen)


class Trainer:
    """Owns the optimizer, the frozen reference and the random order of minibatches.

    The gradient of a minibatch is the same however it is cut into microbatches: token weights carry the global
    denominator, and microbatch losses are added up. So it is the same on any number of ranks: each holds the whole
    batch, makes the passes over its share of the rows, and gets the sums of what all found. `score` and `update` must
    be called on all of them, with the same batch.
    """

    def __init__(
        self,
        *,
        policy: Policy,
        objective: Objective,
        settings: TrainerSettings,
        temperature: float,
        seed: int,
        layout: Layout = "shared",
        world: World = ALONE,
        note: Callable[[str], None] = log.warning,
    ) -> None:
        self.policy, self.objective, self.algorithm = policy, objective, objective.algorithm
        start_alike(policy, world)
        # before the model is spread: a part of it could not be copied
        self.reference = policy.freeze() if "reference_logprobs" in self.algorithm.needs else None
        self._bf16 = world.first(in_bf16(settings, policy))
        self._world, self._spread = world, Spread(settings, world, bf16=self._bf16)
        self._spread.add(policy)
        if self.reference is not None:
            with self.reference() as reference:
                self._spread.add(reference)
        self.optimizer = adamw(
            policy.parameters(),
            beta1=settings.adam_beta1,
            beta2=settings.adam_beta2,
            weight_decay=settings.weight_decay,
        )
        self._settings, self._temperature, self._seed = settings, temperature, seed
        self._layout: Layout = layout
        tokens = cpu_tokens(settings.microbatch_tokens)
        self._budget = Budget(tokens, note=note, alone=not self._spread.in_lockstep)

    @property
    def bf16(self) -> bool:
        """Whether products are computed in bfloat16."""
        return self._bf16

    @bf16.setter
    def bf16(self, wanted: bool) -> None:
        if self._spread.in_lockstep and wanted != self._bf16:  # the weights are sharded with it
            precision = "bf16" if wanted else "fp32"
            raise ConfigError(
                f"trainer.precision={self._settings.precision}: the run was begun in {precision}, and this machine "
                f"would go on in another one; set trainer.precision={precision}."
            )
        self._bf16 = wanted

    @property
    def precision(self) -> str:
        """In words: what the weights that are frozen are, and what products are computed in."""
        if self.bf16:
            return "bf16" if self._spread.casts else "bf16 autocast"
        return "float32" if self.policy.dtype == torch.float32 else "bfloat16, its adapters in float32,"

    # ------------------------------------------------------------------------------------------------- scoring

    def score(self, batch: TokenBatch) -> TokenBatch:
        """Fill in what the algorithm needs before the update: old logprobs, reference logprobs, values."""
        needs = self.algorithm.needs
        if "old_logprobs" in needs or "values" in needs:
            old_logprobs, values = self._score(self.policy, batch)
            batch = replace(batch, old_logprobs=old_logprobs, values=values)
        if self.reference is not None:
            with self.reference() as reference:
                batch = replace(batch, reference_logprobs=self._score(reference, batch)[0])
        return batch

    @torch.no_grad()
    def _score(self, policy: Policy, batch: TokenBatch) -> tuple[Tensor, Tensor | None]:
        longest = int(batch.lengths.max())
        logprobs, values = self._budget.run(lambda tokens: self._own_scores(policy, batch, tokens), longest=longest)
        return self._world.add(logprobs), None if values is None else self._world.add(values)

    def _own_scores(self, policy: Policy, batch: TokenBatch, tokens: int) -> tuple[Tensor, Tensor | None]:
        """Those of this rank's share, 0 elsewhere."""
        logprobs = torch.zeros_like(batch.behavior_logprobs)
        values = None if policy.value_head is None else torch.zeros_like(logprobs)
        for microbatch in self._microbatches(batch, range(len(batch.ids)), tokens):
            with self._autocast():
                scores = policy.run(forward, policy, microbatch, self._temperature)
            place = (microbatch.rows, microbatch.tokens)
            logprobs[place] = scores.logprobs
            if values is not None and scores.values is not None:
                values[place] = scores.values
        return logprobs, values

    # ------------------------------------------------------------------------------------------------ updating

    def update(self, batch: TokenBatch, step: int) -> tuple[dict[str, float], TokenBatch]:
        """All optimizer steps on one batch of rollouts.

        Returns `loss/...` and `policy/...` metrics, and the batch with old_logprobs: where the algorithm needed no
        pass for them they are those of the update's own pass, NaN in rows that could not move the gradient.
        Raises NonFiniteError before any weight is touched by a non-finite gradient.
        """
        rate = self.learning_rate(step)
        set_learning_rate(self.optimizer, rate)
        sums, seen = Sums(), torch.full_like(batch.behavior_logprobs, math.nan)
        before = self._spread.weight_sample(self.policy)
        for rows in self._minibatches(batch, step):
            part = self._update_minibatch(_Minibatch.of(batch, rows, self.objective), seen)
            sums.add(part)
            if self.algorithm.stop_early(part.mean("approx_kl")):
                break
        changed = self._spread.changed_share(before, self._spread.weight_sample(self.policy))
        metrics = sums.metrics() | critic_metrics(batch)
        metrics |= {"policy/learning_rate": rate, "policy/changed_weight_share": changed}
        metrics["system/microbatch_tokens"] = float(min(self._world.gather(self._budget.tokens)))
        if batch.old_logprobs is None:
            known = self._world.add((~seen.isnan()).int()) > 0  # each rank has seen some places
            seen = torch.where(known, self._world.add(seen.nan_to_num(0.0)), math.nan)
            batch = replace(batch, old_logprobs=seen)
        return metrics, batch

    def learning_rate(self, step: int) -> float:
        """Learning rate of the updates of `step`."""
        s = self._settings
        assert isinstance(s.learning_rate, float)
        assert isinstance(s.warmup_steps, int)  # `Model.fitted` and `TrainerSettings.fitted` have seen to both
        return learning_rate(
            step,
            peak=s.learning_rate,
            schedule=s.schedule,
            warmup_steps=s.warmup_steps,
            max_steps=s.max_steps,
            final_share=s.final_learning_rate_share,
        )

    def _minibatches(self, batch: TokenBatch, step: int) -> Iterator[list[int]]:
        """Row numbers of each optimizer step: every epoch visits each row once, in an order drawn from the run seed.

        The rows of an episode stay together, in order: the rows of a group share their prompt.
        """
        count = self.algorithm.num_minibatches
        names, episode_of_row = torch.unique(batch.episodes, return_inverse=True)
        for epoch in range(self.algorithm.num_epochs):
            if count == 1:
                yield list(range(len(batch.ids)))
                continue
            generator = torch.Generator().manual_seed(derive_seed(self._seed, "minibatches", step, epoch))
            order = torch.randperm(len(names), generator=generator)
            for part in order.tensor_split(count):
                if len(part):
                    yield torch.nonzero(torch.isin(episode_of_row, part))[:, 0].tolist()

    def _update_minibatch(self, minibatch: _Minibatch, seen: Tensor) -> Sums:
        """One optimizer step; what it reports. Logprobs before it are noted in `seen` [B, T], of the whole batch."""
        longest = int(minibatch.batch.lengths.max())
        own = self._budget.run(lambda tokens: self._own_gradient(minibatch, seen, tokens), longest=longest)
        parts = self._world.gather(own)
        if bad := sorted(row for _, found in parts for row in found):
            raise NonFiniteError("the loss", bad)
        sums = Sums()
        for of_rank, _ in parts:
            sums.add(of_rank)
        self._spread.add_gradients(self.policy)
        norm = self._spread.clip(self.policy, self._settings.max_grad_norm)
        if not math.isfinite(norm):
            raise NonFiniteError("the gradient norm", [minibatch.rows[i] for i in minibatch.chosen])
        self.optimizer.step()
        sums.add_update(norm, num_sampled=int(minibatch.batch.loss_mask.sum()))
        return sums

    def _own_gradient(self, minibatch: _Minibatch, seen: Tensor, tokens: int) -> tuple[Sums, list[int]]:
        """The gradient of this rank's share of the chosen rows, from zero; what the loss reported, and the rows whose
        loss was not finite."""
        for parameter in self.policy.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.zero_()
        sums, bad = Sums(), list[int]()
        for microbatch in self._microbatches(minibatch.batch, minibatch.chosen, tokens):
            bad += self._backward(minibatch, microbatch, seen, sums)
        return sums, bad

    def _backward(self, minibatch: _Minibatch, microbatch: Microbatch, seen: Tensor, sums: Sums) -> list[int]:
        """Add a microbatch's gradient; its rows if its loss is not finite. The pass is made to its end in any case:
        other ranks may wait for this one in it."""
        entropy_grad = self.algorithm.entropy_coef > 0
        with self._autocast():
            scores = self.policy.run(forward, self.policy, microbatch, self._temperature, entropy_grad)
        if not len(microbatch.targets):  # a share without rows
            scores.logprobs.sum().backward()
            return []
        # rows are never cut: all their tokens are here
        present, local = torch.unique(microbatch.rows, return_inverse=True)
        part, weights = _take(minibatch.batch, present), minibatch.weights[present]
        place, numbers = (local, microbatch.tokens), torch.as_tensor(minibatch.rows)
        logprobs, entropy = (scatter(x, place, weights.shape) for x in (scores.logprobs, scores.entropy))
        values = None if scores.values is None else scatter(scores.values, place, weights.shape)
        terms = self.objective.loss(part, weights, logprobs, entropy, values)
        terms.loss.backward()
        seen[numbers[microbatch.rows], microbatch.tokens] = scores.logprobs.detach()
        sums.add_terms(terms)
        return [] if torch.isfinite(terms.loss) else numbers[present].tolist()

    # ------------------------------------------------------------------------------------------------- helpers

    def _microbatches(self, batch: TokenBatch, rows: Sequence[int], tokens: int) -> Iterator[Microbatch]:
        yield from microbatches(
            batch,
            rows,
            budget_tokens=tokens,
            layout=self._layout,
            world=self._world,
            in_lockstep=self._spread.in_lockstep,
        )

    def _autocast(self) -> AbstractContextManager[object]:
        if not self.bf16 or self._spread.casts:
            return nullcontext()
        return torch.autocast(self.policy.model.device.type, dtype=torch.bfloat16)


def in_bf16(settings: TrainerSettings, policy: Policy) -> bool:
    """Whether products are computed in bfloat16, as `trainer.precision` says."""
    return settings.precision == "bf16" or (settings.precision == "auto" and bf16_pays(policy))


def bf16_pays(policy: Policy) -> bool:
    """Whether autocast to bf16 makes an update of this model faster on this device."""
    if policy.model.device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    # newer than the oldest torch we support; without it a CPU's bf16 instructions cannot be told
    capabilities = getattr(torch.cpu, "get_capabilities", dict)()
    wide = policy.model.config.get_text_config().hidden_size >= BF16_PAYS_FROM_WIDTH
    return wide and bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def _take(batch: TokenBatch, rows: Sequence[int] | Tensor) -> TokenBatch:
    """The given rows of every array."""
    index = torch.as_tensor(rows)
    arrays = {name: getattr(batch, name) for name in batch.__dataclass_fields__}
    taken: dict[str, Any] = {name: None if array is None else array[index] for name, array in arrays.items()}
    return TokenBatch(**taken)
