"""What each episode contributes to an update: an estimate of the update without it, for all episodes at once.

The update leads from weights a to b, and without episode i to b_i. Its influence is L(b_i) - L(b), where L is the
batch's own loss: positive if the episode helped the others. To first order that is

    influence_i = sum over optimizer steps k of   u_k . (g_k - g_k without i)

g_k is the gradient of step k and u_k = - (d b / d g_k)^T grad L(b): the slope of the loss after the update, taken back
through Adam and the clip. "Without i" includes what i does to the others: its group's mean and deviation, and the
denominators. Gradient dot products are those of TracIn (arXiv:2002.08484); that the optimizer belongs into them, LESS
(arXiv:2402.04333). Here it decides the sign: an update that overshoots is made worse by the episodes that agree with
it. The slope before the update, and the change of the weights, predict leave-one-out worse (docs/benchmarks.md).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rlvr.algorithms.objective import Objective
from rlvr.core.batch import to_batch
from rlvr.core.trainer import Trainer
from rlvr.errors import UserError
from rlvr.research.repeat import Progress, Repeated, TrainerState
from rlvr.types import Predictions, TokenBatch

Weights = Mapping[str, Tensor]

PROBED = 0.03  # of the length of the update: how far the weights move to see what logprobs do
VISIBLE = 2e-3, 1e-2  # least change of a logprob to trust in float32, and the one to aim at


@dataclass(frozen=True, kw_only=True)
class Influence:
    """`change`: of the batch's loss, predicted, if the update were made without the episode. `share`: of the sum of all
    episodes' absolute values."""

    episode: int  # line of the rollout file, from 0
    group: int
    sample_index: int
    reward: float
    change: float
    share: float


@dataclass(frozen=True, kw_only=True)
class OptimizerStep:
    """One of an update, before it was made."""

    rows: Sequence[int]
    weights: Weights
    gradient: Weights  # not clipped


def influences(made: Repeated, on_progress: Progress) -> list[Influence]:
    """Of all episodes of a replayed step, in their order. UserError unless AdamW made it."""
    trainer, objective = made.run.trainer, made.run.objective
    if trainer.settings.optimizer != "adamw":
        raise UserError(f"trainer.optimizer={trainer.settings.optimizer}: influence is computed for AdamW alone.")
    with _in_float32(trainer):
        made.before.restore(trainer, made.step)
        groups = made.sampled.groups
        batch = objective.advantages(trainer.score(to_batch(groups), groups))
        steps = list(optimizer_steps(trainer, batch, made.step))
        length = _length({name: p.detach() - made.before.weights[name] for name, p in _named(trainer)})
        slope = slope_after(made, batch)
        ways = directions(trainer, made.before, [step.gradient for step in steps], slope)
        probes = [_probe(trainer, batch, step, way, length) for step, way in zip(steps, ways, strict=True)]
    whole = _along(objective, batch, steps, probes)
    changes = list[float]()
    numbers = batch.episodes.unique().tolist()
    for number in numbers:
        without = objective.advantages(left_out(batch, number))
        changes.append(whole - _along(objective, without, steps, probes))
        on_progress(len(changes), len(numbers))
    total = sum(map(abs, changes)) or 1.0
    episodes = [(index, one) for index, group in enumerate(made.sampled.groups) for one in group.episodes]
    return [
        Influence(
            episode=number,
            group=index,
            sample_index=episode.sample_index,
            reward=episode.score.value,
            change=change,
            share=change / total,
        )
        for number, (index, episode), change in zip(numbers, episodes, changes, strict=True)
    ]


def left_out(batch: TokenBatch, episode: int) -> TokenBatch:
    """As if its verifier had failed: neither in the loss nor in its group's statistics."""
    return replace(batch, valid=batch.valid & (batch.episodes != episode))


def optimizer_steps(trainer: Trainer, batch: TokenBatch, step: int) -> Iterator[OptimizerStep]:
    """Make the update, as `Trainer.update` does."""
    seen = torch.zeros_like(batch.behavior_logprobs)
    for rows in trainer.minibatches(batch, step - 1):
        sums = trainer.gradient(batch, rows, seen)
        weights = {name: p.detach().clone() for name, p in _named(trainer)}
        made = OptimizerStep(rows=rows, weights=weights, gradient=_gradient(trainer))
        trainer.apply(batch, rows)
        yield made
        if trainer.algorithm.stop_early(sums.mean("approx_kl")):
            break


def slope_after(made: Repeated, batch: TokenBatch) -> Weights:
    """Gradient of the batch's loss at the weights after the update, with ratios to the policy before it."""
    trainer, objective = made.run.trainer, made.run.objective
    if "old_logprobs" not in batch.columns:  # rows without gradient have no logprob, and need none
        batch = batch.with_columns(old_logprobs=made.batch.columns["old_logprobs"])
    # one more epoch over this batch sees this loss; with a single update there is no ratio in it
    again = objective.algorithm.model_copy(update={"num_epochs": objective.algorithm.num_epochs + 1})
    trainer.objective = replace(objective, algorithm=again)
    trainer.gradient(batch, range(len(batch.ids)), torch.zeros_like(batch.behavior_logprobs))
    trainer.objective = objective
    return _gradient(trainer)


