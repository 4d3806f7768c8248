"""Safetensors files that are written and read without a second copy of what they hold.

tensors.safetensors          all that can be handed over as it is: safetensors writes it from where it lies
tensors-00001.safetensors    what has to be copied first (from a GPU, with gaps, memory of another tensor), a file
                             at a time, so that no more than FILE_BYTES or one tensor is held twice
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

FILE_BYTES = 1 << 26  # of copies in a file, or one tensor: as many files as matrices of adapters would be slow


def write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> list[Path]:
    """Write the tensors into `file`, and what has to be copied into others beside it; returns all of them."""
    ready = ready_tensors(tensors)
    save_file(ready, file)
    files, part, size = [file], dict[str, Tensor](), 0
    rest = [name for name in tensors if name not in ready]
    for name in rest:
        if part and size + tensors[name].nbytes > FILE_BYTES:
            files.append(_write_part(file, len(files), part))
            part, size = {}, 0
        part[name] = copied(tensors[name])
        size += part[name].nbytes
    return [*files, _write_part(file, len(files), part)] if part else files


def _write_part(file: Path, number: int, part: dict[str, Tensor]) -> Path:
    path = file.with_name(f"{file.stem}-{number:05d}{file.suffix}")
    save_file(part, path)
    return path


def files_of(file: Path) -> list[Path]:
    """What `write_tensors` wrote for this name, the named one first."""
    return [file, *sorted(file.parent.glob(f"{file.stem}-[0-9]*{file.suffix}"))]


def ready_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those that safetensors can write from where they lie; it refuses gaps, and memory that two tensors share."""
    ready, storages = dict[str, Tensor](), set[int]()
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage().data_ptr()
        if tensor.device.type == "cpu" and tensor.is_contiguous() and not (storage and storage in storages):
            storages.add(storage)
            ready[name] = tensor.detach()
    return ready


def copied(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()


class SavedTensors(Mapping[str, Tensor]):
    """The tensors of some files; each is read when it is asked for, into memory of its own.

    They are read, not mapped: the pages of a mapped file count as memory of the process. Copy what is kept: torch
    aligns its memory otherwise, and alignment decides the last bit of a product.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self._opened = [safe_open(file, framework="pt", backend="pread") for file in files]
        self._places = {name: file for file in self._opened for name in file.keys()}  # noqa: SIM118

    def __getitem__(self, name: str) -> Tensor:
        return self._places[name].get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._places[name].get_slice(name).get_shape())

    def rows(self, name: str, first: int, end: int) -> Tensor:
        """Rows `first` to `end` (exclusive); reads only these."""
        return self._places[name].get_slice(name)[first:end]
