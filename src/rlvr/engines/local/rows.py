"""The running rows: one tensor per property, row i of each belongs to the request in slot i.

The running rows are always the first `count`. When rows leave, the last ones take their places:

    slot     0 1 2 3 4                  0 1 2
    request  A B C D E   B, D leave ->  A E C      sources [4], targets [1]
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rlvr.engines.base import Alternatives, OnToken
from rlvr.engines.local.sampler import Draw, RowSampling, streams
from rlvr.types import Completion, SamplingParams, StopReason


@dataclass(eq=False, kw_only=True, slots=True)
class Request:
    """One call of `generate`, waiting or running."""

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    max_tokens: int  # sampling.max_tokens or what the context leaves
    session: Hashable | None
    on_done: Callable[[Completion], None]
    on_error: Callable[[BaseException], None]
    on_token: OnToken | None = None
    alternatives: Alternatives | None = None
    policy_version: int = -1  # of the weights its first token was sampled with
    version_changes: list[tuple[int, int]] = field(default_factory=list)  # later ones: token from which on, version
    aborted: bool = False

    def restart(self) -> None:
        """Forget what was sampled."""
        self.policy_version = -1
        self.version_changes.clear()
        if self.alternatives is not None:
            self.alternatives.seen.clear()


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A row that has left."""

    request: Request
    row: int  # the slot it sat in until now
    completion: Completion
    num_cached: int  # tokens whose keys and values the slot holds


