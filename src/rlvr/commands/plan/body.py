"""Predicts what a run will take: a measured step times the number of steps, and the rest likewise."""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass

from rlvr.commands.plan.measure import Measured, Stages, measure
from rlvr.config import Config
from rlvr.core.world import World
from rlvr.run.disk import checkpoint_bytes, disk_of_models, num_saved
from rlvr.run.ranks import check_shares
from rlvr.tasks.base import Functions

BUSY = 0.5  # other work per core
OWN_ERROR = 0.1  # standard deviation of the logarithm of predicted / measured (benchmarks/results/plan.md)


@dataclass(frozen=True, kw_only=True)
class Plan:
    gpus: int
    measured: Measured
    stages: Stages  # seconds of a step
    totals: dict[str, float]  # seconds of the run: warm start, steps, evaluations, checkpoints
    range_s: tuple[float, float]  # of the run, nearly always
    disk: dict[str, int]  # bytes by kind
    gains: tuple[tuple[str, float], ...]  # a change, and the share of the run's time that it saves; the best first
    notes: tuple[str, ...]

    @property
    def step_s(self) -> float:
        return sum(self.stages.values())

    @property
    def total_s(self) -> float:
        return sum(self.totals.values())

    @property
    def bound_by(self) -> str:
        return max(self.stages, key=self.stages.__getitem__)

    @property
    def memory_bytes(self) -> int:
        """Of a process, at its peak."""
        return sum(self.measured.memory.values())


def plan(
    config: Config,
    *,
    gpus: int | None = None,
    seconds: float = 10.0,
    functions: Functions | None = None,
) -> Plan:
    """Measure this machine for about `seconds`, and predict the run on it.

    `gpus`: devices like this one, each of which samples and trains its share of the prompts; None: trainer.world_size.
    Raises UserError for errors that the user can correct.
    """
    gpus = gpus or config.trainer.world_size or 1
    check_shares(config, World(size=gpus))
    measured = measure(config, gpus=gpus, seconds=seconds, functions=functions)
    stages = measured.stages(config.rollout.prompts_per_step // gpus)
    if not config.engine.in_process and config.rollout.max_staleness > 0:
        stages = sampled_beside(stages)
    totals, spread = totals_of(config, measured, stages), math.hypot(OWN_ERROR, measured.noise)
    total = sum(totals.values())
    gains = [(name, 1 - sum(changed.values()) / total) for name, changed in _changed(config, measured, stages, gpus)]
    return Plan(
        gpus=gpus,
        measured=measured,
        stages=stages,
        totals=totals,
        range_s=(total * math.exp(-2 * spread), total * math.exp(2 * spread)),
        disk=_disk(config, measured),
        gains=tuple(sorted(gains, key=lambda item: -item[1])),
        notes=tuple(_notes(config, measured, gpus)),
    )


def totals_of(config: Config, measured: Measured, stages: Stages) -> dict[str, float]:
    """Seconds of the run."""
    steps, every = config.trainer.max_steps, config.evaluation.every
    totals = {"warm start": measured.warm_start_s, "steps": steps * sum(stages.values())}
    if every is not None:
        totals["evaluations"] = (1 + -(-steps // every)) * measured.evaluation_s
    saved = checkpoint_bytes(measured.saved_bytes, measured.trained_bytes)
    return totals | {"checkpoints": num_saved(config) * saved / measured.disk_bytes_s}


def sampled_beside(stages: Stages) -> dict[str, float]:
    """A step whose completions were sampled while another device trained: it waits for the rest of them."""
    trained = sum(took for name, took in stages.items() if name != "generation")
    return {**stages, "generation": max(0.0, stages["generation"] - trained)}


def _changed(config: Config, measured: Measured, stages: Stages, gpus: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Totals with what a user could change without changing what is learned, except by older tokens or fewer scores."""
    evaluation, trainer, prompts = config.evaluation, config.trainer, config.rollout.prompts_per_step
    if evaluation.every is not None and evaluation.every < trainer.max_steps:
        rarer = config.model_copy(update={"evaluation": evaluation.model_copy(update={"every": 2 * evaluation.every})})
        yield f"evaluation.every={2 * evaluation.every}", totals_of(rarer, measured, stages)
    if trainer.checkpoint_every is not None and trainer.checkpoint_every < trainer.max_steps:
        fewer = trainer.model_copy(update={"checkpoint_every": 2 * trainer.checkpoint_every})
        changed = totals_of(config.model_copy(update={"trainer": fewer}), measured, stages)
        yield f"trainer.checkpoint_every={2 * trainer.checkpoint_every}", changed
    if config.rollout.max_staleness == 0:
        beside = totals_of(config, measured, sampled_beside(stages))
        yield "rollout.max_staleness=1 and a device that only samples", beside
    if prompts % (2 * gpus) == 0:
        yield (
            f"--gpus {2 * gpus}",
            totals_of(config, measured, measured.stages(prompts // (2 * gpus))),
        )


def _disk(config: Config, measured: Measured) -> dict[str, int]:
    tracker, rollout, steps = config.tracker, config.rollout, config.trainer.max_steps
    files = 0 if tracker.rollouts_every is None else 1 + steps // tracker.rollouts_every
    groups = min(
        rollout.prompts_per_step,
        tracker.rollouts_max_groups or rollout.prompts_per_step,
    )
    episodes = files * groups * rollout.group_size
    of_models = disk_of_models(config, measured.saved_bytes, measured.trained_bytes)
    return {**of_models, "rollouts": round(episodes * measured.episode_bytes)}


def _notes(config: Config, measured: Measured, gpus: int) -> Iterator[str]:
    yield from measured.notes
    load, cores = (
        os.getloadavg()[0] - 1,
        os.cpu_count() or 1,
    )  # one of them is this process
    if load > BUSY * cores:
        yield f"the machine is busy (load {load + 1:.1f} on {cores} cores): times are those of now, longer than alone"
    if config.algorithm.compares_groups and (share := measured.taught_share) < 1:
        yield f"{share:.0%} of the groups move the gradient now; the update grows or shrinks with that share"
    if not config.engine.in_process:
        yield "a server is taken to be as fast as the local engine on this device"
    if gpus > 1:
        yield "what devices send each other is not counted"
