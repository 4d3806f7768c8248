"""Tensors of which every process holds some rows: what FSDP2 makes of a model's parameters (DTensors).

A tensor of n rows (dim 0) over W ranks is cut into pieces of ceil(n / W) rows; the last ranks have fewer, or none. All
functions take plain tensors too, which every process holds whole.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

GATHERED = "_rlvr_gathered"
"""Attribute of a sharded model: a function that calls another one, during which its weights are there."""


def is_sharded(tensor: Tensor) -> bool:
    """Whether this process holds only some rows of it."""
    return isinstance(tensor, DTensor)


def whole(tensor: Tensor) -> Tensor:
    """All rows, without gradient. Of a sharded tensor they are gathered: every rank has to ask at the same time."""
    tensor = tensor.detach()
    return cast(Tensor, tensor.full_tensor()) if isinstance(tensor, DTensor) else tensor


def own_rows(tensor: Tensor) -> Tensor:
    """The rows that this process holds, without gradient; what is written into them is written into the tensor."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def row_range(tensor: Tensor) -> tuple[int, int]:
    """First row that this process holds, and the one after its last; (0, 1) for a number that has no rows."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if not isinstance(tensor, DTensor):
        return 0, rows
    per_rank = -(-rows // tensor.device_mesh.size())
    first = min(rows, per_rank * tensor.device_mesh.get_local_rank())
    return first, min(rows, first + per_rank)


@torch.no_grad()
def copy_into(tensor: Tensor, value: Tensor) -> None:
    """Copy what this process holds of it from `value`, which is whole, into the tensor."""
    if tensor.shape != value.shape:
        raise ValueError(f"a tensor of shape {tuple(value.shape)} does not fit one of {tuple(tensor.shape)}")
    first, end = row_range(tensor)
    own_rows(tensor).copy_(value[first:end] if is_sharded(tensor) else value)
