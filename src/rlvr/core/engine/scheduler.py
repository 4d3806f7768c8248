"""Request scheduling: `step()` is schedule -> run -> postprocess.

Waiting requests are admitted by priority, then in order; running ones advance by one token; finished ones leave.
"""

from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from itertools import takewhile
from math import isfinite
from typing import TypeVar

import torch
from torch import Tensor

from rlvr.core.devices import drawing_device
from rlvr.core.engine.cache import Stored
from rlvr.core.engine.request import Request
from rlvr.core.engine.runner import Runner
from rlvr.core.engine.sampler import RowSampling, most_likely, sample
from rlvr.core.errors import NonFiniteLogitsError

MAX_PREFILL_TOKENS = 16384  # padded, of one forward
T = TypeVar("T")


class Scheduler:
    """Waiting requests, running rows and parked sessions on one runner.

    Request i of `running` is in the runner's slot i. When rows leave, the last ones fill their slots:

        slot     0 1 2 3 4                  0 1 2
        request  A B C D E   B, D leave ->  A E C

    Parked sessions and running requests share a budget of `max_cached_tokens`; the session parked longest is evicted
    first.
    """

    def __init__(self, runner: Runner, *, num_slots: int, max_cached_tokens: int, device: torch.device):
        self._runner, self._device, self._draws_on = runner, device, drawing_device(device)
        self._num_slots, self._max_cached_tokens = num_slots, max_cached_tokens
        self.waiting: list[Request] = []  # the next one first
        self.running: list[Request] = []
        self.undelivered: dict[Request, None] = {}  # waiting, starting or running, in order of submission
        # per session: tokens of its last completion, and their keys and values
        self.parked: OrderedDict[Hashable, tuple[tuple[int, ...], Stored]] = OrderedDict()
        self._stale = False
        self.policy_version = 0
        # of the R running rows, on the device
        self._last_ids = torch.zeros(0, dtype=torch.int64, device=device)  # [R] sampled, not processed yet
        self._positions = self._last_ids  # [R] of last_ids
        self._sampling = RowSampling.of([], self._draws_on)
        self._truncates = False  # whether a row truncates its distribution

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def submit(self, request: Request) -> None:
        self.undelivered[request] = None
        insort(self.waiting, request, key=lambda one: one.sampling.priority)

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
        for held in (self.undelivered, self.running, self.waiting, self.parked):
            held.clear()
        self._stale = False
        self._runner.reset(reuse=False)  # buffers may hold NaN, and 0 x NaN is NaN
        return dropped

    def step(self) -> None:
        """Admit waiting requests and sample their first tokens, then sample one token for every running row."""
        if self._stale:
            self._runner.select([])
            for chunk in _chunks([request.cached_ids for request in self.running], len):
                self._runner.prefill(chunk, range(len(chunk)))
            self._stale = False
        self._admit()
        if self.running:
            self._advance(self._runner.decode(self._last_ids, self._positions), 0)

    def _admit(self) -> None:
        """Start waiting requests; each distinct prompt is prefilled once, a session only from its first new token.

        A prefill costs about as much as a step, so a full batch waits until an eighth of its slots are free.
        """
        free = self._num_slots - len(self.running)
        worth_it = max(1, min(len(self.waiting), self._num_slots // 8))
        if not self.waiting or (self.running and free < worth_it):
            return
        if not self.running:
            self._runner.reset()
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
        for groups in _chunks(list(fresh.values()), lambda same: len(same[0].prompt_ids)):
            owners = [i for i, same in enumerate(groups) for _ in same]
            logits = self._runner.prefill([same[0].prompt_ids for same in groups], owners)
            self._start([request for same in groups for request in same], logits)
        for chunk in _chunks(known, lambda item: len(item[0].prompt_ids) - len(item[1][0][1])):
            requests = [request for request, _ in chunk]
            logits = self._runner.extend([one.prompt_ids for one in requests], [stored for _, stored in chunk])
            self._start(requests, logits)
        self._evict()

    def _start(self, requests: Sequence[Request], logits: Tensor) -> None:
        """Add rows for processed prompts, and sample their first tokens."""
        first, device = len(self.running), self._device
        self.running.extend(requests)
        last_ids = torch.tensor([request.prompt_ids[-1] for request in requests], device=device)
        positions = torch.tensor([len(request.prompt_ids) - 1 for request in requests], device=device)
        sampling = RowSampling.of([request.sampling for request in requests], self._draws_on)
        self._last_ids = torch.cat([self._last_ids[:first], last_ids])
        self._positions = torch.cat([self._positions[:first], positions])
        self._sampling = RowSampling(*map(torch.cat, zip(self._sampling.rows(slice(first)), sampling, strict=True)))
        self._truncates = any(request.sampling.truncates for request in self.running)
        self._advance(logits, first)

    def _advance(self, logits: Tensor, first: int) -> None:
        """Sample a token for the rows `first ..`; finished rows leave."""
        requests, part = self.running[first:], slice(first, None)
        sampling = self._sampling.rows(part)
        self._positions[part] += 1
        logits = logits.to(self._draws_on)
        draw = sample(logits, self._positions[part].to(self._draws_on), sampling, truncates=self._truncates)
        self._last_ids[part] = draw.ids
        # the only synchronization with a GPU that has float64; float64 holds an id exactly
        ids, behavior, sampled, totals = torch.stack([column.double() for column in draw]).tolist()
        if not all(map(isfinite, totals)):
            raise NonFiniteLogitsError
        tokens = enumerate(zip(requests, map(int, ids), behavior, sampled, strict=True), first)
        done = [row for row, (request, token, own, truncated) in tokens if request.add(token, own, truncated)]
        _report(requests, logits, sampling)
        if done:
            self._leave(done)

    def _leave(self, rows: Sequence[int]) -> None:
        """Park and deliver the requests of these rows; the last rows fill their slots."""
        leaving = [self.running[row] for row in rows]
        # park sessions, with one copy for all
        kept = [row for row in rows if self.running[row].session is not None and not self.running[row].aborted]
        parking = [self.running[row] for row in kept]
        saved = self._runner.save(kept, [len(request.cached_ids) for request in parking]) if kept else []
        self._close_gaps(rows)
        for request, stored in zip(parking, saved, strict=bool(saved)):
            self.parked[request.session] = request.cached_ids, stored
            self.parked.move_to_end(request.session)
        if saved:
            self._evict()
        for request in leaving:
            self.undelivered.pop(request, None)
            request.deliver()

    def _close_gaps(self, rows: Sequence[int]) -> None:
        """Fill these slots with the last rows."""
        num_left, gone = len(self.running) - len(rows), set(rows)
        left = list(range(num_left))
        movers = [row for row in range(num_left, len(self.running)) if row not in gone]
        for row, mover in zip(rows, movers, strict=False):  # as many free rows are below num_left
            left[row] = mover
        self._runner.select(left)
        self.running = [self.running[row] for row in left]
        index = torch.tensor(left, dtype=torch.int64, device=self._device)
        self._last_ids, self._positions = self._last_ids[index], self._positions[index]
        self._sampling = self._sampling.rows(index.to(self._draws_on))

    def _evict(self) -> None:
        total = sum(len(request.prompt_ids) + request.sampling.max_tokens for request in self.running)
        total += sum(len(ids) for ids, _ in self.parked.values())
        while self.parked and total > self._max_cached_tokens:
            total -= len(self.parked.popitem(last=False)[1][0])


def _report(requests: Sequence[Request], logits: Tensor, sampling: RowSampling) -> None:
    """Report likeliest tokens and new tokens to the requests that asked for them."""
    asked = [(row, r.alternatives) for row, r in enumerate(requests) if r.alternatives is not None and not r.aborted]
    if asked:
        ids, logprobs = most_likely(logits, sampling, max(alternatives.count for _, alternatives in asked))
        for row, alternatives in asked:
            first = slice(0, alternatives.count)
            alternatives.seen.append((tuple(ids[row, first].tolist()), tuple(logprobs[row, first].tolist())))
    for request in requests:
        if request.on_token is not None and not request.aborted:
            request.on_token(request.token_ids[-1], request.logprobs[-1][0])


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
