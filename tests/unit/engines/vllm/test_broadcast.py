"""Weights over a process group: to several servers and workers at once, and whatever breaks in the middle."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from rlvr.engines.vllm import broadcast
from rlvr.engines.vllm.broadcast import Meeting, Parcel, own_address, send
from rlvr.engines.vllm.extension import rlvr_vllm_group as groups
from rlvr.engines.vllm.extension.rlvr_vllm_group import CutOffError, Offer, OfferError, Stream, entries, join
from rlvr.engines.vllm.wire import BrokenOffError, RefusedError, ServerGoneError

TENSORS = {
    "float": torch.randn(50, 30),
    "half": torch.randn(7).half(),
    "brain": torch.randn(3, 2, 5).bfloat16(),
    "number": torch.tensor(2.5),
    "nothing": torch.zeros(0, 4),
    "turned": torch.randn(20, 10).T,
    "large": torch.randn(2048, 2048),  # more than sockets hold
    "last": torch.tensor([1.0]),
}


def parcel(limit_s: float = 100.0, **changes: Any) -> Parcel:
    return replace(Parcel(tensors=TENSORS, host="127.0.0.1", limit_s=limit_s, has_gpu=False), **changes)


@dataclass(eq=False)
class Workers:
    """A server without HTTP: what its workers do with an offer."""

    count: int = 1
    at: Callable[[str], None] = lambda name: None  # as each tensor arrives
    got: list[dict[str, Tensor]] = field(default_factory=list)
    told: list[str] = field(default_factory=list)  # offers

    def receive_policy(self, text: str) -> None:
        self.told.append(text)
        with ThreadPoolExecutor(self.count) as pool:
            calls = [pool.submit(self.work, text) for _ in range(self.count)]
        for call in calls:
            call.result()

    def work(self, text: str) -> None:
        offer = Offer.from_json(text)
        try:
            group = join(offer, has_gpu=False)
        except CutOffError as error:
            raise BrokenOffError(str(error)) from error
        stream, got = Stream(offer, group), dict[str, Tensor]()
        try:
            for name, tensor in stream:
                self.at(name)
                got[name] = tensor
        finally:
            group.leave()
        if stream.problem is not None:
            raise BrokenOffError(stream.problem)
        self.got.append(got)


def sent(box: Parcel, *servers: Workers) -> list[Exception | None]:
    found = send(box, {server: server.count for server in servers})  # type: ignore[dict-item]
    return [found[server] for server in servers]  # type: ignore[index]


def met(box: Parcel, *servers: Workers) -> list[BaseException | None]:
    """What each of them raises in a meeting of all."""
    meeting = Meeting(box, servers)  # type: ignore[arg-type]
    with ThreadPoolExecutor(len(servers)) as pool:
        calls = [pool.submit(meeting.receive, server, server.count) for server in servers]  # type: ignore[arg-type]
    return [call.exception() for call in calls]


def is_whole(got: dict[str, Tensor]) -> bool:
    """All tensors, bit by bit, in their order."""
    return list(got) == list(TENSORS) and all(
        (got[name].dtype, got[name].shape) == (value.dtype, value.shape) and torch.equal(got[name], value)
        for name, value in TENSORS.items()
    )


def breaks_at(name: str, error: type[Exception], times: int = 1) -> Callable[[str], None]:
    """A worker that dies as this tensor arrives."""
    left = [None] * times

    def at(now: str) -> None:
        if now == name and left:
            left.pop()
            raise error("it died")

    return at


def test_pitfall_30_every_worker_gets_every_tensor_bit_by_bit() -> None:
    one, two = Workers(), Workers(count=2)
    assert sent(parcel(), one, two) == [None, None]
    assert [len(one.got), len(two.got)] == [1, 2]
    assert all(map(is_whole, [*one.got, *two.got]))


def test_a_group_has_nothing_to_do_with_the_one_that_is_there() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        one = Workers()
        assert sent(parcel(), one) == [None]
        assert is_whole(one.got[0])
        assert dist.get_world_size() == 1
        dist.barrier()
    finally:
        dist.destroy_process_group()


def test_two_groups_at_the_same_time_do_not_hear_each_other() -> None:
    """As where two ranks each bring a server up to date."""
    servers = Workers(count=2), Workers()
    other = parcel(tensors={name: value * 2 for name, value in TENSORS.items()})
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(sent, box, one) for box, one in zip((parcel(), other), servers, strict=True)]
    assert [call.result() for call in calls] == [[None], [None]]
    assert all(map(is_whole, servers[0].got))
    assert torch.equal(servers[1].got[0]["float"], 2 * TENSORS["float"])


@pytest.mark.parametrize("name", ["float", "large", "last"])
def test_pitfall_30_the_others_get_everything_when_a_worker_dies_in_the_middle(name: str) -> None:
    fine, broken = Workers(count=2), Workers(at=breaks_at(name, ServerGoneError))
    first, second = met(parcel(), fine, broken)
    assert (first, type(second)) == (None, ServerGoneError)
    assert all(map(is_whole, fine.got[-2:]))
    sizes = [json.loads(text)["size"] for text in fine.told]
    assert sizes in ([4, 3], [4])  # with it, then without it; or the fine ones had all before the other one died


def test_a_server_that_refuses_is_left_out_and_told_apart_from_those_that_it_held_up() -> None:
    class Refuses(Workers):
        def receive_policy(self, text: str) -> None:
            raise RefusedError("no")

    fine, refuses = Workers(), Refuses()
    first, second = met(parcel(), fine, refuses)
    assert (first, type(second)) == (None, RefusedError)
    assert is_whole(fine.got[-1])


def test_where_nobody_can_be_left_out_all_are_told_why() -> None:
    one, two = Workers(at=breaks_at("half", BrokenOffError, 9)), Workers(at=breaks_at("half", BrokenOffError, 9))
    assert [type(error) for error in met(parcel(), one, two)] == [BrokenOffError] * 2
    assert [len(one.told), len(two.told)] == [1, 1]


def test_a_worker_that_hangs_does_not_hold_the_trainer_for_ever() -> None:
    goes_on = threading.Event()

    class Hangs(Workers):
        def receive_policy(self, text: str) -> None:
            thread = threading.Thread(target=self.try_to, args=(text,))
            thread.start()
            goes_on.wait()
            thread.join()
            raise ServerGoneError("nothing in time")

        def try_to(self, text: str) -> None:
            with pytest.raises(BrokenOffError):
                self.work(text)

    hangs = Hangs(at=lambda name: name == "turned" and goes_on.wait())  # type: ignore[arg-type, return-value]
    fine = Workers()
    left, broadcasts = [], broadcast._broadcast

    def then_let_it_go(*args: Any) -> Any:
        left.append(broadcasts(*args))
        goes_on.set()
        return left[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broadcast, "_broadcast", then_let_it_go)
        first, second = met(parcel(limit_s=3.0), fine, hangs)
    assert type(second) is ServerGoneError
    assert first is None or isinstance(first, BrokenOffError)
    assert left[0] is not None, "the trainer did not notice"


def test_pitfall_30_a_worker_whose_trainer_dies_has_zeros_and_says_which_tensor_did_not_come() -> None:
    store, port = broadcast._listen("127.0.0.1")
    offer = Offer(host="127.0.0.1", port=port, token="x", size=2, limit_s=100.0, tensors=entries(TENSORS))

    def work() -> tuple[str | None, dict[str, Tensor]]:
        group = join(offer, has_gpu=False)
        stream = Stream(offer, group)
        got = dict(iter(stream))
        group.leave()
        return stream.problem, got

    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(work)
        prefix = dist.PrefixStore("x", store)
        prefix.wait([groups.place(1)])
        prefix.set(groups.VERDICT, groups.GLOO)
        end = time.monotonic() + 100.0
        group = groups.Group(store, offer, rank=0, backend="gloo", address="127.0.0.1", end=end)
        for value in list(TENSORS.values())[:2]:
            group.send(value)
        group.leave()
        problem, got = call.result()
    assert problem is not None
    assert problem.startswith("brain did not arrive: ")
    assert list(got) == list(TENSORS)
    assert torch.equal(got["half"], TENSORS["half"])
    assert not got["large"].any()


def test_pitfall_30_more_workers_than_a_server_tells_of_are_no_success() -> None:
    """Data parallel engines all take the call, and only the first one's answer is heard."""

    class Parallel(Workers):
        def receive_policy(self, text: str) -> None:
            with ThreadPoolExecutor(2) as pool:
                calls = [pool.submit(self.work, text) for _ in range(2)]
            assert sorted(type(call.exception()).__name__ for call in calls) == ["NoneType", "OfferError"]

    (error,) = sent(parcel(), Parallel())
    assert isinstance(error, RefusedError)
    assert "2 workers came, and the servers tell of 1" in str(error)


