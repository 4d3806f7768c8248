"""Assembles a run: one function per component of the loop."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch

from rlvr.algorithms.objective import Objective
from rlvr.chat.rendering import Chat
from rlvr.config import Config
from rlvr.core.engine.base import Engine
from rlvr.core.episode import ChatCodec, ChatModel
from rlvr.core.executor import Background, Executor
from rlvr.core.loop import Recorder, TrainingRun
from rlvr.core.packing import Packing
from rlvr.core.rollout import RolloutSchedule, RolloutSource
from rlvr.core.trainer import Answers, LocalTeacher, RemoteTeacher, Trainer
from rlvr.errors import UserError
from rlvr.evaluation.players import LocalPlayer
from rlvr.evaluation.summary import combine
from rlvr.models.devices import in_bf16, line_columns
from rlvr.models.heads import use_float32_head
from rlvr.models.layout import choose_layout
from rlvr.models.loading import value_head
from rlvr.models.policy import HubPolicy
from rlvr.records.jsonl import MetricsFile
from rlvr.records.rollouts import cut_back
from rlvr.run.evaluate_sets import evaluate_all
from rlvr.run.late import late_grader
from rlvr.run.memory import agreed, plan_run
from rlvr.run.opened import OpenRun
from rlvr.run.policies import open_engine
from rlvr.run.ranks import note_of_rank
from rlvr.run.tasks import context_tokens, make_chat
from rlvr.run.teachers import teachers
from rlvr.samplers.base import Checked
from rlvr.scale.fsdp import make_parallel
from rlvr.tasks.base import Task
from rlvr.tasks.gold import all_gold_branches
from rlvr.tracking.console import Console
from rlvr.tracking.episodes import EpisodePrinter
from rlvr.tracking.recorder import FolderRecorder, SilentRecorder
from rlvr.tracking.trackers.fanout import Trackers
from rlvr.training.checkpoint import latest_checkpoint, load_checkpoint
from rlvr.training.memory import MemoryPlan
from rlvr.training.state import CheckpointSchedule
from rlvr.types import Episode, Example, GradedAnswer, Group


def assemble(run: OpenRun, policy: HubPolicy, trackers: Trackers | None = None) -> TrainingRun:
    """All components of the loop, restored from the last complete checkpoint if there is one."""
    config, world, task, note = run.config, run.world, run.tasks.own, run.console.note
    if config.model.head_dtype == "float32":
        use_float32_head(policy.model)
    chat, layout = make_chat(config, policy, task), choose_layout(policy)
    memory = agreed(plan_run(config, policy, chat, task, layout=layout, world=world), world)
    for line in memory.lines:
        note(line)
    engine = engine_of_run(run, policy, memory)
    if "values" in config.algorithm.columns():
        critic = value_head(policy.model.config.get_text_config().hidden_size).to(policy.model.device)
        policy = replace(policy, value_head=critic)
    rollouts = make_rollouts(run, policy, engine, chat)
    objective = Objective(
        algorithm=config.algorithm,
        max_completion_tokens=config.rollout.max_completion_tokens,
        temperature=config.rollout.temperature,
    )
    packing = Packing(layout=layout, max_tokens=memory.microbatch_tokens, columns=line_columns(policy.model), note=note)
    others = teachers(config, policy, memory.microbatch_tokens, note)
    answers = partial(all_gold_branches, run.tasks.own, chat)
    trainer = make_trainer(run, policy, objective, packing, others, answers)
    metrics_file = MetricsFile(run.folder.metrics)
    checkpoints = CheckpointSchedule(
        folder=run.folder.checkpoints,
        settings=config.trainer,
        policy=policy,
        trainer=trainer,
        rollouts=rollouts,
        headline=f"eval/{task.name}/{config.evaluation.headline}",
        before_save=metrics_file.sync,
        world=world,
    )
    start_step = restore(run, checkpoints, metrics_file, engine)
    if line := chat.note(task.train_example(0).messages):
        note(line)
    note(f"training in {trainer.precision} on {torch.get_num_threads()} thread(s)")
    return TrainingRun(
        start_step=start_step,
        max_steps=config.trainer.max_steps,
        evaluate_every=config.evaluation.every,
        rollouts=rollouts,
        objective=objective,
        trainer=trainer,
        evaluate=partial(evaluate, run, policy, engine, rollouts),
        recorder=make_recorder(run, chat, metrics_file, trackers),
        checkpoints=checkpoints,
    )


def engine_of_run(run: OpenRun, policy: HubPolicy, memory: MemoryPlan) -> Engine:
    """`open_engine`, with as many completions at a time as memory allows."""
    config, world, most = run.config, run.world, memory.max_batch_size if memory.samples_fewer else None
    note = note_of_rank(config, world, run.console.note)
    return open_engine(config, policy, run.folder.root, world, note, run.stopped, max_batch_size=most)


def make_rollouts(run: OpenRun, policy: HubPolicy, engine: Engine, chat: Chat) -> RolloutSchedule:
    """The rollout schedule of the run's task, in a background thread if rollouts may be stale."""
    config, background = run.config, run.config.rollout.max_staleness > 0
    model = ChatModel(engine=engine, chat=chat, max_context_tokens=_context(policy, engine))
    late = late_grader(config, policy, chat, run.tasks.own, model.max_context_tokens)
    return RolloutSchedule(
        source=RolloutSource(task=run.tasks.own, model=model, settings=config.rollout, seed=config.seed),
        executor=Background(num_threads=torch.get_num_threads()) if background else Executor(),
        prompts=Checked.started(config.sampler, run.tasks.own, config.seed),
        refills=config.rollout.refills(config.algorithm),
        max_error_share=config.reward.max_error_share,
        max_staleness=config.rollout.max_staleness,
        world=run.world,
        late=late.groups,
    )


