"""Device helpers: torch's module of a device, the current one, exact matrix products, out-of-memory errors."""

import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
from transformers import PreTrainedModel

OUT_OF_MEMORY = (
    "can't allocate memory",  # torch's allocator on the CPU
    "out of memory",  # CUDA, where it is no torch.OutOfMemoryError
    "std::bad_alloc",
    "alloc_failed",  # cuBLAS and cuDNN, which allocate by themselves
    "could not create a memory object",  # oneDNN
)


def accelerator() -> Any:
    """torch's module of the accelerator here, such as `torch.cuda`; None on a machine without one.

    Modules differ in what they have: `torch.accelerator` does not, but our oldest torch has little of it.
    """
    device = torch.accelerator.current_accelerator(check_available=True)
    return None if device is None else torch.get_device_module(device)


def current(device: torch.device) -> AbstractContextManager[object]:
    """Make `device` current in the calling thread; `choose_device` does so only in its own thread."""
    make = getattr(torch.get_device_module(device), "device", nullcontext)  # the CPU and MPS are a single device
    return make(device)


@cache
def drawing_device(device: torch.device) -> torch.device:
    """Where tokens are drawn, in float64: the model's device, or the CPU beside one without it (Apple's MPS)."""
    try:
        torch.zeros(1, dtype=torch.float64, device=device)
    except (TypeError, RuntimeError):  # MPS: TypeError
        return torch.device("cpu")
    return device


@contextmanager
def exact_products() -> Iterator[None]:
    """Disable TF32, to compare with a plain forward pass."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(saying in str(error).lower() for saying in OUT_OF_MEMORY)


def first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def free() -> None:
    """Collect garbage and return cached memory to the device."""
    gc.collect()
    if (module := accelerator()) is not None:
        module.empty_cache()


def has_flash_attention(model: PreTrainedModel) -> bool:
    """True if the model uses flash-attn, which needs 16-bit weights and takes no mask."""
    return str(model.config.get_text_config()._attn_implementation).startswith("flash")
