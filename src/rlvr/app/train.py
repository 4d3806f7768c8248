"""From a configuration to a finished run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from rlvr.app.debugging import episode_printer
from rlvr.app.engines import Sampler, check_engine, make_engine
from rlvr.app.evaluation import evaluate_all
from rlvr.app.memory import fitted, plan_run
from rlvr.app.plan import plan
from rlvr.app.policies import Setup, Stopped, save_atomically, scratch_policy, set_threads
from rlvr.app.ranks import agreed, check_shares, one_voice, own_voice, quiet, shared_folder
from rlvr.app.run_folder import RunFolder, open_run_folder
from rlvr.app.sources import with_absolute_model
from rlvr.app.tasks import context_tokens, make_chat, open_tasks
from rlvr.chat.rendering import Chat
from rlvr.config import Config
from rlvr.core.algorithms.objective import Objective
from rlvr.core.engine.base import Engine
from rlvr.core.episode import ChatModel
from rlvr.core.executor import Background, Inline
from rlvr.core.loop import Recorder, TrainingRun
from rlvr.core.loop import train as run_loop
from rlvr.core.rollout import RolloutSchedule, RolloutSource
from rlvr.core.trainer import Trainer
from rlvr.core.world import World, errors_once, open_world
from rlvr.errors import UserError
from rlvr.evaluation.players import LocalPlayer
from rlvr.evaluation.summary import combine
from rlvr.models.devices import choose_device, choose_products
from rlvr.models.loading import load_policy, value_head
from rlvr.models.policy import HubPolicy
from rlvr.settings import dumped
from rlvr.tasks.base import Task
from rlvr.tasks.settings import Functions
from rlvr.tracking.console import Console
from rlvr.tracking.jsonl import MetricsFile, read_metrics
from rlvr.tracking.rollouts import Reader, cut_back
from rlvr.tracking.trackers.fanout import Reported, Trackers
from rlvr.training.checkpoint import latest_checkpoint, load_checkpoint
from rlvr.training.layout import choose_layout
from rlvr.training.recorder import FolderRecorder, SilentRecorder
from rlvr.training.state import CheckpointSchedule


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """What became of a run."""

    folder: Path
    num_steps: int
    finished: bool
    before: dict[str, float]  # metrics of the evaluation before the first update
    metrics: dict[str, float]  # of the last evaluation
    is_first: bool  # whether this is rank 0 of those that trained


def train(config: Config, stopped: Stopped = lambda: False, functions: Functions | None = None) -> TrainResult:
    """Run `rlvr train`: warm start, RL, evaluations, checkpoints, `final/`. Asks `stopped()` after every step.

    `functions` are those that the configuration names but no other process could import. Raises UserError for
    everything that is the user's to mend.
    """
    with ExitStack() as stack:
        with errors_once():
            world = stack.enter_context(open_world(config.trainer.strategy, wanted=config.trainer.world_size))
        stack.enter_context(one_voice(world))
        check_shares(config, world)
        config.tracker.check_installed()
        check_engine(config)
        shown = config if world.is_first else quiet(config)
        console = stack.enter_context(_console(shown))
        for line in plan(config):
            console.note(line)
        if config.trainer.strategy != "single":
            console.note(f"processes: {world.size}, trainer.strategy={config.trainer.strategy}")
        config = with_absolute_model(config)
        tasks = stack.enter_context(open_tasks(config, config.model.family(), functions or {}))
        tasks.check_training()
        # first of all what may be refused: nothing is written, and runs/latest is not moved, before all of it is there
        device = choose_device(config.trainer.device)
        choose_products(device, config.trainer.precision)
        policy = None
        if config.model.pretrained:
            policy = load_policy(config.model.pretrained, seed=config.seed, device=device)
            tasks.fit(config, policy)
        folder = stack.enter_context(_open_folder(config, world))
        data = dumped(config.model_copy(update={"run_dir": None, "resume": False}))
        about = Reported(experiment=config.name, config=data)
        trackers = stack.enter_context(Trackers(shown.tracker, about, folder.root, console.note))
        setup = Setup(config=config, tasks=tasks, folder=folder, console=console, world=world, stopped=stopped)
        return _train(setup, policy, trackers)


def _train(setup: Setup, policy: HubPolicy | None, trackers: Trackers) -> TrainResult:
    config, folder, console, world = setup.config, setup.folder, setup.console, setup.world
    console.note(f"run folder: {folder.root}")
    all_stop = agreed(setup.stopped, world, console.note)
    policy = policy or scratch_policy(setup, all_stop)
    num_steps = 0
    if policy is not None:
        for note in setup.tasks.notes:
            console.note(note)
        console.note(policy.trainable)
        set_threads(config, policy, world)
        run = assemble(setup, policy, trackers)
        trackers.begin(run.start_step + 1 if run.start_step else 0)
        if run.start_step < run.max_steps and world.is_first:
            shutil.rmtree(folder.final, ignore_errors=True)  # of an earlier end: it is not this run's result any more
        console.stage("training", config.trainer.max_steps, done=run.start_step)
        num_steps = run_loop(run, all_stop)
        if config.debug:
            console.diagnose()
        if num_steps == config.trainer.max_steps:
            save = partial(policy.save_final, writes=world.is_first)
            save_atomically(save, folder.final, writes=world.is_first)
        if world.is_first:
            _write_report(folder, console)
        # behind all that writes into the folder
        trackers.end("finished" if num_steps == config.trainer.max_steps else "killed")
    evaluations = world.first(_evaluations(folder.metrics) if world.is_first and policy is not None else [])
    return TrainResult(
        folder=folder.root,
        num_steps=num_steps,
        finished=policy is not None and num_steps == config.trainer.max_steps,
        before=evaluations[0] if evaluations else {},
        metrics=evaluations[-1] if evaluations else {},
        is_first=world.is_first,
    )


@contextmanager
def _open_folder(config: Config, world: World) -> Iterator[RunFolder]:
    """The run's folder, which the first rank chooses and locks."""
    with open_run_folder(config) if world.is_first else nullcontext() as own:
        root = shared_folder(own and own.root, world)
        yield own or RunFolder(root=root)


