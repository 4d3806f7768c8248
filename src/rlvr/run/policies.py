"""The trained policy (from scratch with a warm start, or loaded) and the engine that samples from it."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import torch

from rlvr import imports
from rlvr.config import Config
from rlvr.core.engine.base import Engine
from rlvr.core.settings import cpu_tokens
from rlvr.core.world import ALONE, World
from rlvr.engines.settings import EngineContext
from rlvr.errors import UserError
from rlvr.models.devices import choose_device
from rlvr.models.loading import load_for_inference
from rlvr.models.policy import HubPolicy
from rlvr.models.weight_cache import content_key, keep, restore_on_all
from rlvr.run.opened import OpenRun, Stopped
from rlvr.run.tasks import context_tokens
from rlvr.tracking.files import writing
from rlvr.tracking.losses import Losses
from rlvr.training.checkpoint import replace_folder, temporary_folder
from rlvr.training.warm_start import content, warm_start

ONE_THREAD_BELOW = 500_000
"""One thread is faster below this parameter count: two were 1.5x slower at 150k and 1.5x faster at 900k."""

CACHED = "warm start: from the cache, made by an earlier run (warm_start.cache=false computes it)"


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


def scratch_policy(run: OpenRun, stopped: Stopped) -> HubPolicy | None:
    """The model made from scratch, after its warm start; None if stopped.

    Removes examples that do not fit the model's context, also from demonstrations. Every rank makes the same steps;
    rank 0 writes.
    """
    config, folder, world = run.config, run.folder, run.world
    if world.first(folder.warm_start.is_dir()):
        policy = load_for_inference(str(folder.warm_start), device=choose_device(config.trainer.device))
        return run.tasks.fit(config, policy)
    policy = run.load_policy()
    config.engine.check(policy)
    set_threads(config, policy, world)
    if config.warm_start.enabled and not warmed(run, policy, stopped):
        return None
    if world.is_first:
        save_atomically(policy.save, folder.warm_start)
    return policy


def warmed(run: OpenRun, policy: HubPolicy, stopped: Stopped) -> bool:
    """Run the warm start, or load it from the cache; False if stopped."""
    settings, task, world, console = run.config.warm_start, run.tasks.own, run.world, run.console
    microbatch_tokens = cpu_tokens(run.config.trainer.microbatch_tokens)
    key = None
    if settings.cache and world.is_first:
        key = content_key(policy, *content(task, settings, microbatch_tokens))
    if restore_on_all(policy, key, world):
        console.note(CACHED)
        return True
    losses = Losses(console=console, folder=run.folder.root, num_steps=settings.num_steps, writes=world.is_first)
    hidden = settings.num_steps - settings.final_phase_steps
    told = not (0 < hidden < settings.num_steps and settings.final_worked_share < settings.worked_share)

    def show(step: int, loss: float) -> None:
        nonlocal told
        losses.show(step, loss)
        if step >= hidden and not told:
            told = True
            console.note(
                f"from here {settings.final_worked_share:.0%} of the answers show their steps, not "
                f"{settings.worked_share:.0%} (warm_start.final_phase_steps): the loss rises"
            )

    how = {"microbatch_tokens": microbatch_tokens, "progress": show, "stopped": stopped}
    if not warm_start(policy, task, settings, **how):
        return False
    keep_in_cache(run, policy, key)
    return True


def keep_in_cache(run: OpenRun, policy: HubPolicy, key: str | None) -> None:
    if key is None:
        return
    try:
        keep(policy, key)
    except UserError as error:
        run.console.note(f"the next run will compute its warm start again: {error}")


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
