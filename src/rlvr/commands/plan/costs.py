"""Measures what a run costs on this machine: the run's own model, task, engine and trainer make a few small steps.

The stages are timed as in `core.loop`. Weights stay as they are (the learning rate is next to 0) and rewards are drawn,
so that every row has a gradient; the share that real rewards leave is counted. Lines through the measured points are
the `Costs` of the simulator.
"""

import copy
import hashlib
import math
import os
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import torch

from rlvr.commands.plan.fits import Size, exponential, larger, line, noise, robust_line, share
from rlvr.commands.plan.simulate import STAGES, Costs
from rlvr.commands.plan.warm import tuned_seconds, warm_seconds
from rlvr.config import Config
from rlvr.core.batch import to_batch
from rlvr.core.clock import Clock
from rlvr.core.engine import LocalEngine
from rlvr.core.executor import Background
from rlvr.core.loop import TrainingRun
from rlvr.core.rollout import RolloutSource, SampledGroups
from rlvr.core.world import World
from rlvr.engines.settings import LocalEngineSettings
from rlvr.evaluation.evaluate import examples_of
from rlvr.models.devices import device_name
from rlvr.models.layout import choose_layout
from rlvr.run.assemble import assemble
from rlvr.run.disk import sizes_of
from rlvr.run.memory import plan_run
from rlvr.run.opened import OpenRun, opened
from rlvr.run.policies import set_threads
from rlvr.run.ranks import quiet
from rlvr.run.sources import with_absolute_model
from rlvr.run.tasks import make_chat
from rlvr.run.tuning import check_demonstrations
from rlvr.tasks.base import Functions
from rlvr.tracking.files import sync_file
from rlvr.tracking.rollouts import rollouts_path
from rlvr.training.memory import Parts
from rlvr.types import Group, StopReason, TokenBatch

NO_STEP = 1e-12  # a learning rate that changes no weight
FIRST_TOKENS = 8  # completions of the first steps are cut here
WARM_START_SHARE = 0.4  # of the time
FOR_THE_BATCH, FOR_LENGTHS = 0.4, 0.8  # shares of the rest in which steps may grow
MOST_REPEATS = 30
MOST_COPIED = 1 << 30  # bytes of a model that is copied to see how sampling and training slow each other


@dataclass(frozen=True, kw_only=True)
class Measured:
    costs: Costs
    episodes: tuple[tuple[int, ...], ...]  # tokens of the turns
    lengths: tuple[float, float]  # by which factors the mean length may be off
    noise: float  # standard deviation of the logarithm of a step's seconds
    prompt_tokens: float
    reply_tokens: float
    trained_share: float  # of the rows
    beside: float  # speed of sampling and of training while both go on
    eval_examples: int
    warm_start_s: float
    memory: Parts
    saved_bytes: int  # of a saved model
    trained_bytes: int
    episode_bytes: float  # in a rollout file
    disk_bytes_s: float
    device: str
    notes: tuple[str, ...]


