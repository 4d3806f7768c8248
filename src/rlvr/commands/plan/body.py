"""Predicts what a run will take: measured costs, the simulator, and the counts of the configuration."""

import math
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from rlvr.commands.plan.costs import Measured, measure
from rlvr.commands.plan.simulate import STAGES, Cluster, Costs, StepTimes, Workload, simulate
from rlvr.config import Config
from rlvr.config.compose import load_config, to_run_yaml
from rlvr.core.world import World
from rlvr.errors import UserError
from rlvr.run.disk import checkpoint_bytes, disk_of_models, num_saved
from rlvr.run.ranks import check_shares
from rlvr.tasks.base import Functions

SIMULATED = 100_000  # completions; more steps than these fill say little
BUSY = 0.5  # other work per core
LINK_BYTES_S = {"gpu": 25e9, "cpu": 0.5e9}
"""Assumed, not measured: bytes a second between two processes or machines."""
OWN_ERROR = 0.1  # standard deviation of the logarithm of predicted / measured (benchmarks/results/plan.md)
STRAGGLERS = 0.05  # assumed with several devices


@dataclass(frozen=True, kw_only=True)
class Machines:
    """`Machines(gpus=8, servers=4)`; without servers each GPU also samples."""

    gpus: int = 1
    servers: int = 0


@dataclass(frozen=True, kw_only=True)
class Prediction:
    step: StepTimes
    totals: dict[str, float]  # seconds of the run: warm start, steps, evaluations, checkpoints

    @property
    def total_s(self) -> float:
        return sum(self.totals.values())


@dataclass(frozen=True, kw_only=True)
class Plan:
    machines: Machines
    measured: Measured
    prediction: Prediction
    range_s: tuple[float, float]  # of the run, nearly always
    memory_bytes: int  # of a process, at its peak
    disk: dict[str, int]  # bytes by kind
    gains: tuple[tuple[str, float], ...]  # a change, and the share of the run's time that it saves; the best first
    notes: tuple[str, ...]

    @property
    def mean_tokens(self) -> float:
        """Sampled tokens of an episode."""
        return fmean(map(sum, self.measured.episodes))

    @property
    def bound_by(self) -> str:
        step = self.prediction.step
        return max(STAGES, key=lambda name: getattr(step, name))


def plan(
    config: Config,
    *,
    gpus: int | None = None,
    servers: int = 0,
    mean_tokens: float | None = None,
    seconds: float = 10.0,
    functions: Functions | None = None,
) -> Plan:
    """Measure this machine for about `seconds`, and predict the run on machines like it.

    `gpus`: None: trainer.world_size. `servers`: 0: those of engine.urls. `mean_tokens`: mean length of the completions
    of an episode; None: as the model's own completions are now. Raises UserError for errors that the user can correct.
    """
    urls = getattr(config.engine, "urls", ())
    machines = Machines(gpus=gpus or config.trainer.world_size or 1, servers=servers or len(urls))
    check_shares(config, World(size=machines.gpus))
    measured = measure(config, gpus=machines.gpus, seconds=seconds, functions=functions)
    if mean_tokens is not None:
        measured = _with_mean(measured, mean_tokens, config.rollout.max_completion_tokens)
    prediction = predict(config, measured, machines)
    changes = _changes(config, machines)
    totals = {name: predict(changed, measured, other).total_s for name, changed, other in changes}
    gains = {name: 1 - total / prediction.total_s for name, total in totals.items()}
    return Plan(
        machines=machines,
        measured=measured,
        prediction=prediction,
        range_s=_range(config, measured, machines),
        memory_bytes=sum(measured.memory.values()),
        disk=_disk(config, measured),
        gains=tuple(sorted(gains.items(), key=lambda item: -item[1])),
        notes=tuple(_notes(config, measured, machines)),
    )


