"""The sharded half of a checkpoint: each process writes the rows that it holds, any number of processes reads them.

    shards/
        index.json                 per tensor its shape, its type, and which rows stand in which file
        rank_00000.safetensors     rows of rank 0: parameters/<name>, state/optimizer/state/<number>/<moment>
        rank_00001.safetensors     ...

index.json of two ranks, which hold 8 rows each of a [16, 4] tensor:
{"tensors": {"parameters/x": {"shape": [16, 4], "dtype": "float32", "rows": [[0, 0, 8], [1, 8, 16]]}}}
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from rlvr.models.sharding import own_rows, row_range

INDEX = "index.json"


def shard_name(rank: int) -> str:
    """`rank_00001.safetensors`"""
    return f"rank_{rank:05d}.safetensors"


Held = Mapping[str, tuple[int, int]]
"""First row and end of what a rank holds, by the name of the tensor; without those of which it holds nothing."""


def write_rows(file: Path, tensors: Mapping[str, Tensor]) -> Held:
    """Write this rank's rows of sharded tensors."""
    # a rank may hold no row of a short tensor; safetensors refuses tensors that share memory
    own = {name: rows for name, tensor in tensors.items() if (rows := own_rows(tensor)).shape[0]}
    save_file({name: rows.cpu().contiguous().clone() for name, rows in own.items()}, file)
    return {name: row_range(tensors[name]) for name in own}


def write_index(file: Path, tensors: Mapping[str, Tensor], held: Sequence[Held]) -> None:
    """Write which rank's file has which rows: `held` is what each has written."""
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
    """This rank's rows as a tensor that is sharded like another one."""
    assert isinstance(tensor, DTensor)
    local = rows.to(own_rows(tensor).device)
    return DTensor.from_local(
        local, tensor.device_mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Entry:
    """Where the rows of a tensor stand: (rank, first, end) in order, without a gap."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    rows: tuple[tuple[int, int, int], ...]


class Shards(Mapping[str, Tensor]):
    """The tensors of a `shards` folder, read when they are asked for: whole, or some of their rows."""

    def __init__(self, folder: Path | None) -> None:
        """None: there are none.

        Raises:
            ValueError: index and files do not fit together.
        """
        self._folder = folder
        self._entries = {} if folder is None else _read_index(folder)
        if folder is not None:
            self._check(folder)

    def __getitem__(self, name: str) -> Tensor:
        return self.rows(name, 0, self._entries[name].shape[0])

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        """Of the whole tensor."""
        return self._entries[name].shape

    def rows(self, name: str, first: int, end: int) -> Tensor:
        """Rows `first` to `end` (exclusive) of a tensor; only they are read."""
        entry = self._entries[name]
        parts = [
            self._read(rank, name, max(first, start) - start, min(end, stop) - start)
            for rank, start, stop in entry.rows
            if start < end and first < stop
        ]
        return torch.cat(parts) if parts else torch.empty((0, *entry.shape[1:]), dtype=entry.dtype)

    def _read(self, rank: int, name: str, first: int, end: int) -> Tensor:
        assert self._folder is not None, "there is a tensor"
        with safe_open(self._folder / shard_name(rank), framework="pt") as file:
            return file.get_slice(name)[first:end]

    def _check(self, folder: Path) -> None:
        """ValueError unless every file holds exactly the rows that the index says."""
        ranks = {rank for entry in self._entries.values() for rank, _, _ in entry.rows}
        for rank in ranks:
            wanted = {
                name: [end - first, *entry.shape[1:]]
                for name, entry in self._entries.items()
                for of, first, end in entry.rows
                if of == rank
            }
            with safe_open(folder / shard_name(rank), framework="pt") as file:
                found = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
            if found != wanted:
                name = min(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
                raise ValueError(
                    f"holds {found.get(name)} of {name} in {shard_name(rank)} instead of {wanted.get(name)}"
                )


def _read_index(folder: Path) -> dict[str, _Entry]:
    index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    return {name: _entry(name, values) for name, values in index["tensors"].items()}


def _entry(name: str, values: Mapping[str, Any]) -> _Entry:
    shape = tuple(int(number) for number in values["shape"])
    rows = tuple((int(rank), int(first), int(end)) for rank, first, end in values["rows"])
    at, last = 0, -1
    for rank, first, end in rows:
        if rank <= last or first != at or end <= first:
            raise ValueError(f"lists rows {first} to {end} of {name} for rank {rank} behind row {at} of rank {last}")
        at, last = end, rank
    if not shape or at != shape[0]:
        raise ValueError(f"lists {at} rows of {name}, whose shape is {list(shape)}")
    dtype = getattr(torch, str(values["dtype"]), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"gives {name} the unknown type {values['dtype']}")
    return _Entry(shape=shape, dtype=dtype, rows=rows)