@dataclass(kw_only=True)
class Rows:
    """Tensors `[S]` (S slots) unless said otherwise."""

    num_slots: int
    device: torch.device
    count: int = 0
    requests: list[Request] = field(default_factory=list)
    longest: int = 0  # bound on lengths[:count]
    most_sampled: int = 0  # bound on num_sampled[:count]

    def __post_init__(self) -> None:
        def empty(dtype: torch.dtype) -> Tensor:
            return torch.zeros(self.num_slots, dtype=dtype, device=self.device)

        self.last_ids = empty(torch.int64)  # sampled, not fed to the model yet
        self.lengths = empty(torch.int64)  # tokens before last_ids: its position
        self.num_sampled = empty(torch.int64)
        self.max_tokens = empty(torch.int64)
        self.stopped = empty(torch.bool)
        self.streams = empty(torch.int64)
        self.temperature = empty(torch.float32)
        self.greedy = empty(torch.bool)
        self.top_p = empty(torch.float64)
        self.top_k = empty(torch.int64)
        self.min_p = empty(torch.float64)
        self.stop_ids = empty(torch.int64).new_full((self.num_slots, 1), -1)  # [S, most stop ids], -1: none
        self.sampled_ids = empty(torch.int64)[:, None]  # [S, C], C grows with num_sampled
        self.behavior_logprobs = empty(torch.float32)[:, None]  # [S, C]
        self.sampling_logprobs = empty(torch.float32)[:, None]  # [S, C]
        self._range = torch.arange(self.num_slots, device=self.device)
        self._sampling: RowSampling | None = None

    def add(self, requests: Sequence[Request]) -> None:
        """Put requests into the next slots. Their prompts are taken as stored, and nothing as sampled."""
        part = slice(self.count, self.count + len(requests))
        settings = [request.sampling for request in requests]
        greedy = [s.temperature == 0 for s in settings]

        def put(target: Tensor, values: Sequence[float]) -> None:
            target[part] = torch.tensor(values, dtype=target.dtype)

        put(self.lengths, [len(r.prompt_ids) - 1 for r in requests])  # record() adds the last prompt token
        put(self.num_sampled, [0] * len(requests))
        put(self.max_tokens, [r.max_tokens for r in requests])
        put(self.temperature, [s.temperature or 1.0 for s in settings])
        put(self.greedy, greedy)
        put(self.top_p, [1.0 if g else s.top_p for s, g in zip(settings, greedy, strict=True)])
        put(self.top_k, [0 if g else s.top_k for s, g in zip(settings, greedy, strict=True)])
        put(self.min_p, [0.0 if g else s.min_p for s, g in zip(settings, greedy, strict=True)])
        self.streams[part] = streams([s.seed for s in settings]).to(self.device)
        self._put_stop_ids(part, settings)
        self._reserve(min(64, max(r.max_tokens for r in requests)))
        self.longest = max(self.longest, *(len(r.prompt_ids) - 1 for r in requests))
        self.requests.extend(requests)
        self.count += len(requests)
        self._sampling = None

    def sampling(self) -> RowSampling:
        """How each running row is drawn."""
        if self._sampling is None:
            part, settings = slice(0, self.count), [request.sampling for request in self.requests]
            self._sampling = RowSampling(
                streams=self.streams[part],
                temperature=self.temperature[part],
                greedy=self.greedy[part],
                top_p=self.top_p[part],
                top_k=self.top_k[part],
                min_p=self.min_p[part],
                any_greedy=any(s.temperature == 0 for s in settings),
                any_truncates=any(s.truncates for s in settings),
            )
        return self._sampling

    def record(self, draw: Draw, first: int = 0) -> Tensor:
        """Append one token to the rows `first ..`; `[R]` bool, those that are done."""
        self._reserve(self.most_sampled + 1)
        part = slice(first, self.count)
        rows, column, sampled = self._range[part], self.num_sampled[part], draw.ids
        self.sampled_ids[rows, column] = sampled
        self.behavior_logprobs[rows, column] = draw.behavior_logprobs
        self.sampling_logprobs[rows, column] = draw.sampling_logprobs
        self.last_ids[part] = sampled
        self.lengths[part] += 1
        self.num_sampled[part] += 1
        stopped = (self.stop_ids[part] == sampled[:, None]).any(1)
        self.stopped[part] = stopped
        self.longest += 1
        self.most_sampled += 1
        return stopped | (self.num_sampled[part] >= self.max_tokens[part])

    def take(self, done: Tensor, first: int = 0) -> tuple[list[Finished], Tensor, Tensor]:
        """Take the rows out that are done (`[R]` bool from row `first` on).

        Returns them, and which rows must move where, so that the rest is a prefix again; the caller moves whatever
        else it keeps per slot. Read the finished rows' slots before moving.
        """
        leaving = [first + i for i, is_done in enumerate(done.tolist()) if is_done]
        finished = self._finished(leaving)
        left, gone = self.count - len(leaving), set(leaving)
        to = [row for row in leaving if row < left]
        of = [row for row in range(left, self.count) if row not in gone]
        sources, targets = (torch.tensor(rows, dtype=torch.int64, device=self.device) for rows in (of, to))
        self._move(sources, targets)
        for source, target in zip(of, to, strict=True):
            self.requests[target] = self.requests[source]
        del self.requests[left:]
        self.count, self.longest, self.most_sampled = left, 0, 0
        if left:
            bounds = torch.stack((self.lengths[:left].max(), self.num_sampled[:left].max()))
            self.longest, self.most_sampled = bounds.tolist()
        self._sampling = None
        return finished, sources, targets

    def sequence(self, row: int) -> tuple[int, ...]:
        """Prompt and completion of a running row, without its last token."""
        sampled = self.sampled_ids[row, : int(self.num_sampled[row]) - 1].tolist()
        return self.requests[row].prompt_ids + tuple(sampled)

    def note_version(self, version: int) -> None:
        """The tokens that running rows get from now on are sampled with other weights."""
        for request, num_sampled in zip(self.requests, self.num_sampled[: self.count].tolist(), strict=True):
            changes = request.version_changes
            if changes and changes[-1][0] == num_sampled:  # two loads between two tokens
                changes.pop()
            changes.append((num_sampled, version))

    def clear(self) -> None:
        """Forget every row."""
        self.count = self.longest = self.most_sampled = 0
        self.requests.clear()
        self._sampling = None

    def _finished(self, leaving: Sequence[int]) -> list[Finished]:
        rows = torch.tensor(leaving, dtype=torch.int64, device=self.device)
        # a few transfers, whatever the number of rows
        counts, lengths, stopped = torch.stack((self.num_sampled, self.lengths, self.stopped.long()))[:, rows].tolist()
        longest = max(counts, default=0)
        ids = self.sampled_ids[rows, :longest].tolist()
        behavior, sampling = (
            logprobs[rows, :longest].tolist() for logprobs in (self.behavior_logprobs, self.sampling_logprobs)
        )
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

    def _move(self, sources: Tensor, targets: Tensor) -> None:
        if not len(sources):
            return
        for tensor in (
            *(self.last_ids, self.lengths, self.num_sampled, self.max_tokens, self.stopped, self.streams),
            *(self.temperature, self.greedy, self.top_p, self.top_k, self.min_p, self.stop_ids),
            *(self.sampled_ids, self.behavior_logprobs, self.sampling_logprobs),
        ):
            tensor[targets] = tensor[sources]

    def _put_stop_ids(self, part: slice, settings: Sequence[SamplingParams]) -> None:
        widest = max(len(s.stop_ids) for s in settings)
        if widest > self.stop_ids.shape[1]:
            old = self.stop_ids
            self.stop_ids = old.new_full((self.num_slots, widest), -1)
            self.stop_ids[:, : old.shape[1]] = old
        width = self.stop_ids.shape[1]
        padded = [[*sorted(s.stop_ids), *[-1] * (width - len(s.stop_ids))] for s in settings]
        self.stop_ids[part] = torch.tensor(padded, dtype=torch.int64)

    def _reserve(self, num_tokens: int) -> None:
        """Columns for the sampled tokens, by doubling."""
        width = self.sampled_ids.shape[1]
        if num_tokens <= width:
            return
        more = max(num_tokens, 2 * width) - width
        pad = torch.nn.functional.pad
        self.sampled_ids = pad(self.sampled_ids, (0, more))
        self.behavior_logprobs = pad(self.behavior_logprobs, (0, more))
        self.sampling_logprobs = pad(self.sampling_logprobs, (0, more))