def predict(config: Config, measured: Measured, machines: Machines) -> Prediction:
    """Seconds of a step and of the run."""
    rollout, algorithm, trainer = config.rollout, config.algorithm, config.trainer
    dead, extra = 1 - measured.trained_share, rollout.refills(algorithm) or 0
    work = Workload(
        prompts=round(rollout.prompts_per_step * sum(dead**n for n in range(extra + 1))),  # dead groups are replaced
        group_size=rollout.group_size,
        episodes=measured.episodes,
        prompt_tokens=measured.prompt_tokens,
        reply_tokens=measured.reply_tokens,
        epochs=algorithm.num_epochs,
        minibatches=algorithm.num_minibatches,
        trained_share=measured.trained_share,
        max_staleness=rollout.max_staleness,
    )
    cluster = Cluster(
        costs=_costs(config, measured, machines),
        slots=config.engine.max_batch_size,
        gpus=machines.gpus,
        servers=machines.servers,
        beside=measured.beside,
        stragglers=STRAGGLERS if machines.gpus + machines.servers > 1 else 0.0,
    )
    num_steps = max(3, min(trainer.max_steps, 16, SIMULATED // (work.prompts * work.group_size)))
    step = simulate(cluster, work, num_steps=num_steps)
    totals = {"warm start": measured.warm_start_s, "steps": trainer.max_steps * step.step}
    if (every := config.evaluation.every) is not None:
        draws = 1 + config.evaluation.samples_per_example
        asked = replace(work, prompts=measured.eval_examples, group_size=draws, max_staleness=0)
        seconds = simulate(cluster, asked, num_steps=1).generation
        totals["evaluations"] = (1 + -(-trainer.max_steps // every)) * seconds
    saved = checkpoint_bytes(measured.saved_bytes, measured.trained_bytes)
    totals["checkpoints"] = num_saved(config) * saved / measured.disk_bytes_s
    return Prediction(step=step, totals=totals)


def _range(config: Config, measured: Measured, machines: Machines) -> tuple[float, float]:
    """Seconds of the run with shorter and longer completions on a faster and slower machine, two deviations each."""
    spread, mean = math.hypot(OWN_ERROR, measured.noise), fmean(map(sum, measured.episodes))
    longest = config.rollout.max_completion_tokens
    short, long = (
        predict(config, _with_mean(measured, factor * mean, longest), machines).total_s for factor in measured.lengths
    )
    return short * math.exp(-2 * spread), long * math.exp(2 * spread)


def _costs(config: Config, measured: Measured, machines: Machines) -> Costs:
    """The measured costs, with what passes between several processes."""
    link = LINK_BYTES_S["cpu" if measured.device.startswith("CPU") else "gpu"]
    times = 3 if config.trainer.strategy == "fsdp2" else 2  # weights twice and gradients once; gradients there and back
    share = (machines.gpus - 1) / machines.gpus
    pushed = measured.saved_bytes / link if machines.servers else 0.0
    sync = measured.costs.sync + pushed
    return replace(measured.costs, exchange=times * share * measured.trained_bytes / link, sync=sync)


def _with_mean(measured: Measured, mean: float, longest: int) -> Measured:
    """The same distribution, stretched; no turn is longer than allowed."""
    factor = mean / fmean(map(sum, measured.episodes))
    turns = [tuple(max(1, min(longest, round(factor * n))) for n in one) for one in measured.episodes]
    return replace(measured, episodes=tuple(turns), lengths=(1.0, 1.0))


def _disk(config: Config, measured: Measured) -> dict[str, int]:
    tracker, rollout, steps = config.tracker, config.rollout, config.trainer.max_steps
    files = 0 if tracker.rollouts_every is None else 1 + steps // tracker.rollouts_every
    groups = min(rollout.prompts_per_step, tracker.rollouts_max_groups or rollout.prompts_per_step)
    episodes = files * groups * rollout.group_size
    of_models = disk_of_models(config, measured.saved_bytes, measured.trained_bytes)
    return {**of_models, "rollouts": round(episodes * measured.episode_bytes)}


def _changes(config: Config, machines: Machines) -> Iterator[tuple[str, Config, Machines]]:
    """What a user could change without changing what is learned, except by older tokens or fewer scores."""
    evaluation, trainer, slots = config.evaluation, config.trainer, config.engine.max_batch_size
    lines = [f"engine.max_batch_size={2 * slots}", f"engine.max_batch_size={-(-slots // 4)}"]
    if config.rollout.max_staleness == 0:
        asynchronous = "rollout.max_staleness=1"
        lines += [asynchronous, f"{asynchronous} algorithm.mismatch_correction=truncate"]
    if evaluation.every is not None and evaluation.every < trainer.max_steps:
        lines.append(f"evaluation.every={2 * evaluation.every}")
    if trainer.checkpoint_every is not None and trainer.checkpoint_every < trainer.max_steps:
        lines.append(f"trainer.checkpoint_every={2 * trainer.checkpoint_every}")
    with tempfile.TemporaryDirectory(prefix="rlvr-plan-") as folder:
        Path(folder, "config.yaml").write_text(to_run_yaml(config), encoding="utf-8")
        found = set[str]()
        for line in lines:
            try:
                changed = load_config(line.split(), config_name="config", config_dir=folder)
            except UserError:  # not for this run
                continue
            if line.split()[0] not in found:
                found.add(line.split()[0])
                yield line, changed, machines
    if config.rollout.prompts_per_step % (2 * machines.gpus) == 0:
        yield f"--gpus {2 * machines.gpus}", config, replace(machines, gpus=2 * machines.gpus)
    yield f"--servers {machines.servers + 1}", config, replace(machines, servers=machines.servers + 1)


def _notes(config: Config, measured: Measured, machines: Machines) -> Iterator[str]:
    yield from measured.notes
    load, cores = os.getloadavg()[0] - 1, os.cpu_count() or 1  # one of them is this process
    if load > BUSY * cores:
        yield f"the machine is busy (load {load + 1:.1f} on {cores} cores): times are those of now, longer than alone"
    share = measured.trained_share
    if share < 1:
        yield f"{share:.0%} of the rows move the gradient now; the update grows or shrinks with that share"
    if machines.servers:
        yield "a server is taken to be as fast as the local engine on this device"
    if machines.gpus + machines.servers > 1:
        link = LINK_BYTES_S["cpu" if measured.device.startswith("CPU") else "gpu"]
        yield f"assumed: {link / 1e9:g} GB/s between devices, speeds that vary by {STRAGGLERS:.0%}"