def make_trainer(
    run: OpenRun,
    policy: HubPolicy,
    objective: Objective,
    packing: Packing,
    others: Mapping[str, LocalTeacher | RemoteTeacher] | None = None,
    answers: Answers | None = None,
) -> Trainer:
    """The trainer; it may shard the policy's weights, so make the engine first."""
    settings, world = run.config.trainer, run.world
    bf16 = world.first(in_bf16(settings.precision, policy.model))
    return Trainer(
        policy=policy,
        objective=objective,
        settings=settings,
        seed=run.config.seed,
        packing=packing,
        parallel=make_parallel(settings, world, bf16=bf16),
        teachers=others,
        answers=answers,
    )


def make_recorder(run: OpenRun, chat: Chat, metrics_file: MetricsFile, trackers: Trackers | None) -> Recorder:
    """Writes into the run folder on rank 0, nothing on other ranks."""
    task, root = run.tasks.own, run.folder.root
    if not run.world.is_first:
        return SilentRecorder(folder=root)
    return FolderRecorder(
        folder=root,
        metrics_file=metrics_file,
        console=run.console,
        settings=run.config.tracker,
        decode=chat.decode,
        printer=episode_printer(run.config, task, chat, run.console),
        trackers=trackers,
    )


def restore(run: OpenRun, checkpoints: CheckpointSchedule, metrics_file: MetricsFile, engine: Engine) -> int:
    """Restore the last complete checkpoint, or the start; later metrics and rollouts are cut off."""
    folder, world = run.folder, run.world
    latest = world.first(latest_checkpoint(folder.checkpoints) if world.is_first else None)
    if latest is None and folder.final.is_dir():
        raise UserError(f"{folder.root} has a final model but no checkpoint to go on from: choose another run_dir.")
    step = 0
    if latest is not None:
        checkpoint = load_checkpoint(latest, world)
        checkpoints.restore(checkpoint)
        step = checkpoint.step
    elif run.config.resume:
        run.console.note("no checkpoint was saved: the run starts again")
    if world.is_first:
        metrics_file.cut_back(step if step > 0 else -1)  # the loop writes line 0 again
        cut_back(folder.rollouts, step)
    engine.load_weights(step)
    return step


def evaluate(run: OpenRun, policy: HubPolicy, engine: Engine, rollouts: RolloutSchedule) -> dict[str, float]:
    """Metrics of all evaluation sets; those of a mix are also combined under its name."""
    config, tasks, context = run.config, run.tasks, _context(policy, engine)

    def player(task: Task) -> LocalPlayer:
        chat = make_chat(config, policy, task)
        late = late_grader(config, policy, chat, task, context)
        return LocalPlayer(engine=engine, chat=chat, max_context_tokens=context, late=late.episode)

    found = evaluate_all(config, tasks.eval_sets, player, run=rollouts.run, world=run.world)
    metrics = {name: value for result in found.values() for name, value in result.metrics.items()}
    parts = [found[part.name].metrics for part in tasks.own.eval_sets()]
    return metrics | (combine(tasks.own.name, parts) if tasks.own.name not in found else {})


def _context(policy: HubPolicy, engine: Engine) -> int:
    return min(context_tokens(policy), engine.max_context_tokens)  # a server's context may be shorter than the model's


def episode_printer(config: Config, task: Task, chat: ChatCodec, console: Console) -> EpisodePrinter | None:
    """Prints every episode of a debug run; None for other runs."""
    if not config.debug:
        return None

    async def graded(example: Example, episode: Episode) -> GradedAnswer:
        try:
            return await task.grade(example, episode.texts)
        except UserError as error:  # a metric need not support training episodes
            return GradedAnswer(answer=None, correct=False, failure=str(error))

    async def all_graded(group: Group) -> list[GradedAnswer]:
        return list(await asyncio.gather(*(graded(group.example, one) for one in group.episodes)))

    return EpisodePrinter(
        print=console.show,
        decode=chat.decode,
        weights=lambda group: _part_weights(config, group.example),
        grades=lambda group: asyncio.run(all_graded(group)),
    )


def _part_weights(config: Config, example: Example) -> Mapping[str, float]:
    """The weights of the reward parts for an example's task."""
    bundle = config.task.bundles.get(str(example.metadata.get("task")), config)
    return {name: part.weight for name, part in bundle.reward.parts.items()}
