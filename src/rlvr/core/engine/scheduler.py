"""Which request runs when: `step()` is schedule -> run -> postprocess.

Waiting requests are admitted by priority, then in order; running ones advance by one token; finished ones leave.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from itertools import takewhile
from typing import TypeVar

import torch
from torch import Tensor

from rlvr.core.engine.cache import Stored
from rlvr.core.engine.rows import Finished, Request, Rows
from rlvr.core.engine.runner import Runner
from rlvr.core.engine.sampler import Draw, RowSampling, most_likely, sample
from rlvr.errors import NonFiniteLogitsError

MAX_PREFILL_TOKENS = 16384  # padded, of one forward
T = TypeVar("T")


class Scheduler:
    """Waiting requests, running rows and parked sessions over one runner.

    Parked sessions and running requests share a budget of `max_cached_tokens`; the session parked longest ago is
    evicted first.
    """

    def __init__(self, runner: Runner, *, num_slots: int, max_cached_tokens: int, device: torch.device):
        self._runner = runner
        self._rows = Rows(num_slots=num_slots, device=device)
        self._max_cached_tokens = max_cached_tokens
        self._waiting: list[Request] = []  # the next one first
        self._undelivered: dict[Request, None] = {}  # waiting, starting or running, in order of submission
        # of each session's last completion: tokens, and their keys and values
        self._parked: OrderedDict[Hashable, tuple[tuple[int, ...], Stored]] = OrderedDict()
        self._stale = False
        self.policy_version = 0

    @property
    def has_work(self) -> bool:
        """True while a request waits or runs."""
        return bool(self._waiting or self._rows.count)

    @property
    def num_waiting(self) -> int:
        """Requests that have not started."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Requests that have started."""
        return self._rows.count

    @property
    def num_undelivered(self) -> int:
        """Requests without a completion: waiting, running or being started."""
        return len(self._undelivered)

    @property
    def num_parked(self) -> int:
        """Sessions whose keys and values are kept."""
        return len(self._parked)

    def submit(self, request: Request) -> None:
        """Queue a request."""
        self._undelivered[request] = None
        insort(self._waiting, request, key=lambda one: one.sampling.priority)

    def abort(self, request: Request) -> None:
        """Drop a request, at the next step if it runs."""
        request.aborted = True
        self._undelivered.pop(request, None)
        if request in self._waiting:
            self._waiting.remove(request)
        elif request in self._rows.requests:
            self._rows.max_tokens[self._rows.requests.index(request)] = 0

    def release(self, session: Hashable) -> None:
        """Forget a session."""
        self._parked.pop(session, None)

    def new_weights(self, version: int) -> None:
        """Forget every key and value; running rows are recomputed and go on under the new weights."""
        self._parked.clear()
        self._stale = self._rows.count > 0
        self._rows.note_version(version)
        self.policy_version = version

    def drop_all(self) -> list[Request]:
        """Forget all requests and sessions; returns the requests."""
        dropped = list(self._undelivered)
        self._undelivered.clear()
        self._rows.clear()
        self._waiting.clear()
        self._parked.clear()
        self._stale = False
        self._runner.reset(reuse=False)  # a buffer may hold NaN, and a masked column counts 0 x NaN
        return dropped

    def step(self) -> None:
        """Admit what fits, then sample one token for every running row."""
        rows = self._rows
        if self._stale:
            sequences = [(row, rows.sequence(row)) for row in range(rows.count)]
            for chunk in _chunks(sequences, lambda item: len(item[1])):
                self._runner.prefill(chunk[0][0], [ids for _, ids in chunk], list(range(len(chunk))))
            self._stale = False
        self._admit()
        if rows.count:
            logits = self._runner.decode(rows.last_ids[: rows.count], rows.lengths[: rows.count])
            self._advance(logits, 0)

    def _advance(self, logits: Tensor, first: int) -> None:
        """Sample a token for the rows `first ..`; deliver those that are done and close the gaps."""
        rows = self._rows
        sampling = rows.sampling().rows(first, rows.count)
        draw = sample(logits, rows.lengths[first : rows.count] + 1, sampling)
        done = rows.record(draw, first)
        finite, any_done = torch.stack((draw.totals.isfinite().all(), done.any())).tolist()  # the only wait for the GPU
        if not finite:
            raise NonFiniteLogitsError(
                "the model's logits are not finite: its weights hold NaN or have grown too large; use another model, "
                "or train again with a lower trainer.learning_rate."
            )
        _report_tokens(rows.requests[first:], draw, logits, sampling)
        if not any_done:
            return
        finished, sources, targets = rows.take(done, first)
        self._park(finished)
        if len(sources):
            self._runner.move(sources, targets)
        for left in finished:
            self._undelivered.pop(left.request, None)
            left.request.deliver(left.completion)

    def _admit(self) -> None:
        """Start waiting requests; each distinct prompt is prefilled once, of a session only what is new.

        A prefill costs about as much as a step, so a full batch waits until an eighth of its slots are free.
        """
        rows, runner = self._rows, self._runner
        free = rows.num_slots - rows.count
        worth_it = max(1, min(len(self._waiting), rows.num_slots // 8))
        if not self._waiting or (rows.count and free < worth_it):
            return
        if not rows.count:
            runner.reset()
        admitted, self._waiting = self._waiting[:free], self._waiting[free:]
        stored: list[tuple[Request, Stored, int]] = []
        fresh: dict[tuple[int, ...], list[Request]] = {}  # by prompt
        for request in admitted:
            request.policy_version = self.policy_version
            ids, keys_values = self._parked.pop(request.session, ((), None))
            # at least one token is left to compute
            pairs = zip(ids, request.prompt_ids[:-1], strict=False)
            known = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            if keys_values is not None and known:
                stored.append((request, keys_values, known))
            else:
                fresh.setdefault(request.prompt_ids, []).append(request)
        for groups in _chunks(list(fresh.values()), lambda same: len(same[0].prompt_ids)):
            copies = [i for i, same in enumerate(groups) for _ in same]
            logits = runner.prefill(rows.count, [same[0].prompt_ids for same in groups], copies)
            self._start([request for same in groups for request in same], logits)
        for items in _chunks(stored, lambda item: len(item[0].prompt_ids) - item[2]):
            requests, keys_values, known = (list(column) for column in zip(*items, strict=True))
            logits = runner.extend(rows.count, [request.prompt_ids for request in requests], keys_values, known)
            self._start(requests, logits)
        self._evict()

    def _start(self, requests: Sequence[Request], logits: Tensor) -> None:
        first = self._rows.count
        self._rows.add(requests)
        self._advance(logits, first)

    def _park(self, finished: Sequence[Finished]) -> None:
        """Keep the tokens of rows that belong to a session, all of them copied at once."""
        kept = [left for left in finished if left.request.session is not None and not left.request.aborted]
        if not kept:
            return
        saved = self._runner.save([left.row for left in kept], [left.num_cached for left in kept])
        for left, keys_values in zip(kept, saved, strict=bool(saved)):
            ids = (left.request.prompt_ids + left.completion.token_ids)[: left.num_cached]
            self._parked[left.request.session] = ids, keys_values
            self._parked.move_to_end(left.request.session)
        self._evict()

    def _evict(self) -> None:
        running = sum(len(r.prompt_ids) + r.sampling.max_tokens for r in self._rows.requests)
        total = running + sum(len(ids) for ids, _ in self._parked.values())
        while self._parked and total > self._max_cached_tokens:
            total -= len(self._parked.popitem(last=False)[1][0])


def _report_tokens(requests: Sequence[Request], draw: Draw, logits: Tensor, sampling: RowSampling) -> None:
    """Give each request that asked its likeliest tokens and its new token."""
    asked = [(row, r.alternatives) for row, r in enumerate(requests) if r.alternatives is not None and not r.aborted]
    if asked:
        ids, logprobs = most_likely(logits, sampling, max(alternatives.count for _, alternatives in asked))
        for row, alternatives in asked:
            first = slice(0, alternatives.count)
            alternatives.seen.append((tuple(ids[row, first].tolist()), tuple(logprobs[row, first].tolist())))
    if any(request.on_token is not None for request in requests):
        for request, token, logprob in zip(requests, draw.ids.tolist(), draw.behavior_logprobs.tolist(), strict=True):
            if request.on_token is not None and not request.aborted:
                request.on_token(token, logprob)


def _chunks(items: Sequence[T], length: Callable[[T], int]) -> list[list[T]]:
    """Cut into runs that hold `MAX_PREFILL_TOKENS` at most when padded to their longest, one item at least."""
    chunks: list[list[T]] = []
    longest = 0
    for item in items:
        longest = max(longest, length(item))
        if not chunks or (len(chunks[-1]) + 1) * longest > MAX_PREFILL_TOKENS:
            chunks.append([])
            longest = length(item)
        chunks[-1].append(item)
    return chunks