def assemble(setup: Setup, policy: HubPolicy, trackers: Trackers) -> TrainingRun:
    """Everything the loop needs, at the state of the last complete checkpoint if there is one."""
    config, tasks, world, note = setup.config, setup.tasks, setup.world, setup.console.note
    chat, layout = make_chat(config, policy, tasks.own), choose_layout(policy)
    memory = plan_run(config, policy, chat, tasks.own, layout=layout, world=world)
    for line in memory.lines:
        note(line)
    setup = replace(setup, config=fitted(config, memory, world))
    config = setup.config
    engine = make_engine(config, policy, setup.folder.root, world, own_voice(config, world, note), setup.stopped)
    if "values" in config.algorithm.needs:
        critic = value_head(policy.model.config.get_text_config().hidden_size).to(policy.model.device)
        policy = replace(policy, value_head=critic)
    rollouts = _rollouts(setup, policy, engine, chat)
    objective = Objective(algorithm=config.algorithm, max_completion_tokens=config.rollout.max_completion_tokens)
    trainer = Trainer(
        policy=policy,
        objective=objective,
        settings=config.trainer,
        temperature=config.rollout.temperature,
        seed=config.seed,
        layout=layout,
        world=world,
        note=note,
    )
    metrics_file = MetricsFile(setup.folder.metrics)
    checkpoints = CheckpointSchedule(
        folder=setup.folder.checkpoints,
        settings=config.trainer,
        policy=policy,
        trainer=trainer,
        rollouts=rollouts,
        headline=f"eval/{tasks.own.name}/{config.evaluation.headline}",
        before_save=metrics_file.sync,
        world=world,
    )
    start_step = _restore(setup, checkpoints, metrics_file, engine)
    if line := chat.note(tasks.own.train_example(0).messages):
        note(line)
    note(f"training in {trainer.precision} on {torch.get_num_threads()} thread(s)")
    return TrainingRun(
        start_step=start_step,
        max_steps=config.trainer.max_steps,
        evaluate_every=config.evaluation.every,
        rollouts=rollouts,
        objective=objective,
        trainer=trainer,
        evaluate=partial(_evaluate, setup, policy, engine, rollouts),
        recorder=_recorder(setup, chat, metrics_file, trackers),
        checkpoints=checkpoints,
    )


