"""Runs `rlvr train`."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rlvr.cli.signals import sentence
from rlvr.commands.train.summary import summary
from rlvr.config import Config
from rlvr.core.loop import train as run_loop
from rlvr.core.world import World
from rlvr.errors import UserError
from rlvr.models.policy import HubPolicy
from rlvr.printable import printable
from rlvr.records.files import ERROR, PRUNED
from rlvr.records.jsonl import read_metrics
from rlvr.run.assemble import assemble
from rlvr.run.auto import as_begun, decided
from rlvr.run.disk import disk_warnings
from rlvr.run.opened import OpenRun, Stopped, opened
from rlvr.run.policies import save_atomically, set_threads
from rlvr.run.ranks import any_stopped, check_shares, fail_together, shared_folder
from rlvr.run.run_folder import RunFolder, open_run_folder, write_config
from rlvr.run.sources import with_absolute_model
from rlvr.run.starts import write_start
from rlvr.run.teachers import check_teachers, check_tokens
from rlvr.run.tuning import check_demonstrations, started_policy
from rlvr.scale.launch import errors_once, open_world
from rlvr.settings import dumped
from rlvr.tasks.base import Functions
from rlvr.tracking.console import Console
from rlvr.tracking.trackers.fanout import Trackers


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    folder: Path
    num_steps: int
    finished: bool
    before: dict[str, float]  # metrics of the evaluation before the first update
    metrics: dict[str, float]  # of the last evaluation
    is_first: bool  # whether this is rank 0 of those that trained


def train(config: Config, stopped: Stopped = lambda: False, functions: Functions | None = None) -> TrainResult:
    """Run `rlvr train`: warm start, RL, evaluations, checkpoints, `final/`. Asks `stopped()` after every step.

    `functions` are objects given in Python that other processes cannot import. Raises UserError for errors the user can
    correct; everything is checked before anything is written and before runs/latest moves.
    """
    config = as_begun(with_absolute_model(config))
    with _noting_failure() as failing, ExitStack() as stack:
        with errors_once():
            world = stack.enter_context(open_world(config.trainer.strategy, wanted=config.trainer.world_size))
        stack.enter_context(fail_together(world))
        check_shares(config, world)
        config.tracker.check_installed()
        config.engine.check(None)
        check_teachers(config)
        parts = opened(config, functions, folder=_run_folder(config, world), world=world, stopped=stopped)
        run = stack.enter_context(parts)
        console = run.console
        for line in summary(config):
            console.note(line)
        if config.trainer.strategy != "single":
            console.note(f"processes: {world.size}, trainer.strategy={config.trainer.strategy}")
        for line in run.tasks.check_training(config):
            console.note(line)
        check_demonstrations(config, run.tasks)
        check_tokens(config)
        policy = None if config.model.from_scratch else run.load_policy()  # before anything is written
        trackers = stack.enter_context(_trackers(run))
        if world.is_first and not run.folder.metrics.exists():
            failing.add(run.folder.root)
        console.note(f"run folder: {run.folder.root}")
        all_stop = any_stopped(stopped, world, console.note)
        policy = started_policy(run, all_stop, policy)
        if policy is None:
            console.note("stopped in the warm start: nothing is saved, and a resumed run begins it again")
        num_steps = 0 if policy is None else _train(run, policy, trackers, all_stop, failing)
        rows = world.first(read_metrics(run.folder.metrics) if world.is_first and policy is not None else [])
        evaluations = [row for row in rows if any(name.startswith("eval/") for name in row)] or [{}]
        return TrainResult(
            folder=run.folder.root,
            num_steps=num_steps,
            finished=policy is not None and num_steps == config.trainer.max_steps,
            before=evaluations[0],
            metrics=evaluations[-1],
            is_first=world.is_first,
        )


def _train(run: OpenRun, policy: HubPolicy, trackers: Trackers, stopped: Stopped, failing: set[Path]) -> int:
    """Run the loop, then write `final/` and the report; returns the number of steps made.

    From here on the run's folder is among the `failing` ones; before, if it has no metrics: a refusal to go on changes
    nothing in it.
    """
    config, folder, console, world = run.config, run.folder, run.console, run.world
    for note in (*run.tasks.notes, *run.tasks.places):
        console.note(note)
    console.note(policy.trainable)
    for line in disk_warnings(config, policy, folder.root):
        console.note(line)
    set_threads(config, policy, world)
    config = decided(config, policy, world)
    training = assemble(replace(run, config=config), policy, trackers)
    if config.model.head_dtype == "float32" == training.trainer.precision and not config.engine.samples_in_half:
        console.note("model.head_dtype=float32 changes nothing here: float32 computes all the rest, too")
    if world.is_first:
        write_config(folder, config)
        write_start(folder.root, training.start_step, config, run.tasks)
    shown = dumped(config.model_copy(update={"run_dir": None, "resume": False}))
    trackers.begin(training.start_step + 1 if training.start_step else 0, shown)
    if world.is_first:
        for name in (ERROR, PRUNED):  # of an earlier start
            (folder.root / name).unlink(missing_ok=True)
        failing.add(folder.root)
    if training.start_step < training.max_steps and world.is_first:
        shutil.rmtree(folder.final, ignore_errors=True)  # of an earlier end of this run
    console.stage("training", training.max_steps, done=training.start_step)
    num_steps = run_loop(training, stopped)
    if config.debug:
        console.diagnose()
    finished = num_steps == training.max_steps
    if finished:
        save_atomically(partial(policy.save_final, writes=world.is_first), folder.final, writes=world.is_first)
    if world.is_first:
        _write_report(folder, console)
        if finished:
            _warn_if_flat(folder, console)
    trackers.end("finished" if finished else "killed")  # after the last write into the folder
    return num_steps


@contextmanager
def _run_folder(config: Config, world: World) -> Iterator[RunFolder]:
    with open_run_folder(config) if world.is_first else nullcontext() as own:
        root = shared_folder(own and own.root, world)
        yield own or RunFolder(root=root)


def _trackers(run: OpenRun) -> Trackers:
    """Those of rank 0; the other ranks report nothing."""
    config, tracker = run.config, run.config.tracker
    reporting = tracker if run.world.is_first else tracker.model_copy(update={"report_to": ()})
    return Trackers(reporting, run.folder.root, run.console.note, experiment=config.name)


@contextmanager
def _noting_failure() -> Iterator[set[Path]]:
    """Keep the sentence with which a run fails for `rlvr runs`, in the folder that the block adds to the set."""
    folders: set[Path] = set()
    try:
        yield folders
    except Exception as error:
        known = isinstance(error, UserError | OSError | MemoryError)
        said = sentence(error) if known else printable(f"{type(error).__name__}: {error}")
        with suppress(OSError):  # the disk may be what failed
            for folder in folders:
                (folder / ERROR).write_text(f"{said}\n", encoding="utf-8", errors="backslashreplace")
        raise


def _write_report(folder: RunFolder, console: Console) -> None:
    """Write `report.html` into the run folder. A failure is one line on the console: the run itself succeeded."""
    try:
        from rlvr.report.run import write_run_report

        console.note(f"report: {write_run_report([folder.root]).path}")
    except Exception as error:
        console.note(f"warning: no report was written ({error}); try again with: rlvr report {folder.root}")


def _warn_if_flat(folder: RunFolder, console: Console) -> None:
    """The likeliest cause of a flat curve, in a sentence or two. What cannot be judged ends no run."""
    try:
        from rlvr.trust.chain import warning

        if said := warning(folder.root):
            console.note(said)
    except Exception as error:
        console.note(f"warning: no diagnosis ({error}); try again with: rlvr diagnose {folder.root}")