class TimedEngine(LocalEngine):
    """The local engine; `steps` has the seconds of each of its steps and what it did."""

    def __init__(self, model: Any, slots: int) -> None:
        context = int(model.config.get_text_config().max_position_embeddings)
        super().__init__(model, max_batch_size=slots, max_context_tokens=context)
        self.steps: list[tuple[float, tuple[float, ...]]] = []
        self.seconds = 0.0  # of the steps, and of writing them down

    def _step(self) -> None:
        begin, scheduler = time.perf_counter(), self._scheduler
        running, waiting = list(scheduler.running), list(scheduler.waiting)
        parked = {session: len(ids) for session, (ids, _) in scheduler.parked.items()}
        start = time.perf_counter()
        super()._step()
        seconds = time.perf_counter() - start
        admitted = waiting[: len(waiting) - self.num_waiting]
        fresh = {one.prompt_ids for one in admitted if one.session not in parked}
        later = [len(one.prompt_ids) - parked[one.session] for one in admitted if one.session in parked]
        rows, context = [*running, *admitted], sum(len(one.cached_ids) for one in (*running, *admitted))
        new_tokens = sum(map(len, fresh)) + sum(later)
        self.steps.append((seconds, (1.0, len(rows), context, float(bool(admitted)), new_tokens)))
        self.seconds += time.perf_counter() - begin


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A small step: its seconds by stage, and what it did."""

    stages: dict[str, float]  # as of the loop; and "turns", of the generation what passes outside of the engine's steps
    size: Size
    num_turns: int
    max_tokens: int  # of a completion
    groups: tuple[Group, ...]
    tokens: int  # of all rows, prompts once for a group
    num_rows: int
    num_trained: int  # rows with a gradient by the real rewards

    @property
    def num_episodes(self) -> int:
        return sum(len(group.episodes) for group in self.groups)

    @property
    def num_sampled(self) -> int:
        return sum(len(t.completion.token_ids) for group in self.groups for one in group.episodes for t in one.turns)


class Bench:
    """The parts of a run, and what they took."""

    def __init__(self, setup: OpenRun, run: TrainingRun, slots: int) -> None:
        self.setup, self.run, self.slots, self.samples = setup, run, slots, list[Sample]()
        self.model: Any = run.trainer.policy.model
        self.engine = TimedEngine(self.model, slots)
        self.number, self.episode_bytes = 0, 0.0
        self.took: dict[Size, float] = {}  # seconds
        self.last: tuple[Sample, TokenBatch]

    def source(self, engine: LocalEngine, group_size: int, max_tokens: int) -> RolloutSource:
        """The run's, of other sizes and on another engine."""
        source = self.run.rollouts.source
        changed = {"group_size": group_size, "max_completion_tokens": max_tokens}
        model, settings = replace(source.model, engine=engine), source.settings.model_copy(update=changed)
        return replace(source, model=model, settings=settings)

    def step(self, num_groups: int, group_size: int, max_tokens: int) -> tuple[Sample, TokenBatch]:
        """Sample, score and train on the first examples, as the loop does. Also returns the batch."""
        clock, run, inside = Clock(), self.run, self.engine.seconds
        self.number += 1
        source = self.source(self.engine, group_size, max_tokens)
        with clock("generation"):
            groups = tuple(run.rollouts.run(source.sample(range(num_groups), step=0)))
        batch = to_batch(groups)
        with clock("scoring"):
            batch = run.trainer.score(batch, groups)
        with clock("advantages"):
            batch = run.objective.advantages(batch)
        num_trained = int(run.objective.has_gradient(batch).sum())
        drawn = torch.rand(int(batch.episodes.max()) + 1)[batch.episodes]
        batch = run.objective.advantages(replace(batch, rewards=drawn, valid=torch.ones_like(batch.valid)))
        with clock("update"):
            metrics, batch = run.trainer.update(batch, 0)
        with clock("sync"):
            self.engine.load_weights(0)
        with clock("records"):
            metrics |= run.recorder.rollouts(self.number, SampledGroups(groups=groups, num_refilled=0), batch)
            run.recorder.log(self.number, metrics)
        if (file := rollouts_path(self.setup.folder.rollouts, self.number)).exists():
            kept = groups[: self.setup.config.tracker.rollouts_max_groups]
            self.episode_bytes = file.stat().st_size / sum(len(group.episodes) for group in kept)
        prompts = dict(zip(batch.groups.tolist(), batch.prompt_lengths.tolist(), strict=True))
        sample = Sample(
            stages=clock.stages
            | {
                "turns": clock.stages["generation"] - self.engine.seconds + inside,
                "other": clock.stages["advantages"] + clock.stages["records"],
            },
            size=(num_groups, group_size, max_tokens),
            num_turns=sum(len(episode.turns) for group in groups for episode in group.episodes),
            max_tokens=max_tokens,
            groups=groups,
            tokens=int((batch.lengths - batch.prompt_lengths).sum()) + sum(prompts.values()),
            num_rows=len(batch.ids),
            num_trained=num_trained,
        )
        return sample, batch

    def measure(self, seconds: float) -> float:
        """Steps of growing size, as far as there is time; returns the speed of two stages beside each other.

        First the run's own batch, of short completions: what a completion costs beside others is not what it costs
        alone. Then longer ones in that batch, and where there is no time for them, in one of two. The largest are made
        again. The first step fills buffers and does not count.
        """
        wanted, begin = self.setup.config.rollout, time.perf_counter()
        limits = (wanted.prompts_per_step, wanted.group_size, wanted.max_completion_tokens)
        few: Size = (1, min(2, limits[1]), min(FIRST_TOKENS, limits[2]))
        self.step(*few)
        self.engine.steps.clear()
        sizes: list[Size] = [few]
        took = self._grow(sizes, [few], 0.0, math.inf)
        took = self._grow(sizes, larger(few, (1, 0), limits), took, begin + FOR_THE_BATCH * seconds)
        self._grow(sizes, larger(sizes[-1], (2,), limits), took, begin + FOR_LENGTHS * seconds)
        if sizes[-1][2] < limits[2]:
            self._grow([], larger((*few[:2], sizes[-1][2]), (2,), limits), 0.0, begin + seconds)
        for size in MOST_REPEATS * sizes[: -min(4, len(sizes)) : -1]:
            if time.perf_counter() + 1.5 * self.took[size] > begin + seconds:
                break
            self._grow([], [size], 0.0, math.inf)
        return self._beside(*self.last)

    def _grow(self, sizes: list[Size], wanted: Iterable[Size], took: float, until: float) -> float:
        """Make steps of these sizes, the next of which may take twice as long as the one before, or a little more;
        returns the seconds of the last."""
        for size in wanted:
            begin = time.perf_counter()
            if begin + 3 * took > until:
                break
            self.last = self.step(*size)
            self.samples.append(self.last[0])
            self.took[size] = took = time.perf_counter() - begin
            sizes.append(size)
        return took

    def _beside(self, alone: Sample, batch: TokenBatch) -> float:
        """The speed of sampling and training while both go on, from the last step's work done at once: with u < g
        seconds alone and speed s together u / s + g - u. One half, as on a busy device, where that was not tried."""
        if self.model.device.type != "cpu" or sum(p.nbytes for p in self.model.parameters()) > MOST_COPIED:
            return 0.5
        engine = TimedEngine(copy.deepcopy(self.model), self.slots)
        source = self.source(engine, len(alone.groups[0].episodes), alone.max_tokens)
        generation, update = alone.stages["generation"], alone.stages["update"]
        repeats = max(1, round(generation / update))
        with Background(num_threads=torch.get_num_threads()) as thread:
            thread.run(source.sample(range(1), step=0))
            begin = time.perf_counter()
            wait = thread.start(source.sample(range(len(alone.groups)), step=0))
            for _ in range(repeats):
                self.run.trainer.update(batch, 0)
            wait()
            together = time.perf_counter() - begin
        short, long = sorted((generation, repeats * update))
        return min(1.0, max(0.5, short / max(1e-9, together - long + short)))

    def costs(self) -> Costs:
        """Lines through everything that was timed."""
        samples, algorithm = self.samples, self.setup.config.algorithm

        def of(stage: str, amount: Callable[[Sample], float]) -> list[float]:
            return robust_line([(1.0, amount(one)) for one in samples], [one.stages[stage] for one in samples])

        seconds, inputs = zip(*self.engine.steps, strict=True)
        scoring, scored_token = of("scoring", lambda one: one.tokens)
        updates, trained_token = of("update", lambda one: algorithm.num_epochs * one.tokens)
        other, episode = of("other", lambda one: one.num_episodes)
        start, turn = of("turns", lambda one: one.num_turns)
        return Costs(
            **dict(zip(("step", "row", "context", "admission", "prompt_token"), line(inputs, seconds), strict=True)),
            turn=turn,
            scoring=scoring,
            scored_token=scored_token,
            update=updates / (algorithm.num_epochs * algorithm.num_minibatches),
            trained_token=trained_token,
            sync=fmean(one.stages["sync"] for one in samples),
            other=other + start,
            episode=episode,
        )

    def workload(self, notes: list[str]) -> dict[str, Any]:
        """Lengths and the share of trained rows, from the sample with most tokens."""
        rollout = self.setup.config.rollout
        last = max(self.samples, key=lambda one: one.num_sampled)
        turns, lengths = self._lengths(last, notes)
        episodes = [episode for group in last.groups for episode in group.episodes]
        steps = [(a, b) for one in episodes for a, b in pairwise(one.turns)]
        replies = [len(b.prompt_ids) - len(a.prompt_ids) - len(a.completion.token_ids) for a, b in steps]
        objective = self.run.objective
        of_rewards = objective.algorithm.compares_groups and not (objective.coefs or objective.reads_more)
        return {
            "episodes": tuple(turns),
            "lengths": lengths,
            "noise": noise([(one.size, sum(one.stages[name] for name in STAGES)) for one in self.samples]),
            "prompt_tokens": fmean(len(one.turns[0].prompt_ids) for one in episodes),
            "reply_tokens": fmean(replies) if replies else 0.0,
            "trained_share": share(last.num_trained, last.num_rows, of_rewards * rollout.group_size),
        }

    def _lengths(self, sample: Sample, notes: list[str]) -> tuple[list[tuple[int, ...]], tuple[float, float]]:
        """Tokens of the turns of episodes, and factors by which their mean may be off (two standard errors)."""
        longest = self.setup.config.rollout.max_completion_tokens
        episodes = [episode for group in sample.groups for episode in group.episodes]
        turns = [tuple(len(turn.completion.token_ids) for turn in one.turns) for one in episodes]
        tokens = [sum(one) for one in turns]
        num_ended = sum(one.stop_reason is not StopReason.LENGTH for one in episodes)
        if sample.max_tokens == longest or num_ended == len(episodes):
            error = 2 * pstdev(tokens) / (len(tokens) ** 0.5 * fmean(tokens))
            return turns, (max(0.1, 1 - error), 1 + error)
        notes.append(
            f"lengths are extrapolated from {len(episodes)} completions cut at {sample.max_tokens} tokens, "
            f"{num_ended} of which had ended: give --mean-tokens if you know better"
        )
        error = 2 * (num_ended + 1) ** 0.5
        ends = (num_ended, num_ended + error, max(0.0, num_ended - error))
        likely, short, long = (exponential(count / sum(tokens), longest) for count in ends)
        mean = fmean(n for (n,) in likely)
        return likely, (fmean(n for (n,) in short) / mean, fmean(n for (n,) in long) / mean)


