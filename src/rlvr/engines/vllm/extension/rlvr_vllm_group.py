"""The process group in which a trainer broadcasts weights to the workers of vLLM servers: the code of both sides.

Only torch and the standard library are imported: rlvr is not installed where vLLM is, nor vLLM where rlvr trains. The
group is independent of existing ones and lives for one push: the trainer (rank 0) opens a store, workers get its
address over HTTP and number themselves there, and every tensor is broadcast as bytes in the order of the offer. Over
NCCL where every rank has its own GPU, else over gloo.
"""

# pyright: reportPrivateImportUsage=false, reportAttributeAccessIssue=false

from __future__ import annotations

import hashlib
import json
import math
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MAX_OFFER_CHARS = 64 << 20
CONNECT_TIMEOUT_S = 10.0
GLOO, NCCL, GIVEN_UP = "gloo", "nccl", "given up"
"""The trainer's verdict."""
UNREACHABLE = "the trainer cannot be reached at"
RANKS, VERDICT = "ranks", "verdict"
"""Keys of the store: number of workers, and the verdict."""


class OfferError(Exception):
    """An offer that cannot be received; the next try would fail too."""


class CutOffError(Exception):
    """Peers are gone or too late: the weights are incomplete."""


@dataclass(frozen=True)
class Offer:
    """Address and contents of a push: name, shape and type of each tensor, in order.

    `token` identifies the push; `size` counts the trainer and all workers; `limit_s` is for the whole push.
    """

    host: str
    port: int
    token: str
    size: int
    limit_s: float
    tensors: tuple[tuple[str, tuple[int, ...], str], ...]

    def to_json(self) -> str:
        """As vLLM passes it to the workers."""
        return json.dumps(vars(self))

    @classmethod
    def from_json(cls, text: str) -> Offer:
        """OfferError unless every value is valid."""
        try:
            found: dict[str, Any] = json.loads(text) if len(text) <= MAX_OFFER_CHARS else {}
            tensors = tuple((name, tuple(shape), dtype) for name, shape, dtype in found["tensors"])
            offer = cls(**{**found, "tensors": tensors})
            impossible = [what for what, is_fine in offer._checks() if not is_fine]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise OfferError(f"the offer of weights cannot be read ({type(error).__name__}: {error})"[:500]) from error
        if impossible:
            raise OfferError(f"the offer of weights has impossible {impossible[0]}")
        return offer

    def _checks(self) -> Iterator[tuple[str, bool]]:
        yield "host", isinstance(self.host, str) and 0 < len(self.host) <= 255
        yield "port", _is_count(self.port) and 0 < self.port < 65536
        yield "token", isinstance(self.token, str) and 0 < len(self.token) <= 64
        yield "size", _is_count(self.size) and 2 <= self.size <= 1_000_000
        yield "limit_s", isinstance(self.limit_s, int | float) and 0 < self.limit_s < math.inf
        yield "tensors", all(map(_is_tensor, self.tensors))
        yield "names", len({name for name, _, _ in self.tensors}) == len(self.tensors)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_tensor(entry: tuple[Any, tuple[Any, ...], Any]) -> bool:
    name, shape, dtype = entry
    return isinstance(name, str) and len(name) <= 1000 and all(map(_is_count, shape)) and dtype in DTYPES


