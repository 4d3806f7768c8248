"""Measures steps, evaluations and the warm start of a run on this machine.

The run's own loop makes them, with its model, task, engine and trainer, at a learning rate next to 0, which changes no
weight. Steps grow from one prompt to all of a step, as far as there is time; the seconds of a size between or beyond
two that were timed are on the line through both.
"""

import hashlib
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import torch

from rlvr.commands.plan.warm import warm_seconds
from rlvr.config import Config
from rlvr.core.errors import NonFiniteError
from rlvr.core.loop import TrainingRun
from rlvr.core.loop import train as run_loop
from rlvr.core.rollout import SampledGroups
from rlvr.core.world import World
from rlvr.engines.settings import LocalEngineSettings
from rlvr.evaluation.evaluate import examples_of
from rlvr.models.devices import device_name
from rlvr.models.layout import choose_layout
from rlvr.models.policy import HubPolicy
from rlvr.records.files import sync_file
from rlvr.records.rollouts import rollouts_path
from rlvr.run.assemble import assemble, evaluate, make_rollouts
from rlvr.run.disk import sizes_of
from rlvr.run.memory import plan_run
from rlvr.run.opened import OpenRun, opened
from rlvr.run.policies import open_engine, set_threads
from rlvr.run.ranks import quiet
from rlvr.run.sources import with_absolute_model
from rlvr.run.tasks import make_chat
from rlvr.run.tuning import check_demonstrations
from rlvr.tasks.base import Functions
from rlvr.training.memory import Parts
from rlvr.types import TokenBatch

STAGES = ("generation", "scoring", "update", "sync", "other")
NO_STEP = 1e-12  # a learning rate that changes no weight
WARM_START_SHARE = 0.4  # of the time
GROWTH = 4  # of a step, from one size to the next
MOST_STEPS = 30  # of one size
UNKNOWN_NOISE = 0.1

Stages = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Measured:
    steps: Mapping[int, Stages]  # seconds of a step by stage, by its number of prompts
    noise: float  # standard deviation of the logarithm of a step's seconds
    evaluation_s: float  # 0: none
    warm_start_s: float
    mean_tokens: float  # of a completion
    taught_share: float  # of the groups, those whose rewards differ
    memory: Parts
    saved_bytes: int  # of a saved model
    trained_bytes: int
    episode_bytes: float  # in a rollout file
    disk_bytes_s: float
    device: str
    notes: tuple[str, ...]

    def stages(self, prompts: int) -> dict[str, float]:
        """Seconds of a step of that size, by the two that are nearest to it; no stage is shorter than in
        a smaller step."""
        near, *other = sorted(self.steps, key=lambda size: abs(size - prompts))[:2]
        first, last = self.steps[near], self.steps[other[0] if other else near]
        share = (prompts - near) / (other[0] - near) if other else 0.0
        line = {name: first[name] + share * (last[name] - first[name]) for name in first}
        return {name: max(took, first[name]) if prompts > near else took for name, took in line.items()}


@dataclass
class Watch:
    """The loop's recorder and checkpoints: keeps what steps took, writes rollouts as the run does, saves nothing."""

    run: TrainingRun
    until: float
    most_groups: int | None  # in a rollout file
    rows: list[Mapping[str, float]] = field(default_factory=list)
    num_written: int = 0  # episodes in the rollout file of the first step

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if step:
            self.rows.append(metrics)

    def rollouts(self, step: int, rollouts: SampledGroups, batch: TokenBatch) -> dict[str, float]:
        if step == 1:
            self.num_written = sum(len(group.episodes) for group in rollouts.groups[: self.most_groups])
        return self.run.recorder.rollouts(step, rollouts, batch)

    def non_finite(self, step: int, batch: TokenBatch, error: NonFiniteError) -> Exception:
        return self.run.recorder.non_finite(step, batch, error)

    def save_if_due(self, step: int, metrics: Mapping[str, float], *, now: bool) -> None:
        """Nothing."""

    def stopped(self) -> bool:
        """Whether there is no time for another step; the first one fills buffers and does not count."""
        took = self.rows[-1]["time/step_s"] if self.rows else 0.0
        return len(self.rows) > 1 and time.perf_counter() + took > self.until

    @property
    def mean(self) -> dict[str, float]:
        """Seconds of a step by stage."""
        return {
            name: fmean(row["time/step_s"] * row.get(f"time/{name}_share", 0.0) for row in self.rows[1:])
            for name in STAGES
        }


