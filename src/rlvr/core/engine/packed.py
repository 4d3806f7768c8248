"""A model's bfloat16 matrices in the order in which the CPU multiplies them, kept beside the model's own.

torch hands a bfloat16 product on a CPU to oneDNN, which first copies the weights into its own order, at every call. A
decode step multiplies few rows with every weight, so that copy is a third to a half of it (docs/benchmarks.md).
The weights change only with an update: they are copied once per update instead. Products stay equal bit by bit.
"""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

MEMORY_SHARE = 0.25  # of the machine's memory, which the copies may take


class PackedLinears:
    """Copies of the weights of a model's plain linears, used by its forward within `active()`, without gradients.

    There are none for other data types, other devices or processors without bfloat16 products, and where they would
    take more than a quarter of the machine's memory.
    """

    def __init__(self, model: nn.Module):
        linears = [linear for linear in _linears(model) if linear.weight.dtype == torch.bfloat16]
        self._linears = linears if packed_bytes(model, torch.bfloat16) else []
        self._forwards: list[partial[Tensor]] = []

    def clear(self) -> None:
        """The weights have changed: the next use copies them."""
        self._forwards = []

    @contextmanager
    def active(self) -> Iterator[None]:
        if not self._forwards:
            self._forwards = [partial(_product, _packed(x.weight), x.bias) for x in self._linears]
        for linear, forward in zip(self._linears, self._forwards, strict=True):
            linear.forward = forward
        try:
            yield
        finally:
            for linear in self._linears:
                linear.__dict__.pop("forward", None)


def packed_bytes(model: nn.Module, dtype: torch.dtype) -> int:
    """Bytes of the copies for a model that samples in `dtype`; 0 where there are none."""
    size = sum(x.weight.numel() * dtype.itemsize for x in _linears(model)) if dtype == torch.bfloat16 else 0
    return size if size <= MEMORY_SHARE * _memory_bytes() else 0


def _linears(model: nn.Module) -> list[nn.Linear]:
    """The plain linears that may take part in the processor's bfloat16 products; measured on x86-64."""
    if platform.machine() not in ("x86_64", "AMD64") or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return []
    plain = [module for module in model.modules() if type(module) is nn.Linear and "forward" not in module.__dict__]
    return [linear for linear in plain if linear.weight.device.type == "cpu"]


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _packed(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach())


def _product(weight: Tensor, bias: Tensor | None, inputs: Tensor) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")
