"""Where models are: the CPU, or this process's GPU."""

from __future__ import annotations

import os

import torch

from rlvr.errors import ConfigError


def choose_device(wanted: str) -> torch.device:
    """The device of `trainer.device`, made torch's current one; the GPU is number LOCAL_RANK, which torchrun sets.

    Raises ConfigError where there is no such GPU.
    """
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError(
            f"trainer.device={wanted}: torch {torch.__version__} sees no GPU here; install a torch built for it, or "
            "set trainer.device=auto."
        )
    number, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if number >= count:
        raise ConfigError(
            f"trainer.device={wanted}: this is process {number + 1} on a machine with {count} GPU(s); start "
            f"torchrun with --nproc-per-node {count}, or set trainer.device=cpu."
        )
    device = torch.device("cuda", number)
    torch.cuda.set_device(device)  # collectives, and what names no device
    return device
