"""Policies: made from scratch and warm-started, or loaded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast

from rlvr.app.engines import check_engine
from rlvr.app.run_folder import RunFolder
from rlvr.app.tasks import Tasks
from rlvr.config import Config
from rlvr.models.devices import choose_device, move
from rlvr.models.loading import load_pretrained
from rlvr.models.policy import Policy
from rlvr.models.scratch import build_bpe_tokenizer, build_model, build_tokenizer
from rlvr.models.settings import ScratchBpeModel, ScratchModel
from rlvr.tasks.base import Task
from rlvr.tasks.prompting import resolve_markers
from rlvr.tracking.console import Console
from rlvr.tracking.files import writing
from rlvr.training.budget import cpu_tokens
from rlvr.training.checkpoint import replace_folder, temporary_folder
from rlvr.training.warm_start import warm_start
from rlvr.world import ALONE, World

ONE_THREAD_BELOW = 500_000
"""Parameters below which one thread beats two: in prototypes two were 1.5x slower at 150k and 1.5x faster at 900k."""

Stopped = Callable[[], bool]


def initial_policy(
    config: Config, tasks: Tasks, folder: RunFolder, console: Console, stopped: Stopped, world: World = ALONE
) -> Policy | None:
    """The warm-started policy; None if the warm start was stopped, which leaves nothing to save.

    Leaves out of the tasks what does not fit into the model's context: it is not demonstrated either. Every rank makes
    the same steps; the first one writes.
    """
    assert isinstance(config.model, ScratchModel)
    if world.first(folder.warm_start.is_dir()):
        model, tokenizer = load_pretrained(str(folder.warm_start))
        move(model, choose_device(config.trainer.device))
        policy = Policy(model=model, tokenizer=tokenizer)
        fit(config, tasks, policy)
        return policy
    return make_policy(config, config.model, tasks, folder, console, stopped, world)


def fit(config: Config, tasks: Tasks, policy: Policy) -> None:
    """Leave out the examples that do not fit into the model's context."""
    tasks.fit(config, policy, context_tokens(policy))


def make_policy(
    config: Config,
    settings: ScratchModel,
    tasks: Tasks,
    folder: RunFolder,
    console: Console,
    stopped: Stopped,
    world: World,
) -> Policy | None:
    """As `initial_policy`, from random weights."""
    task = tasks.own
    tokenizer = _make_tokenizer(config, settings, task)
    model = build_model(settings, tokenizer, config.seed).eval()
    move(model, choose_device(config.trainer.device))
    policy = Policy(model=model, tokenizer=tokenizer)
    fit(config, tasks, policy)
    check_engine(config, policy)
    set_threads(config, policy, world)
    if config.warm_start.enabled:
        console.stage("warm start", config.warm_start.num_steps)
        progress = partial(_show_loss, console)
        microbatch_tokens = cpu_tokens(config.trainer.microbatch_tokens)
        if not warm_start(
            policy, task, config.warm_start, microbatch_tokens=microbatch_tokens, progress=progress, stopped=stopped
        ):
            return None
    if world.is_first:
        save_atomically(policy.save, folder.warm_start)
    return policy


def _make_tokenizer(config: Config, settings: ScratchModel, task: Task) -> PreTrainedTokenizerFast:
    if isinstance(settings, ScratchBpeModel):
        return build_bpe_tokenizer(task.texts(), settings.vocabulary_size, _markers(config))
    assert task.vocabulary is not None, "a rule of the configuration"
    return build_tokenizer(task.vocabulary)


def _markers(config: Config) -> tuple[str, ...]:
    """All markers that the prompts of the run ask for."""
    sets = [resolve_markers(one.prompt, config.markers, config.model.family()) for one in config.trained.values()]
    return tuple(dict.fromkeys(marker for found in sets if found for marker in found.model_dump().values()))


def _show_loss(console: Console, step: int, loss: float) -> None:
    console.advance(step, {"loss": loss})


def set_threads(config: Config, policy: Policy, world: World = ALONE) -> None:
    """Let torch compute with trainer.num_threads; where that is null, with one for a small model, else with all cores,
    shared by the ranks on this machine and, where the local engine samples beside the trainer, by these two."""
    beside = config.rollout.max_staleness > 0 and config.engine.in_process
    sharing = world.local_size * (2 if beside else 1)
    automatic = 1 if policy.num_weights < ONE_THREAD_BELOW else max(1, (os.cpu_count() or 1) // sharing)
    torch.set_num_threads(config.trainer.num_threads or automatic)


def context_tokens(policy: Policy) -> int:
    """Tokens that prompt and completion may have together."""
    return int(policy.model.config.get_text_config().max_position_embeddings)


def save_atomically(save: Callable[[Path], None], final: Path, *, writes: bool = True) -> None:
    """Let `save` fill a new folder that then takes the place of `final`. Only one of several ranks `writes`."""
    temporary = temporary_folder(final)
    with writing(final):
        try:
            if writes:
                temporary.mkdir(parents=True)
            save(temporary)
            if writes:
                replace_folder(temporary, final)
        finally:
            if writes:
                shutil.rmtree(temporary, ignore_errors=True)