class Bench:
    """A run whose steps and evaluations are timed."""

    def __init__(self, run: OpenRun, policy: HubPolicy, training: TrainingRun, slots: int) -> None:
        self.run, self.policy, self.training, self.slots = run, policy, training, slots

    def steps(self, prompts: int, until: float) -> Watch:
        """Steps of this many prompts, two at least."""
        rollout = self.run.config.rollout.model_copy(update={"prompts_per_step": prompts})
        run = replace(self.run, config=self.run.config.model_copy(update={"rollout": rollout}))
        chat = make_chat(run.config, self.policy, run.tasks.own)
        engine = open_engine(run.config, self.policy, run.folder.root, max_batch_size=self.slots)
        watch = Watch(self.training, until, run.config.tracker.rollouts_max_groups)
        rollouts = make_rollouts(run, self.policy, engine, chat)
        limits: dict[str, Any] = {"start_step": 0, "max_steps": MOST_STEPS, "evaluate_every": None}
        parts = {"rollouts": rollouts, "recorder": watch, "checkpoints": watch}
        run_loop(replace(self.training, **limits, **parts), watch.stopped)
        return watch

    def measure(self, share: int, until: float) -> dict[int, Watch]:
        """Steps of 1, 4, 16, ... prompts up to `share`, of two sizes at least, then as far as there is time; of `share`
        as many as fit."""
        made, prompts, took = dict[int, Watch](), 1, 0.0
        while len(made) < 2 or time.perf_counter() + 2 * took < until:
            made[prompts] = watch = self.steps(prompts, until if prompts == share else 0.0)
            took = 2 * watch.rows[-1]["time/step_s"]
            if prompts == share:
                break
            prompts = min(GROWTH * prompts, share)
        return made

    def evaluation_s(self, share: int) -> float:
        """Seconds of an evaluation, by one of about as many completions as a step of that size has."""
        config = self.run.config
        draws = 1 + config.evaluation.samples_per_example
        whole = sum(len(examples_of(one, config.evaluation.limit)) for one in self.run.tasks.eval_sets)
        each = share * config.rollout.group_size // (draws * len(self.run.tasks.eval_sets))
        limit = min(config.evaluation.limit, max(1, each))
        few = config.model_copy(update={"evaluation": config.evaluation.model_copy(update={"num_examples": limit})})
        engine = open_engine(config, self.policy, self.run.folder.root, max_batch_size=self.slots)
        chat = make_chat(config, self.policy, self.run.tasks.own)
        with make_rollouts(self.run, self.policy, engine, chat) as rollouts:
            begin = time.perf_counter()
            evaluate(replace(self.run, config=few), self.policy, engine, rollouts)
            took = time.perf_counter() - begin
        return took * whole / sum(len(examples_of(one, limit)) for one in self.run.tasks.eval_sets)


def measure(config: Config, *, gpus: int = 1, seconds: float = 10.0, functions: Functions | None = None) -> Measured:
    """Measure for about that long, after loading; longer where two steps of one prompt and of four, or an
    evaluation of as many completions as a step's, take longer. UserError as `train`."""
    config, notes = with_absolute_model(config), list[str]()
    with opened(alone(config), functions) as run:
        notes += run.tasks.check_training(config)
        check_demonstrations(config, run.tasks)
        policy = run.load_policy()
        set_threads(config, policy)
        # before the warm start: what that frees stays with the process
        chat, layout = make_chat(config, policy, run.tasks.own), choose_layout(policy)
        memory = plan_run(config, policy, chat, run.tasks.own, layout=layout, world=World(size=gpus))
        warm_start_s = 0.0
        if config.warm_start.enabled:
            warm_start_s = warm_seconds(run, policy, WARM_START_SHARE * seconds, notes)
            seconds *= 1 - WARM_START_SHARE
        bench = Bench(run, policy, assemble(run, policy), memory.max_batch_size)
        share = config.rollout.prompts_per_step // gpus
        made = bench.measure(share, time.perf_counter() + seconds)
        size, largest = max(made.items())
        if size < share:
            notes.append(
                f"a step of {share} prompts takes longer than there was time: its seconds are on the line through "
                f"those of {' and '.join(map(str, sorted(made)[-2:]))}; --seconds gives more"
            )
        saved, trained = sizes_of(policy)
        on_cpu = policy.model.device.type == "cpu"
        return Measured(
            steps={prompts: watch.mean for prompts, watch in made.items()},
            noise=noise([row["time/step_s"] for row in largest.rows[1:]]),
            evaluation_s=0.0 if config.evaluation.every is None else bench.evaluation_s(size),
            warm_start_s=warm_start_s,
            mean_tokens=fmean(row["rollout/completion_tokens_mean"] for row in largest.rows),
            taught_share=1 - fmean(row["rollout/zero_advantage_share"] for row in largest.rows),
            memory=memory.parts,
            saved_bytes=saved,
            trained_bytes=trained,
            episode_bytes=rollouts_path(run.folder.rollouts, 1).stat().st_size / largest.num_written,
            disk_bytes_s=_disk_speed(run.folder.root / "probe"),
            device=f"CPU, {torch.get_num_threads()} thread(s)" if on_cpu else device_name(policy.model.device),
            notes=tuple(notes),
        )


def alone(config: Config) -> Config:
    """One process that reports nothing, samples by itself, and changes no weight."""
    trainer = {"strategy": "single", "world_size": None, "learning_rate": NO_STEP, "warmup_steps": 0}
    sections: dict[str, Any] = {
        "trainer": config.trainer.model_copy(update=trainer),
        "tracker": config.tracker.model_copy(update={"rollouts_every": MOST_STEPS + 1}),  # the first step's
    }
    if not config.engine.in_process:
        sections["engine"] = LocalEngineSettings(max_batch_size=config.engine.max_batch_size)
        sections["rollout"] = config.rollout.model_copy(update={"max_staleness": 0})
    return quiet(config.model_copy(update=sections))


def noise(seconds: Sequence[float]) -> float:
    """Standard deviation of their logarithm."""
    return pstdev(map(math.log, seconds)) if len(seconds) > 2 else UNKNOWN_NOISE


def _disk_speed(file: Path) -> float:
    """Bytes a second, hashed and synced as checkpoints are."""
    content, begin = os.urandom(1 << 24), time.perf_counter()
    file.write_bytes(content)
    sync_file(file)
    hashlib.sha256(content).digest()
    return len(content) / (time.perf_counter() - begin)
