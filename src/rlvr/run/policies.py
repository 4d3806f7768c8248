"""The trained policy (from scratch with a warm start, or loaded) and the engine that samples from it."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import torch

from rlvr import imports
from rlvr.config import Config
from rlvr.core.engine.base import Engine
from rlvr.core.world import ALONE, World
from rlvr.engines.settings import EngineContext
from rlvr.models.policy import HubPolicy
from rlvr.records.files import writing
from rlvr.run.tasks import context_tokens
from rlvr.training.checkpoint import replace_folder, temporary_folder

ONE_THREAD_BELOW = 500_000
"""One thread is faster below this parameter count: two were 1.5x slower at 150k and 1.5x faster at 900k."""


def open_engine(
    config: Config,
    policy: HubPolicy,
    folder: Path,
    world: World = ALONE,
    on_note: Callable[[str], None] = lambda text: None,
    stopped: Callable[[], bool] = lambda: False,
    max_batch_size: int | None = None,
) -> Engine:
    """The engine that samples for training. `folder` is the run's, `max_batch_size` what memory allows if that is less
    than the engine's own. Call it before the trainer is made, which may shard the weights."""
    context = EngineContext(
        policy=policy,
        run=config,
        folder=folder,
        max_context_tokens=context_tokens(policy),
        max_batch_size=max_batch_size,
        world=world,
        note=on_note,
        stopped=stopped,
    )
    with imports.code_of(config.engine, f"engine={config.engine.name}: open"):
        engine = config.engine.open(context)
        if not isinstance(engine, Engine):
            raise TypeError(f"it must return an Engine (rlvr.core.engine.base), not {type(engine).__name__}")
        return engine


def set_threads(config: Config, policy: HubPolicy, world: World = ALONE) -> None:
    """Set torch's threads to trainer.num_threads; for null one for a small model, else all cores, divided by the ranks
    on this machine and between trainer and concurrent local engine."""
    beside = config.rollout.max_staleness > 0 and config.engine.in_process
    sharing = world.local_size * (2 if beside else 1)
    automatic = 1 if policy.num_weights < ONE_THREAD_BELOW else max(1, (os.cpu_count() or 1) // sharing)
    torch.set_num_threads(config.trainer.num_threads or automatic)


def save_atomically(save: Callable[[Path], None], final: Path, *, writes: bool = True) -> None:
    """Let `save` fill a new folder, then rename it to `final`. Only the rank with `writes` does."""
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
