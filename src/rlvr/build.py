"""The composition root: the only place that knows every component. A configuration comes in, a finished run comes out."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from rlvr.algorithms.algorithm import Algorithm
from rlvr.algorithms.table import make_algorithm
from rlvr.chat.rendering import Chat
from rlvr.config.schema import Config, PretrainedModel, ScratchModel
from rlvr.engines.local import LocalEngine
from rlvr.evaluation.evaluate import evaluate
from rlvr.models.loading import load_pretrained, value_head
from rlvr.models.policy import Policy
from rlvr.models.scratch import build_model, build_tokenizer
from rlvr.rollout.source import Refill, RolloutSource
from rlvr.tasks.rpn import RpnTask
from rlvr.tracking.console import Console
from rlvr.tracking.files import writing
from rlvr.tracking.jsonl import MetricsFile, read_metrics
from rlvr.tracking.rollouts import cut_back
from rlvr.training.checkpoint import (
    clean_leftovers,
    latest_checkpoint,
    load_checkpoint,
    replace_folder,
    temporary_folder,
)
from rlvr.training.layout import choose_layout
from rlvr.training.loop import Run
from rlvr.training.loop import train as run_loop
from rlvr.training.recorder import FolderRecorder
from rlvr.training.run_folder import RunFolder, open_run_folder
from rlvr.training.state import CheckpointSchedule
from rlvr.training.trainer import Trainer
from rlvr.training.warm_start import warm_start

ONE_THREAD_BELOW = 500_000
"""Parameters below which one thread beats two: at 150k two are 1.5 times slower, at 900k they are 1.5 times faster."""

Stopped = Callable[[], bool]


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """What became of a run."""

    folder: Path
    num_steps: int
    finished: bool
    metrics: dict[str, float]  # of the last evaluation


def train(config: Config, stopped: Stopped = lambda: False) -> TrainResult:
    """Run `rlvr train`: warm start, RL, evaluations, checkpoints, `final/`. Asks `stopped()` after every step.

    Raises UserError for everything that is the user's to mend.
    """
    task = RpnTask(config.task, config.seed, config.reward)  # settings that contradict the task fail before anything is written
    with open_run_folder(config) as folder, _console(config) as console:
        console.note(f"run folder: {folder.root}")
        policy = _initial_policy(config, task, folder, console, stopped)
        if policy is None:
            return TrainResult(folder=folder.root, num_steps=0, finished=False, metrics={})
        run = assemble(config, task, policy, folder, console)
        console.stage("training", config.trainer.max_steps, done=run.start_step)
        num_steps = run_loop(run, stopped)
        finished = num_steps == config.trainer.max_steps
        if finished:
            _save_atomically(policy, folder.final)
        return TrainResult(
            folder=folder.root, num_steps=num_steps, finished=finished, metrics=_last_evaluation(folder.metrics)
        )


def assemble(config: Config, task: RpnTask, policy: Policy, folder: RunFolder, console: Console) -> Run:
    """Everything the loop needs, at the state of the last complete checkpoint if there is one."""
    context = _context_tokens(config, policy)
    chat = Chat(policy.tokenizer, task.stop_words, model=policy.model)
    engine = LocalEngine(policy.model, max_batch_size=config.engine.max_batch_size, max_context_tokens=context)
    algorithm = make_algorithm(config.algorithm, max_completion_tokens=config.rollout.max_completion_tokens)
    if "values" in algorithm.needs:
        policy = replace(policy, value_head=value_head(policy.model.config.hidden_size))
    rollouts = RolloutSource(
        task=task,
        engine=engine,
        chat=chat,
        settings=config.rollout,
        refill=_refill(algorithm),
        seed=config.seed,
        max_context_tokens=context,
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
        headline=f"eval/{task.name}/accuracy",
        before_save=metrics_file.sync,
    )
    start_step = _restore(folder, checkpoints, metrics_file, engine)
    return Run(
        start_step=start_step,
        max_steps=config.trainer.max_steps,
        evaluate_every=config.evaluation.every,
        rollouts=rollouts,
        engine=engine,
        algorithm=algorithm,
        trainer=trainer,
        evaluate=partial(_evaluate, config, task, engine, chat, context),
        recorder=FolderRecorder(
            folder=folder.root,
            metrics_file=metrics_file,
            console=console,
            settings=config.tracker,
            decode=chat.decode,
        ),
        checkpoints=checkpoints,
    )


def _restore(
    folder: RunFolder, checkpoints: CheckpointSchedule, metrics_file: MetricsFile, engine: LocalEngine
) -> int:
    """Go back to the last complete checkpoint, or to the start; numbers and rollouts written after it are cut off."""
    latest = latest_checkpoint(folder.checkpoints)
    step = 0
    if latest is not None:
        checkpoint = load_checkpoint(latest)
        checkpoints.restore(checkpoint)
        step = checkpoint.step
    metrics_file.cut_back(step if latest is not None else -1)
    cut_back(folder.rollouts, step)
    engine.load_weights(step)
    return step


async def _evaluate(config: Config, task: RpnTask, engine: LocalEngine, chat: Chat, context: int) -> dict[str, float]:
    result = await evaluate(
        engine,
        chat,
        task,
        num_examples=config.evaluation.num_examples,
        samples_per_example=config.evaluation.samples_per_example,
        max_completion_tokens=config.rollout.max_completion_tokens,
        max_context_tokens=context,
        temperature=config.rollout.temperature,
    )
    return dict(result.metrics)


def _initial_policy(
    config: Config, task: RpnTask, folder: RunFolder, console: Console, stopped: Stopped
) -> Policy | None:
    """The policy RL starts from; None if the warm start was stopped, which leaves nothing to save."""
    if isinstance(config.model, PretrainedModel):
        policy = _load(config.model)
        _set_threads(config, policy)
        return policy
    clean_leftovers(folder.root)
    if folder.warm_start.is_dir():
        model, tokenizer = load_pretrained(str(folder.warm_start))
        policy = Policy(model=model, tokenizer=tokenizer)
        _set_threads(config, policy)
        return policy
    return _make_policy(config, config.model, task, folder, console, stopped)


def _make_policy(
    config: Config, settings: ScratchModel, task: RpnTask, folder: RunFolder, console: Console, stopped: Stopped
) -> Policy | None:
    tokenizer = build_tokenizer(task.vocabulary)
    policy = Policy(model=build_model(settings, tokenizer, config.seed).eval(), tokenizer=tokenizer)
    _set_threads(config, policy)
    if config.warm_start.enabled:
        console.stage("warm start", config.warm_start.num_steps)
        progress = partial(_show_loss, console)
        if not warm_start(policy, task, config.warm_start, progress=progress, stopped=stopped):
            return None
    _save_atomically(policy, folder.warm_start)
    return policy


def _show_loss(console: Console, step: int, loss: float) -> None:
    console.advance(step, {"loss": loss})


def _load(settings: PretrainedModel) -> Policy:
    model, tokenizer = load_pretrained(
        settings.name_or_path,
        dtype=getattr(torch, settings.dtype),
        trust_remote_code=settings.trust_remote_code,
    )
    return Policy(model=model, tokenizer=tokenizer)


def _set_threads(config: Config, policy: Policy) -> None:
    automatic = 1 if policy.num_parameters < ONE_THREAD_BELOW else os.cpu_count() or 1
    torch.set_num_threads(config.trainer.num_threads or automatic)


def _context_tokens(config: Config, policy: Policy) -> int:
    if isinstance(config.model, ScratchModel):
        return config.model.max_context_tokens
    return int(policy.model.config.max_position_embeddings)


def _refill(algorithm: Algorithm) -> Refill | None:
    if not algorithm.dynamic_sampling:
        return None
    return Refill(is_dead=algorithm.is_dead_group, max_rounds=algorithm.max_refills)


def _save_atomically(policy: Policy, final: Path) -> None:
    temporary = temporary_folder(final)
    with writing(final):
        temporary.mkdir(parents=True)
        policy.save(temporary)
        replace_folder(temporary, final)


def _last_evaluation(path: Path) -> dict[str, float]:
    evaluated = [row for row in read_metrics(path) if any(name.startswith("eval/") for name in row)]
    return evaluated[-1] if evaluated else {}


def _console(config: Config) -> Console:
    return Console(config.tracker.console, config.tracker.log_every, config.trainer.max_steps)
