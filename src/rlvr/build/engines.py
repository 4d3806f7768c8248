"""The engine that samples for training."""

from __future__ import annotations

import copy
from pathlib import Path

from rlvr.config.schema import Config
from rlvr.engines.base import Engine
from rlvr.engines.local import LocalEngine
from rlvr.models.policy import Policy
from rlvr.world import ALONE, World


def make_engine(config: Config, policy: Policy, context: int, folder: Path, world: World = ALONE) -> Engine:
    """The engine that samples for training: over the policy's own weights, or over a copy of them where it samples
    while they change, or where no process holds all of them (fsdp2: make it before the trainer cuts them). `context`
    is what prompt and completion may have together, `folder` the run's."""
    alone = config.rollout.max_staleness == 0 and config.trainer.strategy != "fsdp2"
    return LocalEngine(
        policy.model if alone else copy.deepcopy(policy.model).requires_grad_(False),
        max_batch_size=config.engine.max_batch_size,
        max_context_tokens=context,
        weights=None if alone else policy.trained_weights,
    )