def _context(policy: HubPolicy, engine: Sampler) -> int:
    return min(context_tokens(policy), engine.max_context_tokens)  # servers may have less room than the model


def _rollouts(setup: Setup, policy: HubPolicy, engine: Sampler, chat: Chat) -> RolloutSchedule:
    config, background = setup.config, setup.config.rollout.max_staleness > 0
    return RolloutSchedule(
        source=RolloutSource(
            task=setup.tasks.own,
            model=ChatModel(engine=engine, chat=chat, max_context_tokens=_context(policy, engine)),
            settings=config.rollout,
            seed=config.seed,
        ),
        executor=Background(num_threads=torch.get_num_threads()) if background else Inline(),
        refills=config.algorithm.refills,
        max_error_share=config.reward.max_error_share,
        max_staleness=config.rollout.max_staleness,
        world=setup.world,
    )


def _recorder(setup: Setup, chat: Chat, metrics_file: MetricsFile, trackers: Trackers) -> Recorder:
    config, task, root = setup.config, setup.tasks.own, setup.folder.root
    if not setup.world.is_first:
        return SilentRecorder(folder=root)
    return FolderRecorder(
        folder=root,
        metrics_file=metrics_file,
        console=setup.console,
        settings=config.tracker,
        reader=Reader(decode=chat.decode, parse=chat.parse, tools=lambda example: task.env(example).tools),
        printer=episode_printer(config, task, chat, setup.console),
        trackers=trackers,
    )


def _restore(setup: Setup, checkpoints: CheckpointSchedule, metrics_file: MetricsFile, engine: Engine) -> int:
    """Go back to the last complete checkpoint, or to the start; numbers and rollouts written after it are cut off."""
    folder, world = setup.folder, setup.world
    latest = world.first(latest_checkpoint(folder.checkpoints) if world.is_first else None)
    if latest is None and folder.final.is_dir():
        raise UserError(f"{folder.root} has a final model but no checkpoint to go on from: choose another run_dir.")
    step = 0
    if latest is not None:
        checkpoint = load_checkpoint(latest, world)
        checkpoints.restore(checkpoint)
        step = checkpoint.step
    if world.is_first:
        metrics_file.cut_back(step if step > 0 else -1)  # line 0 is written again: the loop starts with an evaluation
        cut_back(folder.rollouts, step)
    engine.load_weights(step)
    return step


def _evaluate(setup: Setup, policy: HubPolicy, engine: Sampler, rollouts: RolloutSchedule) -> dict[str, float]:
    """The metrics of all evaluation sets; those of a mix together under its own name."""
    config, tasks, context = setup.config, setup.tasks, _context(policy, engine)

    def player(task: Task) -> LocalPlayer:
        return LocalPlayer(engine=engine, chat=make_chat(config, policy, task), max_context_tokens=context)

    found = evaluate_all(config, tasks.eval_sets, player, run=rollouts.run, world=setup.world)
    metrics = {name: value for result in found.values() for name, value in result.metrics.items()}
    parts = [found[part.name].metrics for part in tasks.own.eval_sets()]
    return metrics | (combine(tasks.own.name, parts) if tasks.own.name not in found else {})


def _write_report(folder: RunFolder, console: Console) -> None:
    """`report.html` in the run folder. What goes wrong with it is one line on the console: the run itself is done."""
    try:
        from rlvr.report.run import write_run_report

        report = write_run_report([folder.root])
    except Exception as error:
        console.note(f"warning: no report was written ({error}); try again with: rlvr report {folder.root}")
    else:
        console.note(f"report: {report.path}")


def _evaluations(path: Path) -> list[dict[str, float]]:
    return [row for row in read_metrics(path) if any(name.startswith("eval/") for name in row)]


def _console(config: Config) -> Console:
    tracker, headline = config.tracker, config.evaluation.headline
    parts = [item for bundle in config.trained.values() for item in bundle.reward.parts.items()]
    penalties = frozenset(name for name, part in parts if part.is_penalty)
    return Console(tracker.console, tracker.log_every, config.trainer.max_steps, headline=headline, penalties=penalties)
