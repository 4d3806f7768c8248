"""The CPU or this process's GPU: choice, precision, memory."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import nn

from rlvr.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

OUT_OF_MEMORY = (
    "can't allocate memory",  # torch's allocator on the CPU
    "out of memory",  # CUDA, where it is no torch.OutOfMemoryError
    "std::bad_alloc",
    "alloc_failed",  # cuBLAS and cuDNN, which allocate by themselves
    "could not create a memory object",  # oneDNN
)


def choose_device(wanted: str) -> torch.device:
    """The device of `trainer.device`, set as torch's current one; GPU number LOCAL_RANK. ConfigError without it."""
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
    torch.cuda.set_device(device)  # for collectives, and tensors created without a device
    return device


def current(device: torch.device) -> AbstractContextManager[object]:
    """The device as the current one of the calling thread; `choose_device` sets it in its own thread only."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def move(model: nn.Module, device: torch.device) -> None:
    """`model.to(device)`, whose type in transformers confuses type checkers."""
    model.to(device)


def choose_products(device: torch.device, precision: str) -> None:
    """Let a GPU multiply float32 matrices in TF32 (10 bits of mantissa, bfloat16 has 7) unless `trainer.precision` is
    fp32: the local engine samples with float32 weights, and large batches are bound by these products.
    """
    if device.type == "cuda":
        torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")


@contextmanager
def exact_products() -> Iterator[None]:
    """Without TF32, to compare numbers with those of a plain forward pass."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on any device."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(saying in str(error).lower() for saying in OUT_OF_MEMORY)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def free() -> None:
    """Collect garbage and return cached memory to the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def has_flash_attention(model: PreTrainedModel) -> bool:
    """Whether the model's attention is flash-attn's, which needs 16-bit numbers and takes no mask."""
    return str(model.config.get_text_config()._attn_implementation).startswith("flash")
