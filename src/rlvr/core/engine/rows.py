"""The running rows: one tensor per property, row i of each belongs to the request in slot i.

The running rows are always the first `count`. When rows leave, the last ones take their places:

    slot     0 1 2 3 4                  0 1 2
    request  A B C D E   B, D leave ->  A E C      sources [4], targets [1]
"""

from __future__ import annotations

from asyncio import CancelledError, Future
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from rlvr.core.engine.base import Alternatives, OnToken
from rlvr.core.engine.sampler import Draw, RowSampling, streams
from rlvr.types import Completion, SamplingParams, StopReason


@dataclass(eq=False, kw_only=True, slots=True)
class Request:
    """One call of `generate`, waiting or running."""

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    future: Future[Completion]
    session: Hashable | None = None
    on_token: OnToken | None = None
    alternatives: Alternatives | None = None
    policy_version: int = -1  # of the weights its first token was sampled with
    version_changes: list[tuple[int, int]] = field(default_factory=list)  # later ones: first token, version
    aborted: bool = False

    def restart(self) -> None:
        """Forget what was sampled."""
        self.policy_version = -1
        self.version_changes.clear()
        if self.alternatives is not None:
            self.alternatives.seen.clear()

    def deliver(self, completion: Completion) -> None:
        """Hand the completion to the caller, who may be gone."""
        if not self.future.done():
            self.future.set_result(completion)

    def fail(self, error: BaseException) -> None:
        """Hand an error to the caller; a cancellation cancels."""
        if isinstance(error, CancelledError):
            self.future.cancel()
        elif not self.future.done():
            self.future.set_exception(error)


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A row that has left."""

    request: Request
    row: int  # its slot until now
    completion: Completion
    num_cached: int  # tokens whose keys and values the slot holds


class Rows:
    """State of the running rows. Tensors are `[S]` (S slots) unless said otherwise."""

    def __init__(self, *, num_slots: int, device: torch.device) -> None:
        def empty(dtype: torch.dtype) -> Tensor:
            return torch.zeros(num_slots, dtype=dtype, device=device)

        self.num_slots, self.device = num_slots, device
        self.count = 0
        self.requests: list[Request] = []
        self.most_sampled = 0  # upper bound of num_sampled
        self.last_ids = empty(torch.int64)  # sampled, not fed to the model yet
        self.lengths = empty(torch.int64)  # tokens before last_ids: its position
        self.num_sampled = empty(torch.int64)
        self.max_tokens = empty(torch.int64)
        self.stopped = empty(torch.bool)
        self.stop_ids = empty(torch.int64).new_full((num_slots, 1), -1)  # [S, most stop ids], -1: none
        # [S, C] sampled ids, behavior and sampling logprobs; C grows with num_sampled
        self.sampled = [empty(dtype)[:, None] for dtype in (torch.int64, torch.float32, torch.float32)]
        self._slots = RowSampling(
            streams=empty(torch.int64),
            temperature=empty(torch.float32),
            greedy=empty(torch.bool),
            top_p=empty(torch.float64),
            top_k=empty(torch.int64),
            min_p=empty(torch.float64),
            any_greedy=False,
            any_truncates=False,
        )
        self._sampling: RowSampling | None = None

    def add(self, requests: Sequence[Request]) -> None:
        """Put requests into the next slots: their prompts are stored, nothing is sampled."""
        part = slice(self.count, self.count + len(requests))
        settings = [request.sampling for request in requests]
        # what is not drawn is not truncated either
        drawn = [
            replace(s, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0) if s.temperature == 0 else s for s in settings
        ]
        slots = self._slots
        for target, values in (
            (self.lengths, [len(r.prompt_ids) - 1 for r in requests]),  # record() adds the last prompt token
            (self.num_sampled, [0] * len(requests)),
            (self.max_tokens, [s.max_tokens for s in settings]),
            (slots.greedy, [s.temperature == 0 for s in settings]),
            (slots.temperature, [s.temperature for s in drawn]),
            (slots.top_p, [s.top_p for s in drawn]),
            (slots.top_k, [s.top_k for s in drawn]),
            (slots.min_p, [s.min_p for s in drawn]),
        ):
            target[part] = torch.tensor(values, dtype=target.dtype)
        slots.streams[part] = streams([s.seed for s in settings]).to(self.device)
        width = max(self.stop_ids.shape[1], *(len(s.stop_ids) for s in settings))
        self.stop_ids = pad(self.stop_ids, (0, width - self.stop_ids.shape[1]), value=-1)
        padded = [[*sorted(s.stop_ids), *[-1] * (width - len(s.stop_ids))] for s in settings]
        self.stop_ids[part] = torch.tensor(padded, dtype=torch.int64)
        self._reserve(min(64, max(s.max_tokens for s in settings)))
        self.requests.extend(requests)
        self.count += len(requests)
        self._sampling = None

    def sampling(self) -> RowSampling:
        """How each running row is drawn."""
        if self._sampling is None:
            settings = [request.sampling for request in self.requests]
            self._sampling = replace(
                self._slots.rows(0, self.count),
                any_greedy=any(s.temperature == 0 for s in settings),
                any_truncates=any(s.truncates for s in settings),
            )
        return self._sampling

    def record(self, draw: Draw, first: int = 0) -> Tensor:
        """Append one token to the rows `first ..`; `[R]` bool, those that are done."""
        self._reserve(self.most_sampled + 1)
        part = slice(first, self.count)
        rows, column = torch.arange(first, self.count, device=self.device), self.num_sampled[part]
        for table, drawn in zip(self.sampled, draw, strict=False):
            table[rows, column] = drawn
        self.last_ids[part] = draw.ids
        self.lengths[part] += 1
        self.num_sampled[part] += 1
        self.stopped[part] = stopped = (self.stop_ids[part] == draw.ids[:, None]).any(1)
        self.most_sampled += 1
        return stopped | (self.num_sampled[part] >= self.max_tokens[part])

    def take(self, done: Tensor, first: int = 0) -> tuple[list[Finished], Tensor, Tensor]:
        """Remove the rows that are done (`[R]` bool from row `first` on).

        Returns them, and the sources and targets of the moves that make the rest a prefix again; the caller moves its
        own data per slot, after reading the slots of the finished rows.
        """
        leaving = [first + i for i, is_done in enumerate(done.tolist()) if is_done]
        finished = self._finished(leaving)
        left, gone = self.count - len(leaving), set(leaving)
        to = [row for row in leaving if row < left]
        of = [row for row in range(left, self.count) if row not in gone]
        sources, targets = (torch.tensor(rows, dtype=torch.int64, device=self.device) for rows in (of, to))
        if to:
            for tensor in (*vars(self).values(), *vars(self._slots).values(), *self.sampled):
                if torch.is_tensor(tensor):
                    tensor[targets] = tensor[sources]
        for source, target in zip(of, to, strict=True):
            self.requests[target] = self.requests[source]
        del self.requests[left:]
        self.count = left
        self.most_sampled = int(self.num_sampled[:left].max()) if left else 0
        self._sampling = None
        return finished, sources, targets

    def sequence(self, row: int) -> tuple[int, ...]:
        """Prompt and completion of a running row, without its last token."""
        sampled = self.sampled[0][row, : int(self.num_sampled[row]) - 1].tolist()
        return self.requests[row].prompt_ids + tuple(sampled)

    def note_version(self, version: int) -> None:
        """Later tokens of the running rows are sampled with weights of this version."""
        for request, num_sampled in zip(self.requests, self.num_sampled[: self.count].tolist(), strict=True):
            changes = request.version_changes
            if changes and changes[-1][0] == num_sampled:  # two loads between two tokens
                changes.pop()
            changes.append((num_sampled, version))

    def clear(self) -> None:
        """Forget every row."""
        self.count = self.most_sampled = 0
        self.requests.clear()
        self._sampling = None

    def _finished(self, leaving: Sequence[int]) -> list[Finished]:
        rows = torch.tensor(leaving, dtype=torch.int64, device=self.device)
        # a few transfers, whatever the number of rows
        counts, lengths, stopped = torch.stack((self.num_sampled, self.lengths, self.stopped.long()))[:, rows].tolist()
        ids, behavior, sampling = (table[rows, : max(counts, default=0)].tolist() for table in self.sampled)
        finished = []
        for i, row in enumerate(leaving):
            request, count = self.requests[row], counts[i]
            completion = Completion(
                token_ids=tuple(ids[i][:count]),
                behavior_logprobs=tuple(behavior[i][:count]),
                sampling_logprobs=tuple(sampling[i][:count]),
                stop_reason=StopReason.STOP if stopped[i] else StopReason.LENGTH,
                policy_version=request.policy_version,
                version_changes=tuple(request.version_changes),
            )
            finished.append(Finished(request=request, row=row, completion=completion, num_cached=lengths[i]))
        return finished

    def _reserve(self, num_tokens: int) -> None:
        """Columns for the sampled tokens, by doubling."""
        width = self.sampled[0].shape[1]
        if num_tokens > width:
            self.sampled = [pad(table, (0, max(num_tokens, 2 * width) - width)) for table in self.sampled]