def directions(trainer: Trainer, before: TrainerState, gradients: Sequence[Weights], slope: Weights) -> list[Weights]:
    """u_k of each step: `slope` [weights] through the clip and AdamW (arXiv:1711.05101), which are made once more."""
    settings, leaves = trainer.settings, [{n: g.clone().requires_grad_() for n, g in one.items()} for one in gradients]
    names = {id(parameter): name for name, parameter in _named(trainer)}
    clipped = []
    for one in leaves:
        factor = (settings.max_grad_norm / (_length(one) + 1e-6)).clamp(max=1.0)
        clipped.append({name: factor * gradient for name, gradient in one.items()})
    total = torch.zeros(())
    numbered = enumerate((p, group) for group in trainer.optimizer.param_groups for p in group["params"])
    for number, (parameter, group) in numbered:
        name, (beta1, beta2) = names[id(parameter)], group["betas"]
        moments = before.moments.get(number, {})
        zero = torch.zeros_like(parameter)
        mean, square = moments.get("exp_avg", zero), moments.get("exp_avg_sq", zero)
        first = int(moments.get("step", 0)) + 1
        for count, one in enumerate(clipped, start=first):
            mean = beta1 * mean + (1 - beta1) * one[name]
            square = beta2 * square + (1 - beta2) * one[name].square()
            root = (square / (1 - beta2**count)).clamp(min=1e-20).sqrt()  # the root of 0 has no slope
            moved = mean / (1 - beta1**count) / (root + group["eps"])
            total = total + group["lr"] * (slope[name] * moved).sum().cpu()
    flat = torch.autograd.grad(total, [leaf for one in leaves for leaf in one.values()])
    found = iter(flat)
    return [{name: next(found) for name in one} for one in leaves]


def _probe(
    trainer: Trainer, batch: TokenBatch, step: OptimizerStep, way: Weights, length: Tensor
) -> tuple[Predictions, Predictions]:
    """Predictions [b, T] of a step's rows, and their derivatives along a direction, from both sides."""
    rows = batch.take(step.rows)

    def at(distance: float) -> Predictions:
        for name, parameter in _named(trainer):
            parameter.detach().copy_(step.weights[name] + distance * way[name])
        return trainer.predict(trainer.policy, rows)

    distance = PROBED * length.item() / max(_length(way).item(), 1e-30)
    here = slopes = at(0.0)
    for _ in range(3):  # a change that is too small drowns in rounding
        forth, back = at(distance), at(-distance)
        values = None if forth.values is None or back.values is None else (forth.values - back.values) / 2
        moved = Predictions((forth.logprobs - back.logprobs) / 2, (forth.entropy - back.entropy) / 2, values)
        slopes = moved.map(lambda x, distance=distance: x / distance)
        change = moved.logprobs[rows.loss_mask].square().mean().sqrt().item()
        if not 0.0 < change < VISIBLE[0]:
            break
        distance *= VISIBLE[1] / change
    return here, slopes


def _along(
    objective: Objective,
    batch: TokenBatch,
    steps: Sequence[OptimizerStep],
    probes: Sequence[tuple[Predictions, Predictions]],
) -> float:
    """sum over k of u_k . g_k for a batch with advantages: the loss by its predictions, those along u_k."""
    total = 0.0
    for step, (here, moved) in zip(steps, probes, strict=True):
        minibatch = batch.take(step.rows)
        leaves = here.map(lambda x: x.clone().requires_grad_())
        loss = objective.loss(minibatch, objective.loss_weights(minibatch), leaves).loss
        known = [(leaf, to) for leaf, to in zip(leaves, moved, strict=True) if leaf is not None and to is not None]
        parts = torch.autograd.grad(loss, [leaf for leaf, _ in known], allow_unused=True)
        pairs = zip(parts, known, strict=True)
        total += sum((part.double() * to).sum().item() for part, (_, to) in pairs if part is not None)
    return total


@contextmanager
def _in_float32(trainer: Trainer) -> Iterator[None]:
    """Differences of logprobs drown in bfloat16."""
    bf16 = trainer.parallel.bf16
    trainer.parallel.set_precision(False)
    try:
        yield
    finally:
        trainer.parallel.set_precision(bf16)


def _named(trainer: Trainer) -> Iterator[tuple[str, Tensor]]:
    yield from trainer.policy.named_parameters()


def _gradient(trainer: Trainer) -> Weights:
    return {name: p.grad.detach().clone() for name, p in _named(trainer) if p.grad is not None}


def _length(weights: Weights) -> Tensor:
    return torch.stack([weight.square().sum() for weight in weights.values()]).sum().sqrt()
