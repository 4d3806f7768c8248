"""Policies: made from scratch and warm-started, or loaded."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from rlvr.config.schema import Config, PretrainedModel, ScratchModel
from rlvr.models.loading import load_pretrained
from rlvr.models.policy import Policy
from rlvr.models.scratch import build_model, build_tokenizer
from rlvr.tasks.base import Task
from rlvr.tracking.console import Console
from rlvr.tracking.files import writing
from rlvr.training.checkpoint import clean_leftovers, replace_folder, temporary_folder
from rlvr.training.run_folder import RunFolder
from rlvr.training.warm_start import warm_start

ONE_THREAD_BELOW = 500_000
"""Parameters below which one thread beats two: in prototypes two were 1.5x slower at 150k and 1.5x faster at 900k."""

Stopped = Callable[[], bool]


def initial_policy(config: Config, task: Task, folder: RunFolder, console: Console, stopped: Stopped) -> Policy | None:
    """The warm-started policy; None if the warm start was stopped, which leaves nothing to save."""
    assert isinstance(config.model, ScratchModel)
    clean_leftovers(folder.root)
    if folder.warm_start.is_dir():
        model, tokenizer = load_pretrained(str(folder.warm_start))
        return Policy(model=model, tokenizer=tokenizer)
    return make_policy(config, config.model, task, folder, console, stopped)


def make_policy(
    config: Config, settings: ScratchModel, task: Task, folder: RunFolder, console: Console, stopped: Stopped
) -> Policy | None:
    tokenizer = build_tokenizer(task.vocabulary)
    policy = Policy(model=build_model(settings, tokenizer, config.seed).eval(), tokenizer=tokenizer)
    set_threads(config, policy)
    if config.warm_start.enabled:
        console.stage("warm start", config.warm_start.num_steps)
        progress = partial(_show_loss, console)
        microbatch_tokens = config.trainer.microbatch_tokens
        if not warm_start(
            policy, task, config.warm_start, microbatch_tokens=microbatch_tokens, progress=progress, stopped=stopped
        ):
            return None
    save_atomically(policy.save, folder.warm_start)
    return policy


def _show_loss(console: Console, step: int, loss: float) -> None:
    console.advance(step, {"loss": loss})


def set_threads(config: Config, policy: Policy) -> None:
    automatic = 1 if policy.num_weights < ONE_THREAD_BELOW else os.cpu_count() or 1
    torch.set_num_threads(config.trainer.num_threads or automatic)


def context_tokens(policy: Policy) -> int:
    """Tokens that prompt and completion may have together."""
    return int(policy.model.config.get_text_config().max_position_embeddings)


def save_atomically(save: Callable[[Path], None], final: Path) -> None:
    """Let `save` fill a new folder that then takes the place of `final`."""
    temporary = temporary_folder(final)
    with writing(final):
        temporary.mkdir(parents=True)
        save(temporary)
        replace_folder(temporary, final)


def with_absolute_model(config: Config) -> Config:
    """A model folder by its full name: `runs/latest/final` and relative paths mean something else at a resume."""
    if not isinstance(config.model, PretrainedModel) or not Path(config.model.name_or_path).is_dir():
        return config
    model = config.model.model_copy(update={"name_or_path": str(Path(config.model.name_or_path).resolve())})
    return config.model_copy(update={"model": model})
