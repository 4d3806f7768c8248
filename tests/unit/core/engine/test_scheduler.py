"""Rows leave and the rest closes up; what a step hands out."""

from concurrent.futures import Future

import torch

from rlvr.core.engine.request import Request
from rlvr.core.engine.rows import Rows
from rlvr.core.engine.scheduler import Scheduler
from rlvr.types import StopReason
from tests.unit.engines.tiny import sampling


class Scripted:
    """A runner whose model says the next token of each row's script, wherever the row has moved."""

    def __init__(self) -> None:
        self.rows: list[list[int]] = []
        self.kept: list[list[int]] = []

    def reset(self, *, reuse: bool = True) -> None:
        self.rows = []

    def prefill(self, prompts, owners):
        self.rows += [list(prompts[owner]) for owner in owners]
        return self.decode(None, None, first=len(self.rows) - len(owners))

    def decode(self, ids, lengths, first: int = 0):
        logits = torch.full((len(self.rows) - first, 50), -100.0)
        for place, row in enumerate(self.rows[first:]):
            logits[place, row.pop(0)] = 100.0
        return logits

    def select(self, rows) -> None:
        self.kept.append(list(rows))
        self.rows = [self.rows[row] for row in rows]

    def save(self, rows, lengths):
        return []


def begin(*scripts: tuple[int, ...], settings=None) -> tuple[Scripted, Scheduler, list[Request]]:
    """Requests that will be answered with what their prompts hold; they begin."""
    runner = Scripted()
    scheduler = Scheduler(Rows(runner, torch.device("cpu")), num_slots=8, max_cached_tokens=99)
    settings = settings or [sampling(max_tokens=9, stop_ids=frozenset({7}))] * len(scripts)
    requests = [Request(prompt_ids=s, sampling=one, future=Future()) for s, one in zip(scripts, settings, strict=True)]
    for request in requests:
        scheduler.submit(request)
    return runner, scheduler, requests


def test_the_example_of_the_docstring():
    a, b, c, d, e = (10, 20, 30), (11, 7), (12, 22, 32), (13, 7), (14, 24, 34)
    runner, scheduler, requests = begin(a, b, c, d, e)
    scheduler.step()  # the first two tokens of each
    assert runner.kept[-1] == [0, 4, 2]
    assert scheduler.running == [requests[0], requests[4], requests[2]]
    assert [request.token_ids for request in scheduler.running] == [[10, 20], [14, 24], [12, 22]]
    assert [requests[row].future.result().token_ids for row in (1, 3)] == [(11, 7), (13, 7)]
    assert requests[0].cached_ids == (*a, 10)
    scheduler.step()
    assert [request.token_ids[-1] for request in scheduler.running] == [30, 34, 32]


def test_pitfall_03_a_row_that_moves_keeps_its_limits():
    settings = [
        sampling(max_tokens=1),
        sampling(stop_ids=frozenset({7})),
        sampling(max_tokens=3, stop_ids=frozenset({5, 6})),
    ]
    runner, scheduler, requests = begin((1, 0), (1, 2, 5, 7), (1, 7, 6, 0), settings=settings)
    scheduler.step()  # the third row moves into the first slot
    assert runner.kept[-1] == [2, 1]
    assert requests[0].future.result().stop_reason is StopReason.LENGTH
    assert [request.token_ids for request in requests[1:]] == [[1, 2], [1, 7]]
    scheduler.step()
    assert requests[2].future.result().token_ids == (1, 7, 6)
    assert requests[2].future.result().stop_reason is StopReason.STOP
    assert not requests[1].future.done()
    scheduler.step()
    assert requests[1].future.result().token_ids == (1, 2, 5, 7)
