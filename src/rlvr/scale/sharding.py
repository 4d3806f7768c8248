"""FSDP2's sharded parameters (DTensors): every rank holds some rows. All functions also accept plain tensors.

A tensor of n rows (dim 0) over W ranks is cut into pieces of ceil(n / W) rows; the last ranks have fewer, or none.
"""

from typing import cast

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


def is_sharded(tensor: Tensor) -> bool:
    return isinstance(tensor, DTensor)


def whole(tensor: Tensor) -> Tensor:
    """All rows, without gradient. Collective for a sharded tensor."""
    tensor = tensor.detach()
    return cast(Tensor, tensor.full_tensor()) if isinstance(tensor, DTensor) else tensor


def own_rows(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def row_range(tensor: Tensor) -> tuple[int, int]:
    """This rank's first and end row; (0, 1) for a scalar."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if not isinstance(tensor, DTensor):
        return 0, rows
    per_rank = -(-rows // tensor.device_mesh.size())
    first = min(rows, per_rank * tensor.device_mesh.get_local_rank())
    return first, min(rows, first + per_rank)


@torch.no_grad()
def copy_into(tensor: Tensor, value: Tensor) -> None:
    assert tensor.shape == value.shape
    first, end = row_range(tensor)
    own_rows(tensor).copy_(value[first:end] if is_sharded(tensor) else value)
