"""The engine that samples for training."""

import copy
from collections.abc import Callable
from pathlib import Path

from rlvr.app.tasks import context_tokens
from rlvr.config import Config
from rlvr.core.engine import LocalEngine
from rlvr.core.world import ALONE, World
from rlvr.engines.settings import VllmEngineSettings
from rlvr.engines.vllm import VllmEngine, check_servers, expect
from rlvr.models.policy import HubPolicy
from rlvr.tracking.files import writing

Sampler = LocalEngine | VllmEngine


def check_engine(config: Config, policy: HubPolicy | None = None) -> None:
    """UserError if the engine is elsewhere and not there, does not fit the policy, or its folder cannot be written:
    asked before a warm start is made for nothing."""
    engine = config.engine
    if isinstance(engine, VllmEngineSettings):
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
) -> Sampler:
    """The engine that samples for training: over the policy's own weights, or over a copy of them where it samples
    while they change, or where no process holds all of them (fsdp2: make it before the trainer cuts them), or on
    servers elsewhere. `folder` is the run's."""
    engine, context = config.engine, context_tokens(policy)
    if isinstance(engine, VllmEngineSettings):
        weights_dir = folder / "weights" if engine.weights_dir is None else Path(engine.weights_dir) / folder.name
        return VllmEngine(
            policy, engine, weights_dir, max_context_tokens=context, world=world, on_note=on_note, stopped=stopped
        )
    alone = config.rollout.max_staleness == 0 and config.trainer.strategy != "fsdp2"
    return LocalEngine(
        policy.model if alone else copy.deepcopy(policy.model).requires_grad_(False),
        max_batch_size=engine.max_batch_size,
        max_context_tokens=context,
        weights=None if alone else policy.trained_weights,
        on_note=on_note,
    )
