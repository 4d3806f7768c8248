"""Makes a step of a run once more: restores the checkpoint before it as a resume does, and runs the loop up to it.

Everything is written into a temporary folder; the run's own is only read.
"""

import copy
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from rlvr.config import Config
from rlvr.core.errors import NonFiniteError
from rlvr.core.loop import TrainingRun
from rlvr.core.loop import train as run_loop
from rlvr.core.policy import Frozen
from rlvr.core.rollout import SampledGroups
from rlvr.core.trainer import Trainer
from rlvr.errors import UserError
from rlvr.places import check_one_run
from rlvr.records.jsonl import read_metrics
from rlvr.records.rollouts import rollout_lines, rollouts_path
from rlvr.run.assemble import assemble
from rlvr.run.opened import OpenRun, Stopped, never, opened, temporary_run
from rlvr.run.policies import set_threads
from rlvr.run.ranks import quiet
from rlvr.run.run_folder import RunFolder
from rlvr.run.sources import with_absolute_model
from rlvr.run.tasks import Tasks
from rlvr.run.tuning import started_policy
from rlvr.tasks.base import Functions
from rlvr.tracking.rollout_metrics import rollout_metrics
from rlvr.training.checkpoint import list_checkpoints
from rlvr.types import TokenBatch

Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What a run folder says about a step."""

    folder: RunFolder
    step: int
    metrics: Mapping[str, float]
    lines: Sequence[bytes]  # of its rollout file; empty without one
    checkpoint: Path | None  # None: the model before the first update


@dataclass(frozen=True, kw_only=True)
class TrainerState:
    """Weights and moments of a trainer, without its learning rate: each update sets it."""

    weights: Mapping[str, Tensor]
    moments: Mapping[int, Any]  # of the optimizer, by its number of the parameter
    copies: Mapping[int, Mapping[str, Tensor]]  # of the policy, which follow it, by their `refresh_every`

    @classmethod
    def of(cls, trainer: Trainer) -> Self:
        weights = {name: weight.detach().clone() for name, weight in trainer.policy.named_parameters()}
        copies = {every: copy.deepcopy(dict(one.weights())) for every, one in _moving(trainer).items()}
        return cls(weights=weights, moments=copy.deepcopy(trainer.optimizer.state_dict()["state"]), copies=copies)

    def restore(self, trainer: Trainer, step: int) -> None:
        """As before step `step`, counted from 1, is scored."""
        for name, weight in trainer.policy.named_parameters():
            weight.detach().copy_(self.weights[name])
        groups = trainer.optimizer.state_dict()["param_groups"]
        trainer.optimizer.load_state_dict({"state": copy.deepcopy(dict(self.moments)), "param_groups": groups})
        for every, one in _moving(trainer).items():
            for name, weight in one.weights().items():
                weight.detach().copy_(self.copies[every][name])
        trainer.refresh(step - 1)


def _moving(trainer: Trainer) -> dict[int, Frozen]:
    return {one.refresh_every: frozen for one, frozen in trainer.frozen.items() if one.refresh_every is not None}


@dataclass(kw_only=True)
class Repeated:
    """A step made once more, with the state before it and its batch, scored and with advantages.

    The loop's recorder and checkpoints: keeps what happens in the step, and writes nothing.
    """

    step: int
    opened: OpenRun
    run: TrainingRun
    on_progress: Progress
    made: int = 0  # updates
    before: TrainerState = field(init=False)
    metrics: Mapping[str, float] = field(init=False)
    sampled: SampledGroups = field(init=False)
    batch: TokenBatch = field(init=False)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.made, self.metrics = step, metrics
        self.on_progress(step, self.step)

    def rollouts(self, step: int, rollouts: SampledGroups, batch: TokenBatch) -> dict[str, float]:
        self.sampled, self.batch = rollouts, batch
        return rollout_metrics(rollouts.groups, rollouts.num_refilled, rollouts.num_dropped)

    def non_finite(self, step: int, batch: TokenBatch, error: NonFiniteError) -> Exception:
        return UserError(f"{error.what} of step {step} is not finite in the replay, and was in the run.")

    def save_if_due(self, step: int, metrics: Mapping[str, float], *, now: bool) -> None:
        if step == self.step - 1:
            self.before = TrainerState.of(self.run.trainer)


def find_step(source: Path, step: int) -> Recorded:
    """UserError if the folder lacks the step, or weights before it."""
    check_one_run(source)
    folder = RunFolder(root=source)
    for path in (folder.config, folder.metrics):
        if not path.is_file():
            raise UserError(f"{source} is no run folder to replay: it has no {path.name}.")
    rows = {int(row["step"]): row for row in read_metrics(folder.metrics)}
    if step not in rows or step == 0:
        made = max(rows, default=0)
        has = f"steps 1 to {made}" if made else "no step yet"
        raise UserError(f"{folder.metrics} has {has}, so there is no step {step} to replay.")
    saved = list_checkpoints(folder.checkpoints)
    checkpoint = next((path for number, path in reversed(saved.items()) if number < step), None)
    path = rollouts_path(folder.rollouts, step)
    try:
        lines = rollout_lines(path) if path.is_file() else []
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} is damaged ({error}): move it, and only metrics are compared.") from error
    return Recorded(
        folder=folder,
        step=step,
        metrics=rows[step],
        lines=lines,
        checkpoint=checkpoint,
    )


def check_replays(config: Config, recorded: Recorded) -> None:
    """UserError for a run whose steps depend on more than its weights and seeds, or that lacks its first weights."""
    reasons = {
        f"engine={config.engine.name}": not config.engine.in_process and "a server drew its tokens",
        f"trainer.strategy={config.trainer.strategy}": config.trainer.strategy != "single"
        and "several processes added up its gradient, in another order than one does",
        f"rollout.max_staleness={config.rollout.max_staleness}": config.rollout.max_staleness > 0
        and "time decided which weights drew a token",
    }
    for setting, reason in reasons.items():
        if reason:
            raise UserError(f"{recorded.folder.root} cannot be replayed number for number ({setting}): {reason}.")
    is_own = config.model.from_scratch or config.warm_start.enabled
    if recorded.checkpoint is None and is_own and not recorded.folder.warm_start.is_dir():
        raise UserError(
            f"{recorded.folder.root} has neither a checkpoint before step {recorded.step} nor warm_start/: its weights "
            "of then are lost."
        )


@contextmanager
def repeated(
    config: Config,
    recorded: Recorded,
    functions: Functions,
    on_progress: Progress,
    stopped: Stopped = never,
    on_open: Callable[[Tasks], None] = lambda tasks: None,
) -> Iterator[Repeated]:
    """The step, made once more from the nearest weights before it; `on_open` sees its tasks as the run began with them.
    UserError if stopped before."""
    config = quiet(with_absolute_model(config))
    with opened(config, functions, folder=linked(recorded)) as parts:
        run = assembled(parts, recorded)
        on_open(parts.tasks)
        made = Repeated(step=recorded.step, opened=parts, run=run, on_progress=on_progress, made=run.start_step)
        made.save_if_due(run.start_step, {}, now=False)
        evaluates = any(name.startswith("eval/") for name in recorded.metrics)

        def evaluate() -> dict[str, float]:
            return run.evaluate() if evaluates and made.made == recorded.step - 1 else {}

        watched = replace(run, recorder=made, checkpoints=made, evaluate=evaluate, evaluate_every=1)
        run_loop(watched, lambda: made.made == recorded.step or stopped())
        if made.made < recorded.step:
            raise UserError(f"stopped before step {recorded.step} was made.")
        yield made


@contextmanager
def linked(recorded: Recorded) -> Iterator[RunFolder]:
    """A folder with the run's start and the one checkpoint: what a resume looks for."""
    with temporary_run() as folder:
        if recorded.folder.warm_start.is_dir():
            folder.warm_start.symlink_to(recorded.folder.warm_start.resolve())
        if recorded.checkpoint is not None:
            folder.checkpoints.mkdir()
            (folder.checkpoints / recorded.checkpoint.name).symlink_to(recorded.checkpoint.resolve())
        yield folder


def assembled(parts: OpenRun, recorded: Recorded) -> TrainingRun:
    """The run's components, as a resume has them."""
    try:
        policy = started_policy(parts)
        assert policy is not None, "nothing stops it"
        set_threads(parts.config, policy)
        return assemble(parts, policy)
    except (UserError, OSError) as error:
        if recorded.checkpoint is not None and not recorded.checkpoint.is_dir():
            raise UserError(f"{recorded.checkpoint} was removed meanwhile, by its run: repeat the command.") from error
        raise
