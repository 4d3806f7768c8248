"""What the heart has to know of the machine: the current device, exact products, memory that runs out."""

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
    """The device as the current one of the calling thread; `choose_device` sets it in its own thread only."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


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
