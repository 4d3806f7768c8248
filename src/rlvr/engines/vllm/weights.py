"""Transfer of the policy's weights to vLLM's workers (start, update, finish): by files in a shared folder, HTTP, or on
GPUs NCCL or CUDA IPC.

The server side is `extension/rlvr_vllm_extension.py`. NCCL and IPC never ran: there was no GPU.
"""

import base64
import ctypes
import fcntl
import os
import shutil
import socket
import struct
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save, save_file
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from rlvr.engines.vllm.server import Facts, Server
from rlvr.errors import UserError
from rlvr.models.adapters import adapter_weights, lora_layers, write_adapters
from rlvr.models.policy import HubPolicy
from rlvr.records.files import writing
from rlvr.scale.sharding import whole

MAX_FILE_BYTES = 2 << 30  # per file; limits the additional memory
KEEP = 2  # versions kept: a returning server may read the last one while the next is written
KEEP_ADAPTERS = 16  # adapters are small, and a server with many may reload one for a request
CHUNK_BYTES = 64 << 20  # per HTTP request; a larger tensor is sent alone
NCCL_DTYPES = {torch.float16: 6, torch.float32: 7, torch.bfloat16: 9}  # values of nccl.h
SIOCGIFADDR = 0x8915
FILES: Mapping[str, Any] = {"transport": "files"}

Way = tuple[Mapping[str, Any], Iterator[Mapping[str, Any]]]
"""Initialization info of the workers, and the updates."""


def full_weights(policy: HubPolicy) -> Iterator[tuple[str, Tensor]]:
    """Name and value of every tensor of the model, as in a checkpoint without adapters, tied ones once.

    Adapters are merged in float32 into a copy; the policy does not change (pitfall 32).
    """
    if policy.adapters is None:
        yield from policy.trained_weights()
        return
    own, layers = adapter_weights(policy.model), lora_layers(policy.model)
    for name, parameter in policy.model.named_parameters():
        if name in own:
            continue
        value, layer = whole(parameter), name.removesuffix(".base_layer.weight")
        if layer != name:
            value = value.float() + layers[layer].get_delta_weight("default").detach().float()
        yield name.replace(".base_layer.", "."), value


def as_served(value: Tensor, dtype: torch.dtype, *, copy: bool = False) -> Tensor:
    return value.to(device="cpu", dtype=dtype if value.is_floating_point() else None, copy=copy).contiguous()


def in_parts(tensors: Iterable[tuple[str, Tensor]], max_bytes: int) -> Iterator[dict[str, Tensor]]:
    """Split tensors into dictionaries of at most `max_bytes`; a larger tensor is alone."""
    held: dict[str, Tensor] = {}
    for name, tensor in tensors:
        if held and sum(one.nbytes for one in held.values()) + tensor.nbytes > max_bytes:
            yield held
            held = {}
        held[name] = tensor
    yield held