class Group:
    """The ranks of one push. Raises CutOffError when another one is gone, or the time is over.

    Tensors are sent and received in host memory; NCCL copies them through the GPU.
    """

    def __init__(self, store: dist.Store, offer: Offer, *, rank: int, backend: str, address: str, end: float) -> None:
        self._end, self._is_nccl = end, backend == NCCL
        limit = timedelta(seconds=self._left_s())
        store = dist.PrefixStore(f"{offer.token}/{backend}", store)
        with _told():
            make = _nccl if self._is_nccl else _gloo
            self._group = make(store, rank, offer.size, limit, address)

    def send(self, tensor: Tensor) -> None:
        """To all other ranks, from rank 0."""
        self._broadcast(tensor.contiguous())

    def receive(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        """The tensor that rank 0 sends next."""
        return self._broadcast(torch.empty(shape, dtype=DTYPES[dtype]))

    def _broadcast(self, tensor: Tensor) -> Tensor:
        if not tensor.numel():
            return tensor
        whole = tensor.cuda() if self._is_nccl else tensor
        options = dist.BroadcastOptions()
        options.rootRank = 0
        options.timeout = timedelta(seconds=self._left_s())
        with _told():
            work = self._group.broadcast([whole.reshape(-1).view(torch.uint8)], options)
            work.wait(options.timeout) if self._is_nccl else work.wait()
        return whole.cpu()

    def _left_s(self) -> float:
        left = self._end - time.monotonic()
        if left <= 0:
            raise CutOffError("the time is over")
        return left

    def leave(self) -> None:
        """Close all connections: ranks that wait for this one get an error."""
        with suppress(RuntimeError):
            self._group.abort()
        del self._group


def _gloo(store: dist.Store, rank: int, size: int, limit: timedelta, address: str) -> Any:
    """On the interface that reaches the trainer; gloo's default follows the host's name."""
    options = dist.ProcessGroupGloo._Options()
    options._timeout = limit
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
    return dist.ProcessGroupGloo(store, rank, size, options)


def _nccl(store: dist.Store, rank: int, size: int, limit: timedelta, address: str) -> Any:
    """Without NCCL's watchdog, which ends the whole process when a peer is gone. It never ran: there was no GPU."""
    before = os.environ.get("TORCH_NCCL_BLOCKING_WAIT")
    os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"  # read when the group is made
    try:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = limit
        return dist.ProcessGroupNCCL(store, rank, size, options)
    finally:
        os.environ.pop("TORCH_NCCL_BLOCKING_WAIT")
        if before is not None:
            os.environ["TORCH_NCCL_BLOCKING_WAIT"] = before


@contextmanager
def _told() -> Iterator[None]:
    """Turn torch's errors of groups and stores into CutOffError."""
    try:
        yield
    except (RuntimeError, OSError) as error:  # DistError is a RuntimeError
        raise CutOffError(" ".join(str(error).split())[:300] or type(error).__name__) from error


def gpu() -> str:
    """Which GPU this process computes on, "" without one; two ranks of NCCL cannot share one."""
    return str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid) if torch.cuda.is_available() else ""


def join(offer: Offer, has_gpu: bool) -> Group:
    """A worker's place in the group, once all have joined.

    CutOffError if they do not; OfferError if the trainer cannot be reached (it listens until every server has
    answered) or the group is full.
    """
    end = time.monotonic() + offer.limit_s
    try:  # TCPStore retries an unreachable address until its timeout
        with socket.create_connection((offer.host, offer.port), CONNECT_TIMEOUT_S) as one:
            address = one.getsockname()[0]
    except OSError as error:
        raise OfferError(f"{UNREACHABLE} {offer.host} port {offer.port}: {error}") from error
    with _told():
        limit = timedelta(seconds=offer.limit_s)
        whole = dist.TCPStore(offer.host, offer.port, None, False, limit)
        store = dist.PrefixStore(offer.token, whole)
        rank = store.add(RANKS, 1)
        if rank >= offer.size:
            raise OfferError(f"more workers came than the {offer.size - 1} that the trainer waits for")
        store.set(place(rank), gpu() if has_gpu else "")
        backend = store.get(VERDICT).decode()
    if backend not in (GLOO, NCCL):
        raise CutOffError("the trainer gave up before all workers were there")
    return Group(whole, offer, rank=rank, backend=backend, address=address, end=end)


def place(rank: int) -> str:
    """Key of a worker's GPU."""
    return f"gpu/{rank}"


class Stream:
    """The tensors of an offer, in order. When the group breaks, the rest is zeros and `problem` says why: a broken
    iterator would leave vLLM's loader halfway."""

    def __init__(self, offer: Offer, group: Group) -> None:
        self._offer, self._group = offer, group
        self.problem: str | None = None

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, shape, dtype in self._offer.tensors:
            tensor = None
            if self.problem is None:
                try:
                    tensor = self._group.receive(shape, dtype)
                except CutOffError as error:
                    self.problem = f"{name} did not arrive: {error}"
            yield name, torch.zeros(shape, dtype=DTYPES[dtype]) if tensor is None else tensor


def entries(tensors: Mapping[str, Tensor]) -> tuple[tuple[str, tuple[int, ...], str], ...]:
    """Name, shape and type of tensors."""
    return tuple((name, tuple(value.shape), str(value.dtype).removeprefix("torch.")) for name, value in tensors.items())


def vocabulary_digest(ids: Mapping[str, int]) -> str:
    """Digest of every token's id: tells whether trainer and server have the same tokenizer."""
    text = "\n".join(f"{index}\t{token}" for token, index in sorted(ids.items(), key=lambda item: (item[1], item[0])))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
