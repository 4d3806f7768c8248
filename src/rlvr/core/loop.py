"""The training loop: sample, score, update, evaluate, record, save."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rlvr.algorithms.objective import Objective
from rlvr.core.batch import check_staleness, to_batch
from rlvr.core.clock import Clock
from rlvr.core.errors import NonFiniteError
from rlvr.core.rollout import RolloutSchedule, SampledGroups
from rlvr.core.trainer import Trainer
from rlvr.types import TokenBatch


class Recorder(Protocol):
    """Destination of metrics and rollouts."""

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Write one line of metrics.jsonl and of the console."""

    def rollouts(self, step: int, rollouts: SampledGroups, batch: TokenBatch) -> dict[str, float]:
        """Write a rollout file if one is due; returns metrics to log with the update's."""
        ...

    def non_finite(self, step: int, batch: TokenBatch, error: NonFiniteError) -> Exception:
        """Keep the batch for inspection; returns the error to raise."""
        ...


class Checkpoints(Protocol):
    def save_if_due(self, step: int, metrics: dict[str, float], *, now: bool) -> None:
        """Save after `step` updates if the schedule is due or `now` is set."""


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """Components of the loop. `start_step` updates are already made."""

    start_step: int
    max_steps: int
    evaluate_every: int | None  # None: never
    rollouts: RolloutSchedule
    objective: Objective
    trainer: Trainer
    evaluate: Callable[[], dict[str, float]]
    recorder: Recorder
    checkpoints: Checkpoints


def train(run: TrainingRun, stopped: Callable[[], bool]) -> int:
    """Train until max_steps or until `stopped()`, checked after each step; returns the number of updates made.

    Line `step` of the metrics describes update `step`; line 0 holds the evaluation before the first update.
    """
    with run.rollouts as rollouts:
        if run.start_step == 0:
            clock = Clock()
            metrics = _evaluate(run, 0, clock)
            run.recorder.log(0, metrics | clock.metrics(num_sampled=0))
            run.checkpoints.save_if_due(0, metrics, now=run.max_steps == 0)
        if stopped():
            return run.start_step
        for step in range(run.start_step, run.max_steps):
            clock = Clock()
            with clock("generation"):
                sampled = rollouts.next_batch(step, last=run.max_steps)
            batch = to_batch(sampled.groups)
            ages = check_staleness(batch, step, rollouts.max_staleness)
            with clock("scoring"):
                run.trainer.refresh(step)
                batch = run.objective.advantages(run.trainer.score(batch, sampled.groups))
            with clock("update"):
                metrics, batch = _update(run, batch, step)
            with clock("sync"):
                rollouts.advance(step + 1)
            metrics |= ages | _evaluate(run, step + 1, clock)
            metrics |= run.recorder.rollouts(step + 1, sampled, batch)
            run.recorder.log(step + 1, metrics | clock.metrics(num_sampled=int(batch.loss_mask.sum())))
            stopping = stopped()  # read once: a signal during saving stops after the next step
            run.checkpoints.save_if_due(step + 1, metrics, now=stopping or step + 1 == run.max_steps)
            if stopping:
                return step + 1
    return run.max_steps


def _evaluate(run: TrainingRun, step: int, clock: Clock) -> dict[str, float]:
    """Metrics of the evaluation after `step` updates; empty if none is due."""
    every = run.evaluate_every
    if every is None or (step % every and step != run.max_steps):
        return {}
    with clock("evaluation"):
        return run.evaluate()


def _update(run: TrainingRun, batch: TokenBatch, step: int) -> tuple[dict[str, float], TokenBatch]:
    try:
        return run.trainer.update(batch, step)
    except NonFiniteError as error:
        raise run.recorder.non_finite(step + 1, batch, error) from error