class WeightsFolder:
    """`root/v000005/*.safetensors`: the newest versions of the weights. UserError on disk errors."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()  # servers have another working directory

    def of(self, version: int) -> Path:
        return self.root / f"v{version:06d}"

    def write(self, version: int, weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype) -> None:
        with _new_folder(self.of(version)) as folder:
            served = ((name, as_served(value, dtype)) for name, value in weights)
            for number, part in enumerate(in_parts(served, MAX_FILE_BYTES)):
                save_file(part, folder / f"{number:05d}.safetensors")
        self._keep(version, KEEP)

    def write_adapter(self, version: int, policy: HubPolicy) -> None:
        with _new_folder(self.of(version)) as folder:
            write_adapters(policy.model, folder)
        self._keep(version, KEEP_ADAPTERS)

    def clear(self) -> None:
        for folder in self._versions():
            shutil.rmtree(folder, ignore_errors=True)
        if self.root.is_dir() and not any(self.root.iterdir()):
            self.root.rmdir()

    def _keep(self, version: int, count: int) -> None:
        found = self._versions()
        kept = [folder for folder in found if folder <= self.of(version)][-count:]  # later versions predate a resume
        for folder in found:
            if folder not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def _versions(self) -> list[Path]:
        return sorted(self.root.glob("v[0-9]*")) if self.root.is_dir() else []


@contextmanager
def _new_folder(final: Path) -> Iterator[Path]:
    """A folder that gets its name when complete."""
    partial = final.with_name(f"{final.name}.partial")
    with writing(final):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)


@dataclass(frozen=True, kw_only=True)
class Parcel:
    """Tensors in the servers' precision, in host memory, and the trainer's device."""

    tensors: Mapping[str, Tensor]
    device: torch.device

    @property
    def gpu(self) -> str | None:
        return str(torch.cuda.get_device_properties(self.device).uuid) if self.device.type == "cuda" else None


def transfer(server: Server, facts: Facts, source: Path | Parcel, version: str) -> None:
    """Load all weights into a paused server and set its version.

    Raises ServerGoneError, RefusedError; UserError without NCCL.
    """
    with _way(facts, source) as (info, updates):
        server.call("/collective_rpc", {"method": "abort_update"})  # from a killed trainer
        server.call("/init_weight_transfer_engine", {"init_info": info})
        server.call("/start_weight_update")
        for update in updates:
            server.update(update)
        server.call("/finish_weight_update", {"weight_version": version})


def _way(facts: Facts, source: Path | Parcel) -> AbstractContextManager[Way]:
    if isinstance(source, Path):
        return nullcontext((FILES, iter([{"path": str(source), "is_last": True}])))
    if None not in (source.gpu, facts.gpu) and source.gpu != facts.gpu:
        return _nccl(source, facts.num_workers)
    if source.gpu is not None and source.gpu == facts.gpu and facts.num_workers == 1:
        return _ipc(source)
    return nullcontext((FILES, chunks(source.tensors)))


def chunks(tensors: Mapping[str, Tensor]) -> Iterator[dict[str, Any]]:
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
    """Trainer and server share a GPU: sends handles of its memory, which stays until the update is finished."""
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
    """The trainer is rank 0 of a group with the workers. It sends in a thread; the HTTP requests report the outcome."""
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
    """A communicator on torch's NCCL, which vLLM's workers join by its id. vLLM's own client needs vLLM installed."""

    def __init__(self, size: int) -> None:
        self._size, self.comm, self.unique_id = size, ctypes.c_void_p(), _UniqueId()
        try:
            self._lib = ctypes.CDLL("libnccl.so.2")
        except OSError as error:
            raise UserError(f"engine.sync=broadcast: there is no NCCL ({error}); choose engine.sync=folder.") from error
        self.call("ncclGetUniqueId", ctypes.byref(self.unique_id))

    def send(self, parcel: Parcel) -> None:
        """Join, with the one-element sum that vLLM's workers start with, and broadcast the tensors in order."""
        with torch.cuda.device(parcel.device), torch.cuda.stream(torch.cuda.Stream(parcel.device)):
            self.call("ncclCommInitRank", ctypes.byref(self.comm), self._size, self.unique_id, 0)
            self._collective("ncclAllReduce", torch.zeros(1, device=parcel.device))
            for tensor in parcel.tensors.values():
                self._collective("ncclBroadcast", tensor.to(parcel.device))
            torch.cuda.current_stream().synchronize()

    def _collective(self, name: str, tensor: Tensor) -> None:
        """The 0 is the sum of an all-reduce, and the root of a broadcast."""
        at, count = ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.numel())
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.call(name, at, at, count, NCCL_DTYPES[tensor.dtype], 0, self.comm, stream)

    def call(self, name: str, *arguments: Any) -> None:
        if code := getattr(self._lib, name)(*arguments):
            raise RuntimeError(f"{name} failed with status {code}; NCCL_DEBUG=WARN tells why")


def use_address(host: str) -> None:
    """Make NCCL use the interface with this IPv4 address. UserError if this machine has none."""
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
