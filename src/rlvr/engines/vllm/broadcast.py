"""Weights straight to the servers' workers, by a process group that lives for one push: no shared file system.

`extension/rlvr_vllm_group.py` has the code of both sides. A group that breaks is made again without the server that
broke it; that one gets the same tensors when it is back.
"""

# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import socket
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlsplit

import torch.distributed as dist
from torch import Tensor

from rlvr.engines.vllm.extension import rlvr_vllm_group as groups
from rlvr.engines.vllm.extension.rlvr_vllm_group import CutOffError, Group, Offer
from rlvr.engines.vllm.server import Server
from rlvr.engines.vllm.wire import BrokenOffError, RefusedError
from rlvr.errors import UserError

POLL_S = 0.02
WORKERS_SHARE = 0.8
"""Of engine.timeout_s: a worker times out, and reports it, before the trainer does."""


@dataclass(frozen=True, kw_only=True)
class Parcel:
    """Tensors in the servers' precision, in host memory, and the address they are sent from."""

    tensors: Mapping[str, Tensor]
    host: str
    limit_s: float
    has_gpu: bool


class Meeting:
    """Servers that get a parcel together, once each of them has called `receive` or `leave`."""

    def __init__(self, parcel: Parcel, servers: Sequence[Server]) -> None:
        self._parcel = parcel
        self._missing = set(servers)
        self._ready: dict[Server, tuple[int, Future[None]]] = {}
        self._lock = threading.Lock()

    def receive(self, server: Server, num_workers: int) -> None:
        """Returns when all workers of the server have the weights and have verified them.

        Raises ServerGoneError, RefusedError; UserError where the trainer cannot listen.
        """
        future: Future[None] = Future()
        self._count(server, (num_workers, future))
        future.result()

    def leave(self, server: Server) -> None:
        """The server takes no part."""
        self._count(server, None)

    def _count(self, server: Server, ready: tuple[int, Future[None]] | None) -> None:
        with self._lock:
            if server not in self._missing:
                return
            self._missing.remove(server)
            if ready is not None:
                self._ready[server] = ready
            is_last = not self._missing
        if is_last and self._ready:  # the last one sends for all
            self._send()

    def _send(self) -> None:
        left = dict(self._ready)
        try:
            while left:
                found = send(self._parcel, {server: count for server, (count, _) in left.items()})
                again = {server for server, error in found.items() if isinstance(error, BrokenOffError)}
                for server in left.keys() - again or set(left):  # all of them where all broke off
                    _, future = left.pop(server)
                    error = found[server]
                    future.set_result(None) if error is None else future.set_exception(error)
        except BaseException as error:
            for _, future in left.values():
                future.set_exception(error)
            if not isinstance(error, Exception):
                raise


def send(parcel: Parcel, servers: Mapping[Server, int]) -> dict[Server, BaseException | None]:
    """Broadcast the tensors to servers with so many workers each; each server's error. UserError: cannot listen."""
    store, port = _listen(parcel.host)
    offer = Offer(
        host=parcel.host,
        port=port,
        token=uuid.uuid4().hex,
        size=1 + sum(servers.values()),
        limit_s=parcel.limit_s * WORKERS_SHARE,
        tensors=groups.entries(parcel.tensors),
    )
    text = offer.to_json()
    with ThreadPoolExecutor(len(servers)) as pool:
        calls = {server: pool.submit(server.receive_policy, text) for server in servers}
        problem = _broadcast(parcel, offer, store, list(calls.values()))
        found = {server: call.exception() for server, call in calls.items()}
    came = dist.PrefixStore(offer.token, store).add(groups.RANKS, 0)  # the store listens until all have answered
    for server, error in found.items():
        if error is None and came >= offer.size:  # data parallel engines, of which only the first one's answer is heard
            found[server] = RefusedError(f"{came} workers came, and the servers tell of {offer.size - 1}")
        elif isinstance(error, BrokenOffError) and problem:
            found[server] = BrokenOffError(f"{error}; the trainer: {problem}")
    return found


def _broadcast(parcel: Parcel, offer: Offer, store: dist.TCPStore, calls: Sequence[Future[None]]) -> str | None:
    """The trainer's side; returns its problem. Workers report by themselves what they have."""
    end = time.monotonic() + offer.limit_s
    group = None
    try:
        backend = _gathered(dist.PrefixStore(offer.token, store), offer, calls, end, parcel.has_gpu)
        group = Group(store, offer, rank=0, backend=backend, address=offer.host, end=end)
        for tensor in parcel.tensors.values():
            group.send(tensor)
        wait(calls, timeout=max(0.0, end - time.monotonic()))  # leaving at once would cut off slower workers
        return None
    except CutOffError as error:
        return str(error)
    finally:
        if group is None:
            dist.PrefixStore(offer.token, store).set(groups.VERDICT, groups.GIVEN_UP)
        else:
            group.leave()


def _gathered(store: dist.Store, offer: Offer, calls: Sequence[Future[None]], end: float, has_gpu: bool) -> str:
    """The backend, once all workers have joined. CutOffError if one fails."""
    keys = [groups.place(rank) for rank in range(1, offer.size)]
    while not store.check(keys):
        done, _ = wait(calls, timeout=POLL_S, return_when=FIRST_COMPLETED)
        if done or time.monotonic() > end:
            raise CutOffError("not all workers came")
    gpus = [store.get(key).decode() for key in keys] + [groups.gpu() if has_gpu else ""]
    backend = groups.NCCL if all(gpus) and len(set(gpus)) == len(gpus) else groups.GLOO
    store.set(groups.VERDICT, backend)
    return backend


def _listen(host: str) -> tuple[dist.TCPStore, int]:
    """A store at a free port of this address alone; by default it listens on all addresses."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        one = socket.socket(family, kind, protocol)
        try:
            one.bind(address)
            one.listen(1024)
            port = int(one.getsockname()[1])
            store = dist.TCPStore(
                host, port, None, True, timedelta(seconds=60), wait_for_workers=False, master_listen_fd=one.fileno()
            )
            one.detach()  # the store owns it
            return store, port
        finally:
            one.close()
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"engine.broadcast_host={host}: no server could be sent weights from there ({error}); name an address of "
            "this machine that the servers reach."
        ) from error


def own_address(urls: Sequence[str]) -> str:
    """This machine's address towards the servers; 127.0.0.1 if all are on it. No packet is sent."""
    found = []
    for parts in map(urlsplit, urls):
        try:
            where = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM)[0]
            with socket.socket(*where[:3]) as one:
                one.connect(where[4])
                found.append(str(one.getsockname()[0]))
        except OSError:
            continue  # reported elsewhere
    return next((one for one in found if not one.startswith("127.") and one != "::1"), "127.0.0.1")
