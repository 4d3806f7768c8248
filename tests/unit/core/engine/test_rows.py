"""Rows leave and the rest closes up."""

from concurrent.futures import Future

import torch

from rlvr.core.engine.rows import Request, Rows
from rlvr.core.engine.sampler import Draw
from rlvr.types import StopReason
from tests.unit.engines.tiny import sampling


def request(length: int, max_tokens: int = 9, stop_ids: frozenset[int] = frozenset()) -> Request:
    return Request(
        prompt_ids=tuple(range(length)),
        sampling=sampling(length, max_tokens=max_tokens, stop_ids=stop_ids),
        future=Future(),
    )


def drawn(*ids: int) -> Draw:
    values = -torch.tensor(ids, dtype=torch.float32)
    return Draw(ids=torch.tensor(ids), behavior_logprobs=values, sampling_logprobs=values, totals=values.double())


def test_the_example_of_the_docstring():
    rows = Rows(num_slots=8, device=torch.device("cpu"))
    requests = [request(n + 1) for n in range(5)]
    rows.add(requests)
    rows.record(drawn(10, 11, 12, 13, 14))
    finished, sources, targets = rows.take(torch.tensor([False, True, False, True, False]))
    assert [left.request for left in finished] == [requests[1], requests[3]]
    assert [left.completion.token_ids for left in finished] == [(11,), (13,)]
    assert [left.num_cached for left in finished] == [2, 4]
    assert (sources.tolist(), targets.tolist()) == ([4], [1])
    assert rows.requests == [requests[0], requests[4], requests[2]]
    assert rows.last_ids[:3].tolist() == [10, 14, 12]
    assert rows.lengths[:3].tolist() == [1, 5, 3]


def test_pitfall_03_a_row_that_moves_keeps_its_stop_ids_and_its_limit():
    rows = Rows(num_slots=4, device=torch.device("cpu"))
    rows.add([request(2, max_tokens=1), request(2, stop_ids=frozenset({7})), request(2, 3, frozenset({5, 6}))])
    rows.take(rows.record(drawn(1, 1, 1)))  # the third row moves into the first slot
    rows.add([request(2, stop_ids=frozenset({4}))])
    assert rows.record(drawn(7, 5, 6)).tolist() == [False, False, False]
    assert rows.record(drawn(6, 7, 4)).tolist() == [True, True, True]
    finished, _, _ = rows.take(torch.tensor([True, False, False]))
    assert finished[0].completion.token_ids == (1, 7, 6)
    assert finished[0].completion.stop_reason is StopReason.STOP


def test_the_room_for_sampled_tokens_grows():
    rows = Rows(num_slots=2, device=torch.device("cpu"))
    rows.add([request(3, max_tokens=1000)])
    for step in range(200):
        done = rows.record(drawn(step))
    assert not done.any()
    finished, _, _ = rows.take(torch.tensor([True]))
    assert finished[0].completion.token_ids == tuple(range(200))
    assert finished[0].completion.behavior_logprobs == tuple(-float(i) for i in range(200))
