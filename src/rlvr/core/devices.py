"""Device helpers: current device, exact matrix products, out-of-memory errors."""

import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from transformers import PreTrainedModel

OUT_OF_MEMORY = (
    "can't allocate memory",  # torch's allocator on the CPU
    "out of memory",  # CUDA, where it is no torch.OutOfMemoryError
    "std::bad_alloc",
    "alloc_failed",  # cuBLAS and cuDNN, which allocate by themselves
    "could not create a memory object",  # oneDNN
)


def current(device: torch.device) -> AbstractContextManager[object]:
    """Make `device` current in the calling thread; `choose_device` does so only in its own thread."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


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
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def has_flash_attention(model: PreTrainedModel) -> bool:
    """Whether the model uses flash-attn, which needs 16-bit weights and takes no mask."""
    return str(model.config.get_text_config()._attn_implementation).startswith("flash")
