"""From a configuration to a finished run."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from rlvr.algorithms.algorithm import Algorithm
from rlvr.algorithms.table import make_algorithm
from rlvr.build.chats import make_chat
from rlvr.build.debugging import episode_printer
from rlvr.build.engines import make_engine
from rlvr.build.evaluation import evaluate_all
from rlvr.build.policies import (
    Stopped,
    context_tokens,
    fit,
    initial_policy,
    save_atomically,
    set_threads,
    with_absolute_model,
)
from rlvr.build.tasks import Functions, Tasks, family_of, open_tasks
from rlvr.config.penalties import penalties
from rlvr.config.plan import plan
from rlvr.config.schema import Config, PretrainedModel
from rlvr.engines.base import Engine
from rlvr.errors import UserError
from rlvr.evaluation.summary import combine
from rlvr.models.loading import load_policy, value_head
from rlvr.models.policy import Policy
from rlvr.rollout.executor import Background, Inline
from rlvr.rollout.schedule import Refill, RolloutSchedule
from rlvr.rollout.source import RolloutSource
from rlvr.tracking.console import Console
from rlvr.tracking.jsonl import MetricsFile, read_metrics
from rlvr.tracking.rollouts import Reader, cut_back
from rlvr.tracking.trackers.backend import check_installed
from rlvr.tracking.trackers.fanout import Trackers
from rlvr.training.checkpoint import latest_checkpoint, load_checkpoint
from rlvr.training.layout import choose_layout
from rlvr.training.loop import Run
from rlvr.training.loop import train as run_loop
from rlvr.training.recorder import FolderRecorder
from rlvr.training.run_folder import RunFolder, open_run_folder
from rlvr.training.state import CheckpointSchedule
from rlvr.training.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """What became of a run."""

    folder: Path
    num_steps: int
    finished: bool
    before: dict[str, float]  # metrics of the evaluation before the first update
    metrics: dict[str, float]  # of the last evaluation


def train(config: Config, stopped: Stopped = lambda: False, functions: Functions | None = None) -> TrainResult:
    """Run `rlvr train`: warm start, RL, evaluations, checkpoints, `final/`. Asks `stopped()` after every step.

    `functions` are those that the configuration names but no other process could import. Raises UserError for
    everything that is the user's to mend.
    """
    check_installed(config.tracker.report_to)
    with _console(config) as console:
        for line in plan(config):
            console.note(line)
        config = with_absolute_model(config)
        with open_tasks(config, family_of(config), functions or {}) as tasks:
            tasks.check_training()
            return _train(config, tasks, console, stopped)


def _train(config: Config, tasks: Tasks, console: Console, stopped: Stopped) -> TrainResult:
    # first of all what may be refused: nothing is written, and runs/latest is not moved, before all of it is there
    pretrained = load_policy(config.model, seed=config.seed) if isinstance(config.model, PretrainedModel) else None
    if pretrained is not None:
        fit(config, tasks, pretrained)
    with open_run_folder(config) as folder, Trackers(config, folder.root, console.note) as trackers:
        console.note(f"run folder: {folder.root}")
        policy = pretrained or initial_policy(config, tasks, folder, console, stopped)
        if policy is None:
            return TrainResult(folder=folder.root, num_steps=0, finished=False, before={}, metrics={})
        for note in tasks.notes:
            console.note(note)
        console.note(policy.trainable)
        set_threads(config, policy)
        run = assemble(config, tasks, policy, folder, console, trackers)
        trackers.begin(run.start_step + 1 if run.start_step else 0)
        if run.start_step < run.max_steps:
            shutil.rmtree(folder.final, ignore_errors=True)  # of an earlier end: it is not this run's result any more
        console.stage("training", config.trainer.max_steps, done=run.start_step)
        num_steps = run_loop(run, stopped)
        if config.debug:
            console.diagnose()
        finished = num_steps == config.trainer.max_steps
        if finished:
            save_atomically(policy.save_final, folder.final)
        _write_report(folder, console)
        trackers.end("finished" if finished else "killed")  # behind all that writes into the folder
        evaluations = _evaluations(folder.metrics)
        return TrainResult(
            folder=folder.root,
            num_steps=num_steps,
            finished=finished,
            before=evaluations[0],
            metrics=evaluations[-1],
        )


def assemble(
    config: Config, tasks: Tasks, policy: Policy, folder: RunFolder, console: Console, trackers: Trackers
) -> Run:
    """Everything the loop needs, at the state of the last complete checkpoint if there is one."""
    task = tasks.own
    context = context_tokens(policy)
    chat = make_chat(config, policy, task)
    engine = make_engine(config, policy, context, folder.root)
    algorithm = make_algorithm(config.algorithm, max_completion_tokens=config.rollout.max_completion_tokens)
    if "values" in algorithm.needs:
        policy = replace(policy, value_head=value_head(policy.model.config.get_text_config().hidden_size))
    background = config.rollout.max_staleness > 0
    rollouts = RolloutSchedule(
        source=RolloutSource(
            task=task, engine=engine, chat=chat, settings=config.rollout, seed=config.seed, max_context_tokens=context
        ),
        engine=engine,
        executor=Background(num_threads=torch.get_num_threads()) if background else Inline(),
        refill=_refill(algorithm),
        max_error_share=config.reward.max_error_share,
        max_staleness=config.rollout.max_staleness,
    )
    trainer = Trainer(
        policy=policy,
        algorithm=algorithm,
        settings=config.trainer,
        temperature=config.rollout.temperature,
        seed=config.seed,
        layout=choose_layout(policy),
    )
    metrics_file = MetricsFile(folder.metrics)
    checkpoints = CheckpointSchedule(
        folder=folder.checkpoints,
        settings=config.trainer,
        policy=policy,
        trainer=trainer,
        rollouts=rollouts,
        headline=f"eval/{task.name}/{config.evaluation.headline}",
        before_save=metrics_file.sync,
    )
    start_step = _restore(folder, checkpoints, metrics_file, engine)
    if note := chat.note(task.train_example(0).messages):
        console.note(note)
    console.note(f"training in {trainer.precision} on {torch.get_num_threads()} thread(s)")
    return Run(
        start_step=start_step,
        max_steps=config.trainer.max_steps,
        evaluate_every=config.evaluation.every,
        rollouts=rollouts,
        algorithm=algorithm,
        trainer=trainer,
        evaluate=partial(_evaluate, config, tasks, policy, engine, context),
        recorder=FolderRecorder(
            folder=folder.root,
            metrics_file=metrics_file,
            console=console,
            settings=config.tracker,
            reader=Reader(decode=chat.decode, parse=chat.parse, tools=lambda example: task.env(example).tools),
            printer=episode_printer(config, task, chat, console),
            trackers=trackers,
        ),
        checkpoints=checkpoints,
        train_on_tool_tokens=config.algorithm.train_on_tool_tokens,
    )


def _restore(folder: RunFolder, checkpoints: CheckpointSchedule, metrics_file: MetricsFile, engine: Engine) -> int:
    """Go back to the last complete checkpoint, or to the start; numbers and rollouts written after it are cut off."""
    latest = latest_checkpoint(folder.checkpoints)
    if latest is None and folder.final.is_dir():
        raise UserError(f"{folder.root} has a final model but no checkpoint to go on from: choose another run_dir.")
    step = 0
    if latest is not None:
        checkpoint = load_checkpoint(latest)
        checkpoints.restore(checkpoint)
        step = checkpoint.step
    metrics_file.cut_back(step if step > 0 else -1)  # line 0 is written again: the loop starts with an evaluation
    cut_back(folder.rollouts, step)
    engine.load_weights(step)
    return step


async def _evaluate(config: Config, tasks: Tasks, policy: Policy, engine: Engine, context: int) -> dict[str, float]:
    """The metrics of all evaluation sets; those of a mix together under its own name."""
    found = await evaluate_all(config, tasks.eval_sets, policy, engine, context)
    metrics = {name: value for result in found.values() for name, value in result.metrics.items()}
    parts = [found[part.name].metrics for part in tasks.own.eval_sets()]
    return metrics | (combine(tasks.own.name, parts) if tasks.own.name not in found else {})


def _refill(algorithm: Algorithm) -> Refill | None:
    if not algorithm.dynamic_sampling:
        return None
    return Refill(is_dead=algorithm.is_dead_group, max_rounds=algorithm.max_refills)


def _write_report(folder: RunFolder, console: Console) -> None:
    """`report.html` in the run folder. What goes wrong with it is one line on the console: the run itself is done."""
    try:
        from rlvr.report.files import write_run_report

        report = write_run_report([folder.root])
    except Exception as error:
        console.note(f"warning: no report was written ({error}); try again with: rlvr report {folder.root}")
    else:
        console.note(f"report: {report.path}")


def _evaluations(path: Path) -> list[dict[str, float]]:
    return [row for row in read_metrics(path) if any(name.startswith("eval/") for name in row)]


def _console(config: Config) -> Console:
    tracker, headline = config.tracker, config.evaluation.headline
    return Console(
        tracker.console, tracker.log_every, config.trainer.max_steps, headline=headline, penalties=penalties(config)
    )
