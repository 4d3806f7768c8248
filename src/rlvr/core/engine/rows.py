"""The running rows: one forward, then a token for each of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from rlvr.core.devices import drawing_device
from rlvr.core.engine.cache import Stored
from rlvr.core.engine.request import Request
from rlvr.core.engine.runner import Runner, Tokens
from rlvr.core.engine.sampler import RowSampling, most_likely, sample
from rlvr.core.errors import NonFiniteLogitsError

Sampled = tuple[int, float, float]
"""A token's id, behavior logprob and sampling logprob."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The rows of one forward: R requests that start, in the next slots, or without `prompts` all that run."""

    requests: Sequence[Request]  # [R]
    prompts: Sequence[Tokens] = ()  # distinct ones
    owners: Sequence[int] = ()  # [R] number of the request's prompt
    stored: Sequence[Stored] = ()  # [R] keys and values of first tokens of the prompts, which are then R, too


class Rows:
    """Requests in the runner's slots, and what the next tokens need. Request i of `requests` is in slot i.

    When rows leave, the last ones fill their slots:

        slot     0 1 2 3 4                  0 1 2
        request  A B C D E   B, D leave ->  A E C
    """

    def __init__(self, runner: Runner, device: torch.device):
        self.runner, self.requests = runner, list[Request]()
        self._device, self._draws_on = device, drawing_device(device)
        # of the R rows, on the device
        self._last_ids = torch.zeros(0, dtype=torch.int64, device=device)  # [R] sampled, not processed yet
        self._positions = self._last_ids  # [R] of last_ids
        self._sampling = RowSampling.of([], self._draws_on)
        self._truncates = False  # whether a row truncates its distribution

    def run(self, batch: Batch) -> list[Sampled]:
        """A token for each of the batch's R requests; those that start get their rows. NonFiniteLogitsError for NaN."""
        if batch.stored:
            logits = self.runner.extend(batch.prompts, batch.stored)
        elif batch.prompts:
            logits = self.runner.prefill(batch.prompts, batch.owners)
        else:
            logits = self.runner.decode(self._last_ids, self._positions)
        if batch.prompts:
            self._append(batch.requests)
        return self._sample(batch.requests, logits)

    def leave(self, rows: Sequence[int]) -> None:
        """Fill these slots with the last rows."""
        num_left, gone = len(self.requests) - len(rows), set(rows)
        left = list(range(num_left))
        movers = [row for row in range(num_left, len(self.requests)) if row not in gone]
        for row, mover in zip(rows, movers, strict=False):  # as many free rows are below num_left
            left[row] = mover
        self.runner.select(left)
        self.requests = [self.requests[row] for row in left]
        index = torch.tensor(left, dtype=torch.int64, device=self._device)
        self._last_ids, self._positions = self._last_ids[index], self._positions[index]
        self._sampling = self._sampling.rows(index.to(self._draws_on))

    def recompute(self, chunks: Iterable[Sequence[Tokens]]) -> None:
        """Replace all keys and values; the chunks hold the rows' tokens in order."""
        self.runner.select([])
        for chunk in chunks:
            self.runner.prefill(chunk, range(len(chunk)))

    def reset(self, *, reuse: bool = True) -> None:
        """Drop all rows; without `reuse` their buffers are freed, too."""
        self.requests = []
        self.runner.reset(reuse=reuse)

    def _append(self, requests: Sequence[Request]) -> None:
        first, device = len(self.requests), self._device
        self.requests += requests
        last_ids = torch.tensor([request.prompt_ids[-1] for request in requests], device=device)
        positions = torch.tensor([len(request.prompt_ids) - 1 for request in requests], device=device)
        sampling = RowSampling.of([request.sampling for request in requests], self._draws_on)
        self._last_ids = torch.cat([self._last_ids[:first], last_ids])
        self._positions = torch.cat([self._positions[:first], positions])
        self._sampling = self._sampling.rows(slice(first)).followed_by(sampling)
        self._truncates = any(request.sampling.truncates for request in self.requests)

    def _sample(self, requests: Sequence[Request], logits: Tensor) -> list[Sampled]:
        """Draw from `logits` [R, V] of these requests: the last R rows."""
        part = slice(len(self.requests) - len(requests), None)
        sampling = self._sampling.rows(part)
        self._positions[part] += 1
        logits = _restricted(requests, logits.to(self._draws_on))
        draw = sample(logits, self._positions[part].to(self._draws_on), sampling, truncates=self._truncates)
        self._last_ids[part] = draw.ids
        # the only synchronization with a GPU that has float64; float64 holds an id exactly
        ids, behavior, sampled, totals = torch.stack([column.double() for column in draw]).tolist()
        if not all(map(isfinite, totals)):
            raise NonFiniteLogitsError
        _note_alternatives(requests, logits, sampling)
        return list(zip(map(int, ids), behavior, sampled, strict=True))


def _restricted(requests: Sequence[Request], logits: Tensor) -> Tensor:
    """The logits [R, V], -inf for tokens that a request does not allow."""
    restricted = [(row, r.allowed(r.token_ids)) for row, r in enumerate(requests) if r.allowed and not r.aborted]
    if not restricted:
        return logits
    mask = torch.ones_like(logits, dtype=torch.bool)
    for row, allowed in restricted:
        mask[row] = allowed.to(mask.device)
    return logits.masked_fill(~mask, -torch.inf)


def _note_alternatives(requests: Sequence[Request], logits: Tensor, sampling: RowSampling) -> None:
    """Give the likeliest tokens to the requests that asked for them."""
    asked = [(row, r.alternatives) for row, r in enumerate(requests) if r.alternatives is not None and not r.aborted]
    if asked:
        ids, logprobs = most_likely(logits, sampling, max(alternatives.count for _, alternatives in asked))
        for row, alternatives in asked:
            first = slice(0, alternatives.count)
            alternatives.seen.append((tuple(ids[row, first].tolist()), tuple(logprobs[row, first].tolist())))