def test_pitfall_30_nccl_is_for_ranks_with_a_gpu_each() -> None:
    def backend(*gpus: str) -> str:
        store = dist.HashStore()
        for rank, gpu in enumerate(gpus[1:], 1):
            store.set(groups.place(rank), gpu)
        offer = Offer(host="x", port=1, token="x", size=len(gpus), limit_s=1.0, tensors=())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(groups, "gpu", lambda: gpus[0])
            return broadcast._gathered(store, offer, [], time.monotonic() + 60, has_gpu=True)

    assert backend("a", "b", "c") == "nccl"
    assert backend("a", "b", "") == backend("", "b") == backend("", "") == "gloo"
    assert backend("a", "b", "a") == "gloo", "NCCL refuses two ranks on one GPU"


GOOD = {"host": "h", "port": 1, "token": "t", "size": 2, "limit_s": 1.0, "tensors": [["a", [2], "float32"]]}


@pytest.mark.parametrize(
    "wrong",
    [
        "no JSON",
        "[" * 100_000,
        "[]",
        "null",
        json.dumps(GOOD | {"more": 1}),
        json.dumps({key: value for key, value in GOOD.items() if key != "port"}),
        *(
            json.dumps(GOOD | change)
            for change in (
                {"host": ""},
                {"port": 0},
                {"port": True},
                {"port": 70_000},
                {"token": 5},
                {"size": 1},
                {"limit_s": float("inf")},
                {"limit_s": float("nan")},
                {"limit_s": "1"},
                {"tensors": [["a", [2], "float32"]] * 2},
                {"tensors": [["a", [-2], "float32"]]},
                {"tensors": [["a", [2], "int7"]]},
                {"tensors": [["a", [2], []]]},
                {"tensors": [["a", 2, "float32"]]},
                {"tensors": [[["a"], [2], "float32"]]},
                {"tensors": [["a", [2]]]},
                {"tensors": "a"},
            )
        ),
    ],
)
def test_an_impossible_offer_is_refused_before_anything_is_waited_for(wrong: str) -> None:
    assert Offer.from_json(json.dumps(GOOD)).tensors == (("a", (2,), "float32"),)
    with pytest.raises(OfferError, match="the offer of weights"):
        Offer.from_json(wrong)


