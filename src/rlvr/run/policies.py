"""The trained policy (from scratch with a warm start, or loaded) and the engine that samples from it."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from rlvr import imports
from rlvr.config import Config
from rlvr.core.engine.base import Engine
from rlvr.core.settings import cpu_tokens
from rlvr.core.world import ALONE, World
from rlvr.engines.settings import EngineContext
from rlvr.errors import UserError
from rlvr.models.devices import choose_device, choose_products
from rlvr.models.heads import use_float32_head
from rlvr.models.loading import load_for_inference
from rlvr.models.policy import HubPolicy
from rlvr.models.settings import ModelContext
from rlvr.models.weight_cache import content_key, keep, restore_on_all
from rlvr.run.run_folder import RunFolder
from rlvr.run.tasks import Tasks, context_tokens
from rlvr.run.teachers import check_tokens
from rlvr.tasks.prompting import resolve_markers
from rlvr.tracking.console import Console
from rlvr.tracking.files import writing
from rlvr.tracking.losses import Losses
from rlvr.training.checkpoint import replace_folder, temporary_folder
from rlvr.training.warm_start import content, warm_start

ONE_THREAD_BELOW = 500_000
"""One thread is faster below this parameter count: two were 1.5x slower at 150k and 1.5x faster at 900k."""

CACHED = "warm start: from the cache, made by an earlier run (warm_start.cache=false computes it)"

Stopped = Callable[[], bool]


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


@dataclass(frozen=True, kw_only=True)
class Setup:
    config: Config
    tasks: Tasks
    folder: RunFolder
    console: Console
    world: World = ALONE
    stopped: Stopped = lambda: False  # whether this process was asked to stop


def pretrained_policy(config: Config, tasks: Tasks) -> HubPolicy | None:
    """The loaded model; None if it is made from scratch. Removes examples that do not fit its context."""
    choose_products(choose_device(config.trainer.device), config.trainer.precision)
    if config.model.from_scratch:
        return None
    policy = open_model(config, tasks)
    if config.model.pretrained is None:  # its tokenizer was not known before
        check_tokens(config, policy.tokenizer)
    if config.model.head_dtype == "float32":  # also in its warm start
        use_float32_head(policy.model)
    return tasks.fit(config, policy)


def open_model(config: Config, tasks: Tasks) -> HubPolicy:
    """The model before any training."""
    context = ModelContext(
        seed=config.seed,
        device=choose_device(config.trainer.device),
        vocabulary=tasks.own.vocabulary,
        texts=tasks.own.texts,
        markers=partial(_markers, config),
    )
    with imports.code_of(config.model, f"model={config.model.name}: open"):
        policy = config.model.open(context)
        if not isinstance(policy, HubPolicy):
            raise TypeError(f"it must return a HubPolicy (rlvr.models.policy), not {type(policy).__name__}")
        return policy


def _markers(config: Config) -> list[str]:
    family = config.model.family()
    sets = [resolve_markers(bundle.prompt, config.markers, family) for bundle in config.trained.values()]
    return list(dict.fromkeys(text for markers in sets if markers for text in markers.model_dump().values()))


def scratch_policy(setup: Setup, stopped: Stopped) -> HubPolicy | None:
    """The model made from scratch, after its warm start; None if stopped.

    Removes examples that do not fit the model's context, also from demonstrations. Every rank makes the same steps;
    rank 0 writes.
    """
    config, folder, world = setup.config, setup.folder, setup.world
    if world.first(folder.warm_start.is_dir()):
        policy = load_for_inference(str(folder.warm_start), device=choose_device(config.trainer.device))
        return setup.tasks.fit(config, policy)
    policy = random_policy(setup)
    check_tokens(config, policy.tokenizer)
    config.engine.check(policy)
    set_threads(config, policy, world)
    if config.warm_start.enabled and not warmed(setup, policy, stopped):
        return None
    if world.is_first:
        save_atomically(policy.save, folder.warm_start)
    return policy


def random_policy(setup: Setup) -> HubPolicy:
    """The model made from scratch, before its warm start."""
    return setup.tasks.fit(setup.config, open_model(setup.config, setup.tasks))


def warmed(setup: Setup, policy: HubPolicy, stopped: Stopped) -> bool:
    """Run the warm start, or load it from the cache; False if stopped."""
    settings, task, world, console = setup.config.warm_start, setup.tasks.own, setup.world, setup.console
    microbatch_tokens = cpu_tokens(setup.config.trainer.microbatch_tokens)
    key = None
    if settings.cache and world.is_first:
        key = content_key(policy, *content(task, settings, microbatch_tokens))
    if restore_on_all(policy, key, world):
        console.note(CACHED)
        return True
    losses = Losses(console=console, folder=setup.folder.root, num_steps=settings.num_steps, writes=world.is_first)
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
    keep_in_cache(setup, policy, key)
    return True


def keep_in_cache(setup: Setup, policy: HubPolicy, key: str | None) -> None:
    if key is None:
        return
    try:
        keep(policy, key)
    except UserError as error:
        setup.console.note(f"the next run will compute its warm start again: {error}")


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
