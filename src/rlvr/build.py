"""The composition root: the only place that knows every component. A configuration comes in, a run comes out."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from rlvr.algorithms.algorithm import Algorithm
from rlvr.algorithms.table import make_algorithm
from rlvr.chat.rendering import Chat
from rlvr.config.compose import load_config
from rlvr.config.schema import Config, PretrainedModel, ScratchModel
from rlvr.engines.local import LocalEngine
from rlvr.errors import UserError
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
    list_checkpoints,
    load_checkpoint,
    replace_folder,
    temporary_folder,
    verify,
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
"""Parameters below which one thread beats two: in prototypes two were 1.5x slower at 150k and 1.5x faster at 900k."""

Stopped = Callable[[], bool]


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """What became of a run."""

    folder: Path
    num_steps: int
    finished: bool
    before: dict[str, float]  # metrics of the evaluation before the first update
    metrics: dict[str, float]  # of the last evaluation


def train(config: Config, stopped: Stopped = lambda: False) -> TrainResult:
    """Run `rlvr train`: warm start, RL, evaluations, checkpoints, `final/`. Asks `stopped()` after every step.

    Raises UserError for everything that is the user's to mend.
    """
    # first of all what may be refused: nothing is written, and runs/latest is not moved, before all of it is there
    task = RpnTask(config.task, config.seed, config.reward)
    config = _with_absolute_model(config)
    pretrained = _load(config.model) if isinstance(config.model, PretrainedModel) else None
    if pretrained is not None:
        Chat(pretrained.tokenizer, task.stop_words, model=pretrained.model).encode_prompt(
            task.train_example(0).messages
        )
    with open_run_folder(config) as folder, _console(config) as console:
        console.note(f"run folder: {folder.root}")
        policy = pretrained or _initial_policy(config, task, folder, console, stopped)
        if policy is None:
            return TrainResult(folder=folder.root, num_steps=0, finished=False, before={}, metrics={})
        _set_threads(config, policy)
        run = assemble(config, task, policy, folder, console)
        if run.start_step < run.max_steps:
            shutil.rmtree(folder.final, ignore_errors=True)  # of an earlier end: it is not this run's result any more
        console.stage("training", config.trainer.max_steps, done=run.start_step)
        num_steps = run_loop(run, stopped)
        finished = num_steps == config.trainer.max_steps
        if finished:
            _save_atomically(policy, folder.final)
        evaluations = _evaluations(folder.metrics)
        return TrainResult(
            folder=folder.root,
            num_steps=num_steps,
            finished=finished,
            before=evaluations[0],
            metrics=evaluations[-1],
        )


def assemble(config: Config, task: RpnTask, policy: Policy, folder: RunFolder, console: Console) -> Run:
    """Everything the loop needs, at the state of the last complete checkpoint if there is one."""
    context = _context_tokens(config, policy)
    chat = Chat(policy.tokenizer, task.stop_words, model=policy.model)
    engine = LocalEngine(policy.model, max_batch_size=config.engine.max_batch_size, max_context_tokens=context)
    algorithm = make_algorithm(config.algorithm, max_completion_tokens=config.rollout.max_completion_tokens)
    if "values" in algorithm.needs:
        policy = replace(policy, value_head=value_head(policy.model.config.get_text_config().hidden_size))
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
    console.note(f"training in {'bf16 autocast' if trainer.bf16 else 'float32'} on {torch.get_num_threads()} thread(s)")
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


def _restore(folder: RunFolder, checkpoints: CheckpointSchedule, metrics_file: MetricsFile, engine: LocalEngine) -> int:
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
        top_p=config.rollout.top_p,
        top_k=config.rollout.top_k,
        min_p=config.rollout.min_p,
    )
    return dict(result.metrics)


def _with_absolute_model(config: Config) -> Config:
    """A model folder by its full name: `runs/latest/final` and relative paths mean something else at a resume."""
    if not isinstance(config.model, PretrainedModel) or not Path(config.model.name_or_path).is_dir():
        return config
    model = config.model.model_copy(update={"name_or_path": str(Path(config.model.name_or_path).resolve())})
    return config.model_copy(update={"model": model})


def _initial_policy(
    config: Config, task: RpnTask, folder: RunFolder, console: Console, stopped: Stopped
) -> Policy | None:
    """The warm-started policy; None if the warm start was stopped, which leaves nothing to save."""
    assert isinstance(config.model, ScratchModel)
    clean_leftovers(folder.root)
    if folder.warm_start.is_dir():
        model, tokenizer = load_pretrained(str(folder.warm_start))
        return Policy(model=model, tokenizer=tokenizer)
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
        trust_remote_code=settings.trust_remote_code,
    )
    return Policy(model=model, tokenizer=tokenizer)


def _set_threads(config: Config, policy: Policy) -> None:
    automatic = 1 if policy.num_parameters < ONE_THREAD_BELOW else os.cpu_count() or 1
    torch.set_num_threads(config.trainer.num_threads or automatic)


def _context_tokens(config: Config, policy: Policy) -> int:
    if isinstance(config.model, ScratchModel):
        return config.model.max_context_tokens
    return int(policy.model.config.get_text_config().max_position_embeddings)


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


def _evaluations(path: Path) -> list[dict[str, float]]:
    return [row for row in read_metrics(path) if any(name.startswith("eval/") for name in row)]


def _console(config: Config) -> Console:
    return Console(config.tracker.console, config.tracker.log_every, config.trainer.max_steps)


# ----------------------------------------------------------------------------------------------------- inference


@dataclass(frozen=True, kw_only=True)
class Inference:
    """A model with the task and settings to try it on."""

    source: str  # the folder or Hub id that the weights came from
    config: Config
    task: RpnTask
    policy: Policy
    chat: Chat
    engine: LocalEngine
    max_context_tokens: int


def load_for_inference(model: str, overrides: Sequence[str], *, config_name: str | None = None) -> Inference:
    """A run folder, checkpoint, model folder or Hub id, ready to generate.

    The settings are those of the configuration `config_name`; without it those of the run that the model belongs to.

    Raises:
        UserError: there is no such model, it is damaged, or it belongs to no run and `config_name` is None.
    """
    root = run_of(Path(model))
    if config_name is not None:
        config = load_config(overrides, config_name=config_name)
    elif root is not None:
        config = load_config(overrides, config_name="config", config_dir=str(root))
    else:
        raise _no_task(model)
    task = RpnTask(config.task, config.seed, config.reward)
    source = _weights(Path(model), root)
    settings = config.model if isinstance(config.model, PretrainedModel) else None
    network, tokenizer = load_pretrained(
        source,
        trust_remote_code=settings.trust_remote_code if settings else False,
    )
    policy = Policy(model=network, tokenizer=tokenizer)
    _set_threads(config, policy)
    context = int(network.config.get_text_config().max_position_embeddings)
    return Inference(
        source=source,
        config=config,
        task=task,
        policy=policy,
        chat=Chat(tokenizer, task.stop_words, model=network),
        engine=LocalEngine(network, max_batch_size=config.engine.max_batch_size, max_context_tokens=context),
        max_context_tokens=context,
    )


def _no_task(model: str) -> UserError:
    if not Path(model).exists():
        return UserError(f"there is no folder {model}: name a run folder, or a Hub id with --task, e.g. --task rpn.")
    return UserError(f"{model} is no run folder and so has no task of its own: add --task, e.g. --task rpn.")


def run_of(path: Path) -> Path | None:
    """The run folder that `runs/x`, `runs/x/final`, `runs/x/warm_start` or `runs/x/checkpoints/step_000010` is in."""
    path = path.absolute()
    candidates = {path: True, path.parent: path.name in ("final", "warm_start")}
    candidates[path.parent.parent] = path.parent.name == "checkpoints"
    candidates[path.parent.parent.parent] = path.name == "model" and path.parent.parent.name == "checkpoints"
    return next((root for root, fits in candidates.items() if fits and (root / "config.yaml").is_file()), None)


def _weights(path: Path, root: Path | None) -> str:
    """The Hub-format folder (or Hub id) to load: `final/` of a run, or its newest checkpoint."""
    if root is not None and path.absolute() == root:
        if (root / "final").is_dir():
            return str(path / "final")
        checkpoints = list_checkpoints(path / "checkpoints")
        if not checkpoints:
            raise UserError(
                f"{path} has neither final/ nor a checkpoint yet: let the run go on, or use {path}/warm_start."
            )
        path = checkpoints[max(checkpoints)]
    if (path / "manifest.json").is_file():
        verify(path)
        return str(path / "model")
    is_folder_name = path.is_absolute() or len(path.parts) > 2 or (path.parent != Path() and path.parent.is_dir())
    if is_folder_name and not path.exists():
        raise UserError(f"there is no folder {path}: name a run folder, a checkpoint, a model folder or a Hub id.")
    return str(path)
