"""Reads what stands before the weights of a GGUF file: its values, and where each tensor lies.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The readers of other packages trust the counts in a file, and
one broken byte lets them loop or allocate without end; here each length is compared with what is left of the file.
"""

import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

MAGIC = b"GGUF"
VERSIONS = (2, 3)
STRING, ARRAY = 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
MOST_DIMENSIONS = 8  # ggml has 4
BLOCK = re.compile(r"blk\.(\d+)\.")


class DamagedError(Exception):
    """The bytes are no GGUF file, or not all of one; the message ends a sentence."""


@dataclass(frozen=True, kw_only=True)
class TensorInfo:
    shape: tuple[int, ...]
    kind: int  # number of its type, a `gguf.GGMLQuantizationType`
    begin: int  # byte of the file

    @property
    def size(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class Header:
    values: Mapping[str, Any]  # e.g. `general.architecture`; of arrays only their length
    tensors: Mapping[str, TensorInfo]
    num_bytes: int  # of the whole file

    @property
    def architecture(self) -> str:
        return str(self.values.get("general.architecture", ""))

    @property
    def num_weights(self) -> int:
        return sum(tensor.size for tensor in self.tensors.values())


def read_header(file: Path) -> Header:
    """The header of a file. DamagedError if it breaks off, or contradicts itself."""
    size = file.stat().st_size
    if size < len(MAGIC) + 20:
        raise DamagedError(f"it has only {size} bytes")
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        cursor = _Cursor(data, size)
        if cursor.take(4) != MAGIC:
            raise DamagedError("it does not begin with the letters GGUF")
        version, num_tensors, num_values = cursor.numbers("IQQ")
        if version not in VERSIONS:
            raise DamagedError(f"it has the version {version}, and versions 2 and 3 can be read")
        try:
            values = {cursor.string(): cursor.value() for _ in range(num_values)}
            infos = [cursor.tensor() for _ in range(num_tensors)]
        except UnicodeDecodeError:
            raise DamagedError("a text in it is not UTF-8") from None
    alignment = values.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise DamagedError(f"its alignment is {alignment}")
    start = -(-cursor.position // alignment) * alignment
    tensors = {name: TensorInfo(shape=shape, kind=kind, begin=start + offset) for name, shape, kind, offset in infos}
    header = Header(values=values, tensors=tensors, num_bytes=size)
    _check(header, num_values, num_tensors)
    return header


def _check(header: Header, num_values: int, num_tensors: int) -> None:
    if len(header.values) < num_values or len(header.tensors) < num_tensors:
        raise DamagedError("it names a value or a tensor twice")
    if not header.architecture or not header.tensors:
        raise DamagedError("it names no architecture" if not header.architecture else "it has no weights")
    there = {int(match[1]) for name in header.tensors if (match := BLOCK.match(name))}
    layers = header.values.get(f"{header.architecture}.block_count")
    if there and layers is not None and layers != len(there):
        raise DamagedError(f"it says that it has {layers} layers, and has the weights of {len(there)}")


class _Cursor:
    """A place in the bytes of a header."""

    def __init__(self, data: mmap.mmap, end: int) -> None:
        self._data, self._end, self.position = data, end, 0

    def take(self, length: int) -> bytes:
        self._room(length)
        self.position += length
        return self._data[self.position - length : self.position]

    def _room(self, length: int) -> None:
        if length > self._end - self.position:
            raise DamagedError(f"it breaks off in its header, after {self._end:,} bytes")

    def numbers(self, codes: str) -> tuple[Any, ...]:
        return struct.unpack(f"<{codes}", self.take(struct.calcsize(f"<{codes}")))

    def string(self) -> str:
        return self.take(self.numbers("Q")[0]).decode("utf-8")

    def value(self) -> Any:
        return self._value(*self.numbers("I"))

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind in SCALARS:
            return self.numbers(SCALARS[kind])[0]
        if kind != ARRAY:
            raise DamagedError(f"a value in it has the unknown type {kind}")
        inside, length = self.numbers("IQ")
        if inside in SCALARS:
            size = length * struct.calcsize(f"<{SCALARS[inside]}")
            self._room(size)
            self.position += size
        elif inside == STRING:
            self._room(8 * length)  # each has its length before it
            for _ in range(length):
                self.string()
        else:
            raise DamagedError(f"a list in it has items of the unknown type {inside}")
        return length

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name, (dimensions,) = self.string(), self.numbers("I")
        if dimensions > MOST_DIMENSIONS:
            raise DamagedError(f"a tensor in it has {dimensions:,} dimensions")
        shape = self.numbers(f"{dimensions}Q")
        kind, offset = self.numbers("IQ")
        return name, shape, kind, offset
