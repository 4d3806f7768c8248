"""The trained policy (from scratch with a warm start, or loaded) and the engine that samples from it."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlvr.config import Config
from rlvr.core.engine import LocalEngine
from rlvr.core.engine.base import Engine
from rlvr.core.settings import cpu_tokens
from rlvr.core.world import ALONE, World
from rlvr.engines.settings import LocalEngineSettings, VllmEngineSettings
from rlvr.errors import ConfigError, UserError
from rlvr.models.devices import choose_device, choose_products, frozen_copy, half_dtype, move, sampling_dtype
from rlvr.models.heads import use_float32_head
from rlvr.models.loading import load_for_inference, load_policy
from rlvr.models.policy import HubPolicy
from rlvr.models.scratch import build_bpe_tokenizer, build_model, build_tokenizer
from rlvr.models.settings import ScratchBpeModel, ScratchModel
from rlvr.models.weight_cache import content_key, keep, restore_on_all
from rlvr.progress import progress
from rlvr.run.run_folder import RunFolder
from rlvr.run.tasks import Tasks, context_tokens
from rlvr.run.teachers import check_tokens
from rlvr.tasks.base import Task
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


class Sampler(Engine, Protocol):
    """An engine that knows its longest row."""

    @property
    def max_context_tokens(self) -> int: ...  # of prompt and completion together


def check_engine(config: Config, policy: HubPolicy | None = None) -> None:
    """UserError if a remote engine is unreachable or does not fit the policy, or its folder is not writable. Called
    before the warm start."""
    engine = config.engine
    if isinstance(engine, VllmEngineSettings):
        from rlvr.engines.vllm import check_servers, expect

        if engine.weights_dir is not None:
            with writing(Path(engine.weights_dir)):
                Path(engine.weights_dir).mkdir(parents=True, exist_ok=True)
        expected = None if policy is None else expect(policy, sync=engine.sync)
        check_servers(engine.urls, expected, timeout_s=engine.timeout_s)


def make_engine(
    config: Config,
    policy: HubPolicy,
    folder: Path,
    world: World = ALONE,
    on_note: Callable[[str], None] = lambda text: None,
    stopped: Callable[[], bool] = lambda: False,
    max_batch_size: int | None = None,
) -> Sampler:
    """The engine that samples for training: on the policy's own weights; on a copy if sampling overlaps training or
    weights are sharded (fsdp2: call before the trainer shards them); or on remote servers. `folder` is the run's,
    `max_batch_size` what memory allows if that is less than the engine's own."""
    engine, context = config.engine, context_tokens(policy)
    if isinstance(engine, VllmEngineSettings):
        from rlvr.engines.vllm import VllmEngine

        weights_dir = folder / "weights" if engine.weights_dir is None else Path(engine.weights_dir) / folder.name
        return VllmEngine(
            policy, engine, weights_dir, max_context_tokens=context, world=world, on_note=on_note, stopped=stopped
        )
    dtype = engine_dtype(config, policy)
    alone = config.rollout.max_staleness == 0 and config.trainer.strategy != "fsdp2" and dtype == policy.dtype
    if dtype != policy.dtype:
        on_note(f"sampling from a {str(dtype).removeprefix('torch.')} copy of the weights (engine.dtype)")
    elif dtype == torch.float32 and half_dtype(config.trainer.precision, policy.model) is not None and _full(config):
        on_note(
            "engine.dtype=float32 samples with all digits of the weights, and training rounds them to 16 bits in each "
            "pass: the two drift apart (policy/mismatch_kl); trainer.precision=fp32 trains what is sampled"
        )
    return LocalEngine(
        policy.model if alone else frozen_copy(policy.model, dtype),
        max_batch_size=max_batch_size or engine.max_batch_size,
        max_context_tokens=context,
        weights=None if alone else policy.trained_weights,
        on_note=on_note,
        prompts=policy.prompts,
    )


def _full(config: Config) -> bool:
    """Whether all weights of a pretrained model are trained: they lie on the grid of their 16-bit file, which small
    updates do not leave when they are rounded."""
    return not (config.model.from_scratch or config.model.adapted)


def engine_dtype(config: Config, policy: HubPolicy) -> torch.dtype:
    """Data type of the local engine's weights."""
    if not isinstance(config.engine, LocalEngineSettings):
        raise ConfigError(f"engine={config.engine.name}: only engine=local and engine=vllm can sample for training.")
    half = half_dtype(config.trainer.precision, policy.model)
    return sampling_dtype(config.engine.dtype, policy.model, half=half, adapted=policy.adapters is not None)


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
    device = choose_device(config.trainer.device)
    choose_products(device, config.trainer.precision)
    if config.model.pretrained is None:
        return None
    with progress(f"loading {config.model.pretrained.name_or_path}"):
        policy = load_policy(config.model.pretrained, seed=config.seed, device=device)
    if config.model.head_dtype == "float32":  # also in its warm start
        use_float32_head(policy.model)
    return tasks.fit(config, policy)


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
    check_engine(config, policy)
    set_threads(config, policy, world)
    if config.warm_start.enabled and not warmed(setup, policy, stopped):
        return None
    if world.is_first:
        save_atomically(policy.save, folder.warm_start)
    return policy


def random_policy(setup: Setup) -> HubPolicy:
    """The model made from scratch, before its warm start."""
    model, tokenizer = _random(setup.config, setup.tasks.own)
    move(model, choose_device(setup.config.trainer.device))
    policy = HubPolicy(model=model, tokenizer=tokenizer)
    return setup.tasks.fit(setup.config, policy)


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


def _random(config: Config, task: Task) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    settings = config.model
    assert isinstance(settings, ScratchModel)
    if settings.tokens_are_words:
        assert task.vocabulary is not None, "a rule of the configuration"
        tokenizer = build_tokenizer(task.vocabulary)
    else:
        assert isinstance(settings, ScratchBpeModel)
        sets = [resolve_markers(one.prompt, config.markers, settings.family()) for one in config.trained.values()]
        markers = dict.fromkeys(marker for found in sets if found for marker in found.model_dump().values())
        tokenizer = build_bpe_tokenizer(task.texts(), settings.vocabulary_size, tuple(markers))
    return build_model(settings, tokenizer, config.seed).eval(), tokenizer


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
