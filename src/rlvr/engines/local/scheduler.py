"""Which request runs when: waiting ones are admitted by priority, then in order, running ones advance by one token,
done ones leave.

`step()` is schedule -> run -> postprocess. Nothing here is asynchronous and nothing is caught.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from rlvr.engines.local.cache import Stored
from rlvr.engines.local.rows import Finished, Request, Rows
from rlvr.engines.local.runner import Runner
from rlvr.engines.local.sampler import Draw, RowSampling, most_likely, sample

MAX_PREFILL_TOKENS = 16384  # padded, of one forward
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Parked:
    """What is left of a session's last completion."""

    ids: tuple[int, ...]
    keys_values: Stored


class Scheduler:
    """Waiting requests, running rows and parked sessions over one runner.

    Parked sessions and running requests share a budget of tokens, `max_cached_tokens`; the session parked longest ago
    goes first.
    """

    def __init__(self, runner: Runner, *, num_slots: int, max_cached_tokens: int, device: torch.device):
        self._runner = runner
        self._rows = Rows(num_slots=num_slots, device=device)
        self._max_cached_tokens = max_cached_tokens
        self._waiting: list[Request] = []  # the next one first
        self._undelivered: dict[Request, None] = {}  # waiting, starting or running, in order of submission
        self._parked: OrderedDict[Hashable, Parked] = OrderedDict()
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
        """Requests without a completion: those that wait, run, or are being started."""
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
        """Nobody waits for it any more: drop it, at the next step if it runs."""
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
        """Forget every key and value. Rows in flight are computed anew and go on under the new weights."""
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
        if self._stale:
            self._recompute()
        self._admit()
        rows = self._rows
        if rows.count:
            logits = self._runner.decode(rows.last_ids[: rows.count], rows.lengths[: rows.count], rows.longest)
            self._advance(logits, 0)

    def _advance(self, logits: Tensor, first: int) -> None:
        """Sample a token for the rows `first ..`; deliver those that are done and close the gaps."""
        rows = self._rows
        sampling = rows.sampling().rows(first, rows.count)
        draw = sample(logits, rows.lengths[first : rows.count] + 1, sampling)
        done = rows.record(draw, first)
        finite, any_done = torch.stack(
            (draw.totals.isfinite().all(), done.any())
        ).tolist()  # all that the host waits for
        if not finite:
            draw.refuse()
        _note_alternatives(rows.requests[first:], logits, sampling)
        _tell(rows.requests[first:], draw)
        if not any_done:
            return
        finished, sources, targets = rows.take(done, first)
        self._park(finished)
        if len(sources):
            self._runner.move(sources, targets, rows.longest)
        for left in finished:
            self._undelivered.pop(left.request, None)
            left.request.on_done(left.completion)

    # ------------------------------------------------------------------------------------------------- admission

    def _admit(self) -> None:
        """Start waiting requests, the next ones first.

        A prefill costs about as much as a step, so a full batch waits until an eighth of its slots are free.
        """
        rows = self._rows
        free = rows.num_slots - rows.count
        worth_it = max(1, min(len(self._waiting), rows.num_slots // 8))
        if not self._waiting or (rows.count and free < worth_it):
            return
        if not rows.count:
            self._runner.reset()
        admitted, self._waiting = self._waiting[:free], self._waiting[free:]
        stored, fresh = [], []
        for request in admitted:
            request.policy_version = self.policy_version
            known = self._known(request)
            if known is None:
                fresh.append(request)
            else:
                stored.append((request, *known))
        for chunk in _chunks(_by_prompt(fresh), lambda same: len(same[0].prompt_ids)):
            self._start_fresh(chunk)
        for chunk in _chunks(stored, lambda item: len(item[0].prompt_ids) - item[2]):
            self._start_stored(chunk)
        self._evict()

    def _start_fresh(self, groups: Sequence[Sequence[Request]]) -> None:
        """Prefill each distinct prompt once."""
        first = self._rows.count
        copies = [i for i, same in enumerate(groups) for _ in same]
        logits = self._runner.prefill(first, [same[0].prompt_ids for same in groups], copies)
        self._rows.add([request for same in groups for request in same])
        self._advance(logits, first)

    def _start_stored(self, items: Sequence[tuple[Request, Parked, int]]) -> None:
        """Prefill what each session's prompt adds to what was parked."""
        first = self._rows.count
        requests = [request for request, _, _ in items]
        logits = self._runner.extend(
            first,
            [request.prompt_ids for request in requests],
            [parked.keys_values for _, parked, _ in items],
            [known for _, _, known in items],
        )
        self._rows.add(requests)
        self._advance(logits, first)

    def _recompute(self) -> None:
        """Fill the slots of the running rows under the weights as they are now."""
        rows = self._rows
        sequences = [(row, rows.sequence(row)) for row in range(rows.count)]
        for chunk in _chunks(sequences, lambda item: len(item[1])):
            self._runner.prefill(chunk[0][0], [ids for _, ids in chunk], list(range(len(chunk))))
        self._stale = False

    # ---------------------------------------------------------------------------------------------------- parking

    def _known(self, request: Request) -> tuple[Parked, int] | None:
        """The session's parked tokens and how many of them the prompt starts with; at least one token is left over."""
        parked = self._parked.pop(request.session, None) if request.session is not None else None
        if parked is None:
            return None
        known = min(_common_prefix(parked.ids, request.prompt_ids), len(request.prompt_ids) - 1)
        return (parked, known) if known else None

    def _park(self, finished: Sequence[Finished]) -> None:
        """Keep the tokens of rows that belong to a session, all of them copied at once."""
        kept = [left for left in finished if left.request.session is not None and not left.request.aborted]
        if not kept:
            return
        saved = self._runner.save([left.row for left in kept], [left.num_cached for left in kept])
        for left, keys_values in zip(kept, saved or (), strict=saved is not None):
            ids = (left.request.prompt_ids + left.completion.token_ids)[: left.num_cached]
            self._parked[left.request.session] = Parked(ids=ids, keys_values=keys_values)
            self._parked.move_to_end(left.request.session)
        self._evict()

    def _evict(self) -> None:
        running = sum(len(r.prompt_ids) + r.max_tokens for r in self._rows.requests)
        total = running + sum(len(parked.ids) for parked in self._parked.values())
        while self._parked and total > self._max_cached_tokens:
            total -= len(self._parked.popitem(last=False)[1].ids)


def _note_alternatives(requests: Sequence[Request], logits: Tensor, sampling: RowSampling) -> None:
    """Write down the likeliest tokens for the requests that asked."""
    asked = [(row, r.alternatives) for row, r in enumerate(requests) if r.alternatives is not None and not r.aborted]
    if not asked:
        return
    ids, logprobs = most_likely(logits, sampling, max(alternatives.count for _, alternatives in asked))
    for row, alternatives in asked:
        first = slice(0, alternatives.count)
        alternatives.seen.append((tuple(ids[row, first].tolist()), tuple(logprobs[row, first].tolist())))


def _tell(requests: Sequence[Request], draw: Draw) -> None:
    """Hand each token to the request that wants to see it at once."""
    if any(request.on_token is not None for request in requests):
        for request, token, logprob in zip(requests, draw.ids.tolist(), draw.behavior_logprobs.tolist(), strict=True):
            if request.on_token is not None and not request.aborted:
                request.on_token(token, logprob)


def _by_prompt(requests: Sequence[Request]) -> list[list[Request]]:
    """Requests with the same prompt together, in order of first appearance."""
    groups: dict[tuple[int, ...], list[Request]] = {}
    for request in requests:
        groups.setdefault(request.prompt_ids, []).append(request)
    return list(groups.values())


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


def _common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Number of leading elements that are equal."""
    for i, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return i
    return min(len(first), len(second))
