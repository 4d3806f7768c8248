"""Tensors into a server by vLLM's weight transfer (start, update, finish): by files, HTTP, or on GPUs NCCL or CUDA IPC.

The other side is `extension/rlvr_vllm_extension.py`. NCCL and IPC never ran: there was no GPU.
"""

from __future__ import annotations

import base64
import ctypes
import fcntl
import os
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from rlvr.engines.vllm.server import Facts, Server
from rlvr.engines.vllm.weights import in_parts
from rlvr.errors import UserError

CHUNK_BYTES = 64 << 20
"""Of one request; a larger tensor goes alone."""
NCCL_DTYPES = {torch.float16: 6, torch.float32: 7, torch.bfloat16: 9}  # of nccl.h
SIOCGIFADDR = 0x8915
FILES: Mapping[str, Any] = {"transport": "files"}

Way = tuple[Mapping[str, Any], Iterator[Mapping[str, Any]]]
"""What the workers are told first, and the updates."""


@dataclass(frozen=True, kw_only=True)
class Parcel:
    """Tensors in the servers' precision, in host memory, and the trainer's device."""

    tensors: Mapping[str, Tensor]
    device: torch.device

    @property
    def gpu(self) -> str | None:
        """Which GPU the trainer has; None for another device."""
        return str(torch.cuda.get_device_properties(self.device).uuid) if self.device.type == "cuda" else None


def transfer(server: Server, facts: Facts, source: Path | Parcel, version: str) -> None:
    """Load all weights into a paused server, which calls them `version` then.

    Raises ServerGoneError, RefusedError; UserError where NCCL is missing.
    """
    with _way(facts, source) as (info, updates):
        server.call("/collective_rpc", {"method": "give_up_update"})  # of a trainer that was killed
        server.call("/init_weight_transfer_engine", {"init_info": info})
        server.call("/start_weight_update")
        for update in updates:
            server.update(update)
        server.call("/finish_weight_update", {"weight_version": version})


def _way(facts: Facts, source: Path | Parcel) -> AbstractContextManager[Way]:
    if isinstance(source, Path):
        return nullcontext((FILES, iter([{"path": str(source), "is_last": True}])))
    if source.gpu is None or facts.gpu is None:
        return nullcontext((FILES, chunks(source.tensors)))
    if source.gpu != facts.gpu:
        return _nccl(source, facts.num_workers)
    return nullcontext((FILES, chunks(source.tensors))) if facts.num_workers > 1 else _ipc(source)


def chunks(tensors: Mapping[str, Tensor]) -> Iterator[dict[str, Any]]:
    """Safetensors in requests of bounded size."""
    left = len(tensors)
    for part in in_parts(tensors.items(), CHUNK_BYTES):
        left -= len(part)
        yield {"data": base64.b64encode(save(part)).decode(), "is_last": not left}


def _metadata(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return {
        "names": list(tensors),
        "dtype_names": [str(one.dtype).removeprefix("torch.") for one in tensors.values()],
        "shapes": [list(one.shape) for one in tensors.values()],
        "is_last": True,
    }


@contextmanager
def _ipc(parcel: Parcel) -> Iterator[Way]:
    """Trainer and server share a GPU: handles of its memory, which stays until the update is finished."""
    held = {name: one.to(parcel.device) for name, one in parcel.tensors.items()}

    def written(value: Any) -> Any:
        if isinstance(value, bytes):
            return {"bytes": base64.b64encode(value).decode()}
        return {"dtype": str(value).removeprefix("torch.")} if isinstance(value, torch.dtype) else value

    handles = []
    for tensor in held.values():
        args = reduce_tensor(tensor)[1]
        handles.append({parcel.gpu: [written(one) for one in (*args[1:4], *args[5:])]})  # without the two classes
    yield {"transport": "ipc", "packed": False}, iter([_metadata(held) | {"ipc_handles": handles}])


@contextmanager
def _nccl(parcel: Parcel, num_workers: int) -> Iterator[Way]:
    """The trainer is rank 0 of a group with the workers. Its part runs beside the requests, which tell the outcome."""
    group = Nccl(num_workers + 1)
    info = {
        "transport": "nccl",
        "nccl_unique_id_b64": base64.b64encode(bytes(group.unique_id)).decode(),
        "rank_offset": 1,
        "world_size": num_workers + 1,
        "packed": False,
    }
    thread = threading.Thread(target=group.send, args=(parcel,), daemon=True)  # hangs if a worker dies
    thread.start()
    try:
        yield info, iter([_metadata(parcel.tensors)])
        thread.join()
    finally:
        group.call("ncclCommAbort", group.comm)


class _UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


class Nccl:
    """A communicator over torch's NCCL, which vLLM's workers join by its id. vLLM's own client needs vLLM installed."""

    def __init__(self, size: int) -> None:
        self._size, self.comm, self.unique_id = size, ctypes.c_void_p(), _UniqueId()
        try:
            self._lib = ctypes.CDLL("libnccl.so.2")
        except OSError as error:
            raise UserError(f"engine.sync=broadcast: there is no NCCL ({error}); choose engine.sync=folder.") from error
        self.call("ncclGetUniqueId", ctypes.byref(self.unique_id))

    def send(self, parcel: Parcel) -> None:
        """Join, with the sum of one number that vLLM's workers begin with, and broadcast the tensors in order."""
        with torch.cuda.device(parcel.device), torch.cuda.stream(torch.cuda.Stream(parcel.device)):
            self.call("ncclCommInitRank", ctypes.byref(self.comm), self._size, self.unique_id, 0)
            self._collective("ncclAllReduce", torch.zeros(1, device=parcel.device))
            for tensor in parcel.tensors.values():
                self._collective("ncclBroadcast", tensor.to(parcel.device))
            torch.cuda.current_stream().synchronize()

    def _collective(self, name: str, tensor: Tensor) -> None:
        """The 0 is the sum of an all-reduce, and the sender of a broadcast."""
        at, count = ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.numel())
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.call(name, at, at, count, NCCL_DTYPES[tensor.dtype], 0, self.comm, stream)

    def call(self, name: str, *arguments: Any) -> None:
        """RuntimeError if NCCL fails."""
        if code := getattr(self._lib, name)(*arguments):
            raise RuntimeError(f"{name} failed with status {code}; NCCL_DEBUG=WARN tells why")


def use_address(host: str) -> None:
    """Let NCCL use the interface with this IPv4 address. UserError if this machine has none."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        wanted = socket.inet_aton(socket.gethostbyname(host))
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # an interface without an address
                if fcntl.ioctl(one, SIOCGIFADDR, struct.pack("256s", name.encode()))[20:24] == wanted:
                    os.environ["NCCL_SOCKET_IFNAME"] = f"={name}"
                    return
    raise UserError(
        f"engine.broadcast_host={host}: this machine has no such address; name one that the servers reach, or leave it "
        "out."
    )
