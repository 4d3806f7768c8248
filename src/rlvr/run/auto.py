"""Decides what the configuration leaves to `auto` until the model is there: once, when the run is assembled.

`config.yaml` then holds the decisions, and a resumed run keeps them on any machine. What depends on the machine of the
moment is decided at each start and stays as it is: trainer.device, trainer.num_threads and trainer.microbatch_tokens.
What the settings alone decide (learning rates, the warm start, model.dtype, algorithm.mismatch_correction), the
sections' `fitted` decide when they are read, because checks ask for it.
"""

from pathlib import Path
from typing import Any

import torch

from rlvr.config import Config
from rlvr.core.world import ALONE, World
from rlvr.models.devices import half_dtype
from rlvr.models.policy import HubPolicy
from rlvr.run.run_folder import DECIDED, RunFolder, read_config

PRECISIONS = {None: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def decided(config: Config, policy: HubPolicy, world: World = ALONE) -> Config:
    """The configuration with what `auto` becomes for this policy; collective."""
    precision = world.first(PRECISIONS[half_dtype(config.trainer.precision, policy.model)])
    if precision != "fp32" or policy.dtype == torch.float32:  # products in the type of narrow weights have no name
        config = config.model_copy(update={"trainer": config.trainer.model_copy(update={"precision": precision})})
    sections = {"rollout": config.rollout.fitted(config.algorithm), "engine": config.engine.fitted(policy, config)}
    return config.model_copy(update=sections)


def as_begun(config: Config) -> Config:
    """The configuration of a resumed run, with its own decisions for what is `auto`."""
    folder = RunFolder(root=Path(config.run_dir or ""))
    if not config.resume or not folder.config.is_file():
        return config
    begun, sections = read_config(folder), dict[str, Any]()
    for section, key in (name.split(".") for name in DECIDED):
        now, before = getattr(config, section), getattr(getattr(begun, section), key, "auto")
        if getattr(now, key, None) == "auto" != before:
            sections[section] = now.model_copy(update={key: before})
    return config.model_copy(update=sections)
