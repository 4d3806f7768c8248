"""A step of the engine: which requests it computes, and what their new tokens change. `rows.py` computes them.

Waiting requests are admitted by priority, then in order; running ones advance by one token; finished ones leave.
"""

from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from itertools import takewhile
from typing import TypeVar

from rlvr.core.engine.cache import Stored
from rlvr.core.engine.request import Request
from rlvr.core.engine.rows import Batch, Rows, Sampled

MAX_PREFILL_TOKENS = 16384  # padded, of one forward
T = TypeVar("T")


class Scheduler:
    """Waiting requests, running rows and parked sessions.

    Parked sessions and running requests share a budget of `max_cached_tokens`; the session parked longest is evicted
    first.
    """

    def __init__(self, rows: Rows, *, num_slots: int, max_cached_tokens: int):
        self.rows, self._num_slots, self._max_cached_tokens = rows, num_slots, max_cached_tokens
        self.waiting: list[Request] = []  # the next one first
        self.undelivered: dict[Request, None] = {}  # waiting, starting or running, in order of submission
        # per session: tokens of its last completion, and their keys and values
        self.parked: OrderedDict[Hashable, tuple[tuple[int, ...], Stored]] = OrderedDict()
        self._stale = False
        self.policy_version = 0

    @property
    def running(self) -> list[Request]:
        return self.rows.requests

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def submit(self, request: Request) -> None:
        self.undelivered[request] = None
        insort(self.waiting, request, key=lambda queued: queued.sampling.priority)

    def abort(self, request: Request) -> None:
        """Drop a request; a running one leaves at the next step."""
        request.aborted = True
        self.undelivered.pop(request, None)
        if request in self.waiting:
            self.waiting.remove(request)

    def release(self, session: Hashable) -> None:
        self.parked.pop(session, None)

    def new_weights(self, version: int) -> None:
        """Drop every key and value; running rows are recomputed separately and continue with the new weights."""
        self.parked.clear()
        self._stale = bool(self.running)
        for request in self.running:
            request.note_version(version)
        self.policy_version = version

    def drop_all(self) -> list[Request]:
        """Drop all requests and sessions; returns the requests."""
        dropped = list(self.undelivered)
        for held in (self.undelivered, self.waiting, self.parked):
            held.clear()
        self._stale = False
        self.rows.reset(reuse=False)  # buffers may hold NaN, and 0 x NaN is NaN
        return dropped

    def step(self) -> None:
        """Sample the first token of waiting requests that start, then one for every running row."""
        if self._stale:
            self.rows.recompute(_chunks([request.cached_ids for request in self.running], len))
            self._stale = False
        for batch in self._admit():
            self._finish(batch, self.rows.run(batch))
        if self.running:
            batch = Batch(requests=self.running)
            self._finish(batch, self.rows.run(batch))

    def _admit(self) -> list[Batch]:
        """The forwards of waiting requests that start; each distinct prompt is prefilled once, a session only from its
        first new token.

        A prefill costs about as much as a step, so a full batch waits until an eighth of its slots are free.
        """
        free = self._num_slots - len(self.running)
        worth_it = max(1, min(len(self.waiting), self._num_slots // 8))
        if not self.waiting or (self.running and free < worth_it):
            return []
        if not self.running:
            self.rows.reset()
        admitted, self.waiting = self.waiting[:free], self.waiting[free:]
        known: list[tuple[Request, Stored]] = []
        fresh: dict[tuple[int, ...], list[Request]] = {}  # by prompt
        for request in admitted:
            request.policy_version = self.policy_version
            ids, stored = self.parked.pop(request.session, ((), []))
            # leave at least one token to compute
            pairs = takewhile(lambda pair: pair[0] == pair[1], zip(ids, request.prompt_ids[:-1], strict=False))
            if count := sum(1 for _ in pairs):
                known.append((request, [(planes, states[:count]) for planes, states in stored]))
            else:
                fresh.setdefault(request.prompt_ids, []).append(request)
        batches = list[Batch]()
        for groups in _chunks(list(fresh.values()), lambda same: len(same[0].prompt_ids)):
            requests = [request for same in groups for request in same]
            owners = [i for i, same in enumerate(groups) for _ in same]
            prompts = [same[0].prompt_ids for same in groups]
            batches.append(Batch(requests=requests, prompts=prompts, owners=owners))
        for chunk in _chunks(known, lambda item: len(item[0].prompt_ids) - len(item[1][0][1])):
            requests, stored = zip(*chunk, strict=True)
            prompts = [request.prompt_ids for request in requests]
            batches.append(Batch(requests=requests, prompts=prompts, stored=stored))
        return batches

    def _finish(self, batch: Batch, sampled: Sequence[Sampled]) -> None:
        """Hand out the batch's tokens; finished requests leave."""
        first = len(self.running) - len(batch.requests)
        tokens = enumerate(zip(batch.requests, sampled, strict=True), first)
        done = [row for row, (request, token) in tokens if request.add(*token)]
        for request in batch.requests:
            if request.on_token is not None and not request.aborted:
                request.on_token(request.token_ids[-1], request.logprobs[-1][0])
        if done:
            self._leave(done)
        if batch.prompts:  # more requests run, beside the parked sessions
            self._evict()

    def _leave(self, rows: Sequence[int]) -> None:
        """Park and deliver the requests of these rows."""
        leaving = [self.running[row] for row in rows]
        # park sessions, with one copy for all
        kept = [row for row in rows if self.running[row].session is not None and not self.running[row].aborted]
        parking = [self.running[row] for row in kept]
        saved = self.rows.runner.save(kept, [len(request.cached_ids) for request in parking]) if kept else []
        self.rows.leave(rows)
        for request, stored in zip(parking, saved, strict=bool(saved)):
            self.parked[request.session] = request.cached_ids, stored
            self.parked.move_to_end(request.session)
        if saved:
            self._evict()
        for request in leaving:
            self.undelivered.pop(request, None)
            request.deliver()

    def _evict(self) -> None:
        total = sum(len(request.prompt_ids) + request.sampling.max_tokens for request in self.running)
        total += sum(len(ids) for ids, _ in self.parked.values())
        while self.parked and total > self._max_cached_tokens:
            total -= len(self.parked.popitem(last=False)[1][0])


def _chunks(items: Sequence[T], length: Callable[[T], int]) -> list[list[T]]:
    """Split into runs of at most `MAX_PREFILL_TOKENS` tokens after padding, at least one item each."""
    chunks: list[list[T]] = []
    longest = 0
    for item in items:
        longest = max(longest, length(item))
        if not chunks or (len(chunks[-1]) + 1) * longest > MAX_PREFILL_TOKENS:
            chunks.append([])
            longest = length(item)
        chunks[-1].append(item)
    return chunks
