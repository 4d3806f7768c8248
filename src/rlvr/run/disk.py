"""The disk that a run takes, and the warning where there is less."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from rlvr.config import Config
from rlvr.models.policy import HubPolicy
from rlvr.training.memory import size_text, weight_bytes


def num_saved(config: Config) -> int:
    every, steps = config.trainer.checkpoint_every, config.trainer.max_steps
    return 1 if every is None else 1 + -(-steps // every)  # before the first step, too


def checkpoint_bytes(saved_bytes: int, trained_bytes: int) -> int:
    return saved_bytes + 2 * trained_bytes


def disk_of_models(config: Config, saved_bytes: int, trained_bytes: int) -> dict[str, int]:
    """Bytes of checkpoints and of the models beside them; `saved_bytes`: of a saved model."""
    kept = config.trainer.keep_last + (config.trainer.keep_best and config.evaluation.every is not None)
    folders = 2 if config.model.from_scratch or config.warm_start.enabled else 1  # final/, warm_start/
    return {
        "checkpoints": min(kept, num_saved(config)) * checkpoint_bytes(saved_bytes, trained_bytes),
        "models": folders * saved_bytes,
    }


def sizes_of(policy: HubPolicy) -> tuple[int, int]:
    """Bytes of a saved model, and of the trained weights."""
    trained = sum(parameter.nbytes for parameter in policy.parameters())
    return trained if policy.adapters is not None else weight_bytes(policy), trained


def disk_warnings(config: Config, policy: HubPolicy, folder: Path) -> Iterator[str]:
    """A sentence if the disk of the run's folder has less space than its models will take."""
    there = sum(file.stat().st_size for file in folder.rglob("*.safetensors"))  # of the run that is resumed
    needed, free = sum(disk_of_models(config, *sizes_of(policy)).values()) - there, shutil.disk_usage(folder).free
    if needed > free:
        yield (
            f"warning: checkpoints and models will take {size_text(needed)} more, and the disk of {folder} has "
            f"{size_text(free)} free: free some space, set trainer.checkpoint_every=null or lower trainer.keep_last"
        )