def measure(config: Config, *, gpus: int = 1, seconds: float = 10.0, functions: Functions | None = None) -> Measured:
    """Measure for about that long, after loading; longer where one small step takes longer. UserError as `train`."""
    config, notes = with_absolute_model(config), list[str]()
    with ExitStack() as stack:
        run = stack.enter_context(opened(_alone(config), functions))
        notes += run.tasks.check_training(config)
        check_demonstrations(config, run.tasks)
        policy = run.load_policy()
        set_threads(config, policy)
        # before the warm start: what that frees stays with the process
        chat, layout = make_chat(config, policy, run.tasks.own), choose_layout(policy)
        memory = plan_run(config, policy, chat, run.tasks.own, layout=layout, world=World(size=gpus))
        warm_start_s = 0.0
        if config.warm_start.enabled:
            warm = warm_seconds if config.model.from_scratch else tuned_seconds
            warm_start_s = warm(run, policy, WARM_START_SHARE * seconds, notes)
            seconds *= 1 - WARM_START_SHARE
        training = assemble(run, policy)
        stack.enter_context(training.rollouts)
        bench = Bench(run, training, memory.max_batch_size)
        beside = bench.measure(seconds)
        saved, trained = sizes_of(policy)
        on_cpu = policy.model.device.type == "cpu"
        return Measured(
            costs=bench.costs(),
            **bench.workload(notes),
            beside=beside,
            eval_examples=sum(len(examples_of(one, config.evaluation.limit)) for one in run.tasks.eval_sets),
            warm_start_s=warm_start_s,
            memory=memory.parts,
            saved_bytes=saved,
            trained_bytes=trained,
            episode_bytes=bench.episode_bytes,
            disk_bytes_s=_disk_speed(run.folder.root / "probe"),
            device=f"CPU, {torch.get_num_threads()} thread(s)" if on_cpu else device_name(policy.model.device),
            notes=tuple(notes),
        )


def _alone(config: Config) -> Config:
    """One process that reports nothing, samples by itself and trains in turns, and changes no weight."""
    trainer = {"strategy": "single", "world_size": None, "learning_rate": NO_STEP, "warmup_steps": 0}
    sections = {
        "trainer": config.trainer.model_copy(update=trainer),
        "rollout": config.rollout.model_copy(update={"max_staleness": 0}),
        "engine": LocalEngineSettings(max_batch_size=config.engine.max_batch_size),
    }
    return quiet(config.model_copy(update=sections))


def _disk_speed(file: Path) -> float:
    """Bytes a second, hashed and synced as checkpoints are."""
    content, begin = os.urandom(1 << 24), time.perf_counter()
    file.write_bytes(content)
    sync_file(file)
    hashlib.sha256(content).digest()
    return len(content) / (time.perf_counter() - begin)
