"""Sharded checkpoints: each process writes its rows, any number of processes reads them.

    shards/
        index.json                 per tensor: shape, dtype, and which file has which rows
        rank_00000.safetensors     rows of rank 0: parameters/<name>, state/optimizer/state/<number>/<moment>
        rank_00001.safetensors     ...

index.json of two ranks, which hold 8 rows each of a [16, 4] tensor:
{"tensors": {"parameters/x": {"shape": [16, 4], "dtype": "float32", "rows": [[0, 0, 8], [1, 8, 16]]}}}
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from rlvr.scale.sharding import own_rows, row_range
from rlvr.scale.tensors import copied, ready_tensors

INDEX = "index.json"


def shard_name(rank: int) -> str:
    return f"rank_{rank:05d}.safetensors"


Held = Mapping[str, tuple[int, int]]
"""First and end row held by a rank, by tensor name; tensors without rows are omitted."""


def write_rows(file: Path, tensors: Mapping[str, Tensor]) -> Held:
    # a rank may hold no row of a short tensor
    own = {name: rows for name, tensor in tensors.items() if (rows := own_rows(tensor)).shape[0]}
    ready = ready_tensors(own)
    save_file({name: ready[name] if name in ready else copied(rows) for name, rows in own.items()}, file)
    return {name: row_range(tensors[name]) for name in own}


def write_index(file: Path, tensors: Mapping[str, Tensor], held: Sequence[Held]) -> None:
    """Write the index; `held` is what each rank has written."""
    index = {
        name: {
            "shape": list(tensor.shape),
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "rows": [[rank, *ranges[name]] for rank, ranges in enumerate(held) if name in ranges],
        }
        for name, tensor in tensors.items()
    }
    file.write_text(json.dumps({"tensors": index}, indent=1) + "\n", encoding="utf-8")


def sharded_like(tensor: Tensor, rows: Tensor) -> Tensor:
    """This rank's rows as a tensor sharded like another one."""
    assert isinstance(tensor, DTensor)
    local = rows.to(own_rows(tensor).device)
    return DTensor.from_local(
        local, tensor.device_mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )


class Shards:
    """The tensors of a `shards` folder, read on demand; `Shards(None)` has none."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._entries: dict[str, Any] = {} if folder is None else json.loads((folder / INDEX).read_text())["tensors"]

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._entries[name]["shape"])

    def rows(self, name: str, first: int = 0, end: int | None = None) -> Tensor:
        """Rows `first` to `end` (exclusive; None: all) of a tensor; reads only these."""
        shape, dtype = self.shape(name), getattr(torch, self._entries[name]["dtype"])
        assert self._folder is not None, "there is a tensor"
        parts, end = [torch.empty((0, *shape[1:]), dtype=dtype)], shape[0] if end is None else end
        for rank, start, stop in self._entries[name]["rows"]:
            if start < end and first < stop:
                with safe_open(self._folder / shard_name(rank), framework="pt") as file:
                    parts.append(file.get_slice(name)[max(first, start) - start : min(end, stop) - start])
        return torch.cat(parts)
