"""Scores a batch and updates the policy on it.

To add a loss term, edit `Objective.loss`; for a new model output, `policy.Predictions`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from rlvr.algorithms.columns import START, Teacher, teachers_of
from rlvr.algorithms.objective import AlgorithmError, Objective
from rlvr.core.batch import to_batch
from rlvr.core.errors import NonFiniteError
from rlvr.core.optimizer import learning_rate, make_optimizer
from rlvr.core.packing import Microbatch, Packing, microbatches
from rlvr.core.parallel import DataParallel, Float16
from rlvr.core.policy import Policy, forward
from rlvr.core.settings import TrainerSettings, cpu_tokens, known
from rlvr.core.sums import Sums, critic_metrics, teacher_metrics
from rlvr.core.value import Branch, State, gold_logprobs
from rlvr.errors import UserError
from rlvr.seeding import derive_seed
from rlvr.types import Group, Predictions, TokenBatch

Answers = Callable[[Sequence[Group]], Sequence[Mapping[State, Branch]]]
"""Groups -> what answers right before each turn of each of their episodes."""


@dataclass(frozen=True)
class LocalTeacher:
    """A frozen model in this process, entered while it is used, and how its rows are laid out."""

    policy: Callable[[], AbstractContextManager[Policy]]
    packing: Packing


class RemoteTeacher(Protocol):
    """A model on a server."""

    def logprobs(self, batch: TokenBatch) -> Tensor:
        """[B, T] of the sampled tokens, 0 elsewhere."""
        ...


@dataclass(kw_only=True)
class _Passes:
    """The passes over one batch (`columns.Passes`)."""

    trainer: Trainer
    batch: TokenBatch
    groups: Sequence[Group]
    made: Predictions | None = None

    @property
    def own(self) -> Predictions:
        if self.made is None:
            self.made = self.trainer.predict(self.trainer.policy, self.batch)
        return self.made

    def rows(self, groups: Sequence[Group]) -> TokenBatch:
        return to_batch(groups)

    def at_turns(self, numbers: Sequence[Sequence[float]]) -> Tensor:
        episodes = [episode for group in self.groups for episode in group.episodes]
        # sampled tokens are in the order of episodes and turns, over however many rows
        per_token = [
            number
            for episode, of_turns in zip(episodes, numbers, strict=True)
            for turn, number in zip(episode.turns, of_turns, strict=True)
            for _ in turn.completion.token_ids
        ]
        zeros = torch.zeros_like(self.batch.behavior_logprobs)
        return zeros.masked_scatter(self.batch.loss_mask, zeros.new_tensor(per_token))

    def logprobs(self, teacher: Teacher, batch: TokenBatch) -> Tensor:
        return self.trainer.logprobs(teacher, batch)

    def gold(self) -> list[list[float]]:
        if self.trainer.answers is None:
            raise UserError("nothing says what the right answers of a batch are: give the trainer its answers")
        episodes = [episode for group in self.groups for episode in group.episodes]
        answers, layout = self.trainer.answers(self.groups), self.trainer.packing.layout
        return gold_logprobs(self.trainer.policy, episodes, answers, layout=layout)


class Trainer:
    """Owns the optimizer, the teachers and the random order of minibatches.

    The gradient of a minibatch does not depend on its microbatches or ranks: token weights carry the global
    denominator, and microbatch losses are summed. Every rank holds the whole batch, runs the passes of its share and
    gets the sums. `score` and `update` are collective: call them on all ranks with the same batch.
    """

    def __init__(
        self,
        *,
        policy: Policy,
        objective: Objective,
        settings: TrainerSettings,
        seed: int,
        packing: Packing | None = None,
        parallel: DataParallel | None = None,
        teachers: Mapping[str, LocalTeacher | RemoteTeacher] | None = None,
        answers: Answers | None = None,
    ) -> None:
        """`teachers` are the models other than START that the algorithm's columns name; `answers` are for those that
        ask how likely the right answer is."""
        if parallel is None and (settings.strategy != "single" or settings.precision in ("bf16", "fp16")):
            raise ValueError("strategy and precision belong to `parallel`: see rlvr.scale.fsdp.make_parallel")
        self.policy, self.objective, self.algorithm = policy, objective, objective.algorithm
        self.packing = packing or Packing(max_tokens=cpu_tokens(settings.microbatch_tokens))
        self.parallel = parallel or DataParallel()
        self.parallel.broadcast_weights(policy)
        self.columns, self.answers = objective.columns, answers
        named, given = teachers_of(self.columns.values()), teachers or {}
        # copy before sharding: a shard cannot be copied
        self.frozen = {x: policy.freeze(moves=x.refresh_every is not None) for x in named if x.name == START}
        self.parallel.shard(policy)
        self._teachers = {teacher: LocalTeacher(copy, self.packing) for teacher, copy in self.frozen.items()}
        self._teachers |= {teacher: given[teacher.name] for teacher in named if teacher.name != START}
        for model in self._teachers.values():
            if isinstance(model, LocalTeacher):
                with model.policy() as frozen:
                    self.parallel.shard(frozen)
        self.optimizer = make_optimizer(policy, settings)
        self._world, self.settings, self._seed = self.parallel.world, settings, seed
        self._rate = partial(
            learning_rate,
            peak=known(settings.learning_rate),
            warmup_steps=settings.num_warmup_steps,
            final_share=settings.final_learning_rate_share,
            schedule=settings.schedule,
            max_steps=settings.max_steps,
        )
        self._reaches = False  # whether a gradient that is there says that its parameter is reached

    @property
    def precision(self) -> str:
        """Description for the user: precision of frozen weights and of products."""
        if isinstance(self.parallel, Float16):
            return "fp16 autocast"
        if self.parallel.bf16:
            return "bf16" if self.parallel.in_lockstep else "bf16 autocast"
        return "float32" if self.policy.dtype == torch.float32 else "bfloat16, its adapters in float32,"

    def score(self, batch: TokenBatch, groups: Sequence[Group] = ()) -> TokenBatch:
        """Add the algorithm's columns. `groups` are those of the batch, for columns that read episodes."""
        passes, columns = _Passes(trainer=self, batch=batch, groups=groups), dict[str, Tensor]()
        for name, column in self.columns.items():
            try:
                computed = column.compute(passes)
            except Exception as error:
                if isinstance(error, UserError | MemoryError | torch.OutOfMemoryError):
                    raise
                problem = f"raised {type(error).__name__} for its {name}"
                raise AlgorithmError(self.algorithm.name, "columns", problem) from error
            if not isinstance(computed, Tensor) or len(computed) != len(batch.ids):
                raise AlgorithmError(
                    self.algorithm.name, "columns", f"must give {name} a tensor of {len(batch.ids)} rows"
                )
            columns[name] = computed
        if passes.made is not None:  # a pass for other columns gives them too
            columns["old_logprobs"] = passes.made.logprobs
        return batch.with_columns(**columns)

    def logprobs(self, teacher: Teacher, batch: TokenBatch) -> Tensor:
        """[B, T] of the sampled tokens under a teacher."""
        model = self._teachers[teacher]
        if isinstance(model, LocalTeacher):
            with model.policy() as policy:
                return self.predict(policy, batch, model.packing).logprobs
        logprobs, rows = torch.zeros_like(batch.behavior_logprobs), self._world.share(range(len(batch.ids)))
        if rows:
            logprobs[rows] = model.logprobs(batch.take(rows))
        return self._world.add(logprobs)

    def refresh(self, step: int) -> None:
        """Let copies of the policy that are due after `step` updates follow it."""
        for teacher, copy in self.frozen.items():
            if teacher.refresh_every is not None and step % teacher.refresh_every == 0:
                copy.refresh(self.policy)

    @torch.no_grad()
    def predict(self, policy: Policy, batch: TokenBatch, packing: Packing | None = None) -> Predictions:
        """Predictions [B, T] of the policy as it is now, 0 at tokens that were not sampled."""
        packing = packing or self.packing
        zeros = torch.zeros_like(batch.behavior_logprobs)
        predictions = Predictions(zeros, zeros, None if policy.value_head is None else zeros).map(torch.clone)
        for attempt in self._attempts(batch.lengths, packing):
            with attempt:
                for microbatch in self._own_share(batch, range(len(batch.ids)), packing):
                    predicted = self._forward(policy, microbatch)
                    for of_batch, of_tokens in zip(predictions, predicted, strict=True):
                        if of_batch is not None and of_tokens is not None:
                            of_batch[microbatch.rows, microbatch.columns] = of_tokens
        return predictions.map(self._world.add)

    def update(self, batch: TokenBatch, step: int) -> tuple[dict[str, float], TokenBatch]:
        """All optimizer steps on one batch of rollouts.

        Returns `loss/...` and `policy/...` metrics and the batch with old_logprobs. Without a scoring pass these come
        from the update's own pass, NaN in rows that could not move the gradient. Raises NonFiniteError before a
        non-finite gradient changes a weight.
        """
        rate = self._rate(step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        sums, seen = Sums(), torch.full_like(batch.behavior_logprobs, math.nan)
        before = self.parallel.weight_sample(self.policy)
        for rows in self.minibatches(batch, step):
            part = self.gradient(batch, rows, seen)
            part.add_update(self.apply(batch, rows), num_sampled=int(batch.loss_mask[rows].sum()))
            sums.add(part)
            if self.algorithm.stop_early(part.mean("approx_kl")):
                break
        changed = self.parallel.changed_share(before, self.parallel.weight_sample(self.policy))
        trained = self.objective.trained(batch)
        metrics = sums.metrics() | critic_metrics(batch, trained) | teacher_metrics(batch, self.columns, trained)
        metrics |= {"policy/learning_rate": rate, "policy/changed_weight_share": changed}
        metrics["system/microbatch_tokens"] = float(min(self._world.gather(self.packing.max_tokens)))
        if "old_logprobs" not in batch.columns:
            known = self._world.add((~seen.isnan()).int()) > 0  # each rank has some of the logprobs
            seen = torch.where(known, self._world.add(seen.nan_to_num(0.0)), math.nan)
            batch = batch.with_columns(old_logprobs=seen)
        return metrics, batch

    def gradient(self, batch: TokenBatch, rows: Sequence[int], seen: Tensor) -> Sums:
        """Leave the gradient of a minibatch, not yet clipped, in the parameters; returns its loss sums.

        Writes the rows' logprobs into `seen` [B, T]. Raises NonFiniteError for a non-finite loss.
        """
        weights = torch.zeros_like(batch.behavior_logprobs)  # [B, T], 0 outside of the minibatch and of the loss
        weights[rows] = self.objective.loss_weights(batch.take(rows))
        chosen, of_share, sums = self._with_gradient(batch, rows), Sums(), Sums()
        for scale in self.parallel.loss_scales(weights):
            for attempt in self._attempts(batch.lengths[rows], self.packing):
                with attempt:
                    of_share.clear()
                    for p in self.policy.parameters():
                        p.grad = None if p.grad is None or not self._reaches else p.grad.zero_()
                    # also after a non-finite loss: other ranks may wait
                    for microbatch in self._own_share(batch, chosen, self.packing):
                        self._backward(batch, weights, microbatch, seen, of_share, scale)
            if self.parallel.unscale(self.policy, scale):
                break
        self._share_reached()
        for of_rank in self._world.gather(of_share):
            sums.add(of_rank)
        if sums.non_finite:
            raise NonFiniteError("the loss", sorted(sums.non_finite))
        self.parallel.sum_gradients(self.policy)
        return sums

    def _share_reached(self) -> None:
        """Give a gradient of 0 to parameters that a pass of any rank has reached, and to all while none has.

        The others keep none, and the optimizer skips them: text reaches no vision tower, whose weights would decay.
        """
        parameters = list(self.policy.parameters())
        reached = self._world.add(torch.tensor([p.grad is not None for p in parameters]).int()) > 0
        self._reaches = bool(reached.any())
        for parameter, is_reached in zip(parameters, reached.tolist(), strict=True):
            if parameter.grad is None and (is_reached or not self._reaches):
                parameter.grad = torch.zeros_like(parameter)

    def _backward(
        self, batch: TokenBatch, weights: Tensor, microbatch: Microbatch, seen: Tensor, sums: Sums, scale: float
    ) -> None:
        """Add a microbatch's gradient, times `scale`, and its sums; writes its logprobs into `seen`."""
        entropy_grad = "entropy" in self.objective.coefs or self.objective.reads_more
        predicted = self._forward(self.policy, microbatch, entropy_grad=entropy_grad)
        seen[microbatch.rows, microbatch.columns] = predicted.logprobs.detach()
        if not len(microbatch.targets):  # a share without rows
            predicted.logprobs.sum().backward()
            return
        # rows are never cut: the microbatch holds all their tokens
        present, local = torch.unique(microbatch.rows, return_inverse=True)
        place, weights = (local, microbatch.columns), weights[present]
        predicted = predicted.map(lambda x: scatter(x, place, weights.shape))
        terms = self.objective.loss(batch.take(present), weights, predicted)
        (terms.loss * scale).backward()
        sums.add_terms(terms, rows=present)

    def apply(self, batch: TokenBatch, rows: Sequence[int]) -> float:
        """Clip the gradient of these rows and make an optimizer step; returns the norm before clipping."""
        norm = self.parallel.clip(self.policy, self.settings.max_grad_norm)
        if not math.isfinite(norm):
            raise NonFiniteError("the gradient norm", self._with_gradient(batch, rows))
        self.optimizer.step()
        return norm

    def minibatches(self, batch: TokenBatch, step: int) -> Iterator[list[int]]:
        """Row numbers of each optimizer step: every epoch visits each row once, in an order derived from the run seed.

        The rows of an episode stay together, in order, as they share a prompt.
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

    def _with_gradient(self, batch: TokenBatch, rows: Sequence[int]) -> list[int]:
        flags = self.objective.has_gradient(batch.take(rows)).tolist()
        return [row for row, has_gradient in zip(rows, flags, strict=True) if has_gradient]

    def _attempts(self, lengths: Tensor, packing: Packing) -> Iterator[AbstractContextManager[None]]:
        return packing.attempts(longest=int(lengths.max()), repeatable=not self.parallel.in_lockstep)

    def _own_share(self, batch: TokenBatch, rows: Sequence[int], packing: Packing) -> Iterator[Microbatch]:
        return microbatches(batch, rows, packing, self._world, in_lockstep=self.parallel.in_lockstep)

    def _forward(self, policy: Policy, microbatch: Microbatch, *, entropy_grad: bool = False) -> Predictions:
        with self.parallel.autocast(policy.model.device):
            return policy.run(forward, policy, microbatch, self.objective.temperature, entropy_grad)


def scatter(flat: Tensor, place: tuple[Tensor, Tensor], shape: torch.Size) -> Tensor:
    """Put N values at their (row, token) positions of a zero [B, T] array; differentiable."""
    return torch.zeros(shape, dtype=flat.dtype, device=flat.device).index_put(place, flat)
