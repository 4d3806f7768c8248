"""The CPU or this process's accelerator: selection, precision, memory."""

import copy
import os
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from rlvr.errors import ConfigError

BF16_PAYS_FROM_WIDTH = 128
"""Hidden size from which bf16 autocast is faster than fp32: updates were 1.3x to 1.5x faster at 128 (docs/log.md); an
earlier prototype lost 2x at 64. Both on a CPU with bf16 instructions."""

WIDE = 512
"""Hidden size from which matrix products are nearly all of the work on a CPU: sampling from bfloat16 weights is faster
(with bf16 instructions), passes of few tokens are as fast as long ones, and a shared prompt pays for long lines."""

WIDE_PASS_TOKENS = 512
"""Tokens of a pass through a wide frozen model on a CPU: 500 rows fill its products, and more only take memory. Trained
weights need longer passes, because each pass adds to all their gradients."""


def choose_device(wanted: str) -> torch.device:
    """The device of `trainer.device`, set as torch's current device; number LOCAL_RANK. ConfigError without it."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if wanted == "cpu" or (
        wanted == "auto" and (accelerator is None or accelerator.type == "mps")
    ):  # never measured on MPS
        return torch.device("cpu")
    number = int(os.environ.get("LOCAL_RANK", "0"))
    count = torch.accelerator.device_count() if accelerator is not None and wanted in ("auto", accelerator.type) else 0
    if not count:
        raise ConfigError(
            f"trainer.device={wanted}: torch {torch.__version__} sees no such device here; set trainer.device=cpu, or "
            "see that its driver works and torch is the build for it."
        )
    if accelerator is None or number >= count:
        raise ConfigError(
            f"trainer.device={wanted}: this is process {number + 1}, and torch {torch.__version__} sees {count} GPU(s) "
            "here; start no more processes than GPUs, or set trainer.device=cpu."
        )
    torch.accelerator.set_device_index(number)  # for collectives, and tensors created without a device
    return torch.device(accelerator.type, number)


def move(model: nn.Module, device: torch.device) -> None:
    model.to(device)


def device_name(device: torch.device) -> str:
    """`NVIDIA H100 80GB HBM3`; `cpu` or `mps:0` where torch knows no name."""
    return getattr(torch.get_device_module(device), "get_device_name", str)(device)


def choose_products(device: torch.device, precision: str) -> None:
    """Let CUDA multiply float32 matrices in TF32 (10 bits of mantissa, bfloat16 has 7) unless `trainer.precision` is
    fp32: the local engine samples with float32 weights, and these products bound its speed in large batches.
    """
    if device.type == "cuda":
        torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")


def sampling_dtype(wanted: str, model: PreTrainedModel, *, half: torch.dtype | None, adapted: bool) -> torch.dtype:
    """Data type of the weights that the local engine samples with; see `engine.dtype`. `half`: training computes in it.

    Weights that are not trained in float32 (quantized, or bfloat16 below adapters) sample as they are.
    """
    if model.dtype != torch.float32 or getattr(model, "is_quantized", False) or wanted == "float32":
        return model.dtype
    if wanted != "auto":
        return getattr(torch, wanted)
    pays = model.device.type != "cpu" or is_wide(model)
    return half if half is not None and pays and not adapted else torch.float32


def frozen_copy(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """A frozen copy whose float32 weights are of that dtype; buffers stay: rotary frequencies need their digits."""
    memo: dict[int, Any] = {
        id(p): nn.Parameter(p.detach().to(dtype, copy=True), requires_grad=False)
        for p in model.parameters()
        if p.dtype == torch.float32 != dtype
    }
    return copy.deepcopy(model, memo).requires_grad_(False)


def is_wide(model: PreTrainedModel) -> bool:
    return model.device.type == "cpu" and model.config.get_text_config().hidden_size >= WIDE


def line_columns(model: PreTrainedModel) -> int | None:
    """`Packing.columns`: products grow with the width's square, attention with the width; measured at 896: 1,700."""
    return 2 * model.config.get_text_config().hidden_size if is_wide(model) else None


def half_dtype(precision: str, model: PreTrainedModel) -> torch.dtype | None:
    """What autocast computes in; None: float32."""
    if precision == "fp16":
        return torch.float16
    return torch.bfloat16 if in_bf16(precision, model) else None


def in_bf16(precision: str, model: PreTrainedModel) -> bool:
    return precision == "bf16" or (precision == "auto" and bf16_pays(model))


def bf16_pays(model: PreTrainedModel) -> bool:
    """Whether bf16 autocast makes an update of this model faster on this device."""
    if not has_bf16(model.device):
        return False
    return model.device.type != "cpu" or model.config.get_text_config().hidden_size >= BF16_PAYS_FROM_WIDTH


def has_bf16(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 matrices by itself. A CPU that does not takes 6 to 10 times as long
    as for float32 (docs/log.md)."""
    if device.type != "cpu":
        supported = getattr(torch.get_device_module(device), "is_bf16_supported", None)
        return supported is not None and supported(including_emulation=False)  # MPS does not say
    # newer than our oldest supported torch; without it a CPU's bf16 support is unknown
    capabilities = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def likely_device(wanted: str) -> torch.device:
    """The kind of device that `choose_device` takes; selects nothing."""
    found = torch.accelerator.current_accelerator(check_available=True)
    if wanted != "auto":
        return torch.device(wanted)
    return torch.device("cpu") if found is None or found.type == "mps" else found