def test_a_trainer_that_cannot_be_reached_is_said_at_once() -> None:
    store, port = broadcast._listen("127.0.0.1")
    del store
    offer = Offer(host="127.0.0.1", port=port, token="x", size=2, limit_s=1e6, tensors=())
    with pytest.raises(OfferError, match=r"the trainer cannot be reached at 127.0.0.1 port"):
        join(offer, has_gpu=False)


def test_the_trainer_listens_on_the_address_by_which_it_reaches_the_servers() -> None:
    assert (
        own_address(["http://127.0.0.1:8000", "http://localhost:1/v1", "http://no.such.host.invalid:1"]) == "127.0.0.1"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broadcast.socket, "socket", Elsewhere)
        assert own_address(["http://127.0.0.1:8000", "http://10.0.0.7:8000"]) == "10.0.0.2"


class Elsewhere:
    """A socket of a machine that has another address towards others."""

    def __init__(self, *kind: Any) -> None: ...

    def connect(self, address: tuple[str, int]) -> None:
        self.own = "10.0.0.2" if address[0].startswith("10.") else "127.0.0.1"

    def getsockname(self) -> tuple[str, int]:
        return self.own, 1

    def __enter__(self) -> Elsewhere:
        return self

    def __exit__(self, *error: object) -> None: ...
