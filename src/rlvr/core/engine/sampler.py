"""Token sampling: vectorized over rows, stateless.

The draw of a token is a function of the request's seed and of the token's position in its sequence. A counter-based
hash (the finalizer of SplitMix64, Steele, Lea & Flood 2014) gives one uniform number, mapped through the inverse
cumulative distribution. So a draw does not depend on the batch, on other rows or on earlier draws.

The order of truncation is vLLM's: temperature, then `min_p` (relative to the most likely token of the distribution at
that temperature), then `top_k`, then `top_p` over what the first two left. For temperature 1 and probabilities
`.5 .3 .15 .05`:

    top_p=.6          .5 .3          the token that crosses .6 stays
    top_k=3 top_p=.9  .5 .3 .15      .5/.95 + .3/.95 = .84 < .9, so the third is needed
    min_p=.2          .5 .3 .15      .05 < .2 * .5
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rlvr.types import SamplingParams

MAX_CHUNK_ELEMENTS = 2**24  # float64 workspace per chunk of rows: 128 MiB


class RowSampling(NamedTuple):
    """Sampling parameters of R rows."""

    streams: Tensor  # [R] int64, streams(seeds)
    temperature: Tensor  # [R] float32, 0: greedy
    top_p: Tensor  # [R] float64
    top_k: Tensor  # [R] int64, 0: all
    min_p: Tensor  # [R] float64

    @classmethod
    def of(cls, settings: Sequence[SamplingParams], device: torch.device) -> RowSampling:
        """From the parameters of R requests, where their tokens are drawn: on a device with float64. Greedy rows do not
        truncate, so that their logprobs cover the vocabulary."""

        def column(name: str, neutral: float, dtype: torch.dtype) -> Tensor:
            values = [getattr(s, name) if s.truncates else neutral for s in settings]
            return torch.tensor(values, dtype=dtype, device=device)

        return cls(
            streams([s.seed for s in settings]).to(device),
            torch.tensor([s.temperature for s in settings], dtype=torch.float32, device=device),
            column("top_p", 1.0, torch.float64),
            column("top_k", 0, torch.int64),
            column("min_p", 0.0, torch.float64),
        )

    def rows(self, which: slice | Tensor) -> RowSampling:
        return RowSampling(*(column[which] for column in self))

    def followed_by(self, more: RowSampling) -> RowSampling:
        """These rows, then `more`."""
        return RowSampling(*(torch.cat(columns) for columns in zip(self, more, strict=True)))


class Draw(NamedTuple):
    """One token for each of R rows."""

    ids: Tensor  # [R] int64
    behavior_logprobs: Tensor  # [R] float32, over the whole vocabulary
    sampling_logprobs: Tensor  # [R] float32, over the truncated distribution
    totals: Tensor  # [R] float64, probability kept by truncation; not finite if the logits are not


def sample(logits: Tensor, positions: Tensor, sampling: RowSampling, *, truncates: bool) -> Draw:
    """Draw the tokens at `positions` `[R]` of their sequences, from `logits` `[R, V]`. `truncates=False`: no row
    truncates the distribution, which saves a sort."""
    size = max(1, MAX_CHUNK_ELEMENTS // logits.shape[1])
    parts = [
        _sample(logits[part], positions[part], sampling.rows(part), truncates)
        for part in (slice(i, i + size) for i in range(0, len(logits), size))
    ]
    return Draw(*map(torch.cat, zip(*parts, strict=True))) if len(parts) > 1 else parts[0]


def most_likely(logits: Tensor, sampling: RowSampling, count: int) -> tuple[Tensor, Tensor]:
    """Ids and behavior logprobs `[R, count]` of the likeliest tokens, fewer where the vocabulary is smaller."""
    logprobs, ids = _logprobs(logits, sampling).topk(min(count, logits.shape[1]), dim=-1)
    return ids, logprobs


def _logprobs(logits: Tensor, sampling: RowSampling) -> Tensor:
    temperature = torch.where(sampling.temperature > 0, sampling.temperature, 1.0)
    return torch.log_softmax(logits.float() / temperature[:, None], dim=-1)


def _sample(logits: Tensor, positions: Tensor, sampling: RowSampling, truncates: bool) -> Draw:
    logprobs = _logprobs(logits, sampling)
    probs = logprobs.double().exp_()
    keep = kept_tokens(probs, sampling) if truncates else None
    if keep is not None:
        probs = probs * keep
    cumulative = probs.cumsum_(-1)  # [R, V] float64, not normalized: the last column is the kept probability
    total = cumulative[:, -1].clone()  # a copy, so that the rest can be freed
    target = uniform(sampling.streams, positions) * total
    # the first token whose cumulative probability exceeds the target, so never one of probability 0; NaN exceeds
    # nothing
    ids = torch.searchsorted(cumulative, target[:, None], right=True).clamp_(max=probs.shape[1] - 1)
    draws = sampling.temperature[:, None] > 0
    if draws.device.type != "cpu" or not draws.all():  # reading a GPU's answer would cost more than the pass
        ids = torch.where(draws, ids, logits.argmax(-1, keepdim=True))
    behavior = logprobs.gather(1, ids)[:, 0]
    sampled = behavior
    if keep is not None:
        sampled = behavior - torch.where(keep.all(-1), 0.0, total.log()).float()
    return Draw(ids=ids[:, 0], behavior_logprobs=behavior, sampling_logprobs=sampled, totals=total)


def kept_tokens(probs: Tensor, sampling: RowSampling) -> Tensor:
    """`[R, V]` bool: the tokens of `probs` `[R, V]` float64 that truncation keeps, at least the most likely one."""
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(probs.shape[1], device=probs.device)
    top_k = torch.where(sampling.top_k > 0, sampling.top_k, probs.shape[1])
    keep = (ranks < top_k[:, None]) & (ordered >= sampling.min_p[:, None] * ordered[:, :1])
    left = ordered * keep
    before = left.cumsum(-1) - left  # probability of the tokens ahead: the one that crosses top_p stays
    keep &= (before < sampling.top_p[:, None] * left.sum(-1, keepdim=True)) | (sampling.top_p[:, None] >= 1)
    keep[:, 0] = True
    return torch.zeros_like(keep).scatter_(1, order, keep)


def uniform(streams: Tensor, positions: Tensor) -> Tensor:
    """A uniform number in [0, 1), float64 with 52 bits, for each row's token at `positions` `[R]`."""
    bits = _mix(streams + (positions + 1) * _signed(0x9E3779B97F4A7C15))
    return _shifted(bits, 12).double() * 2.0**-52


def streams(seeds: Sequence[int]) -> Tensor:
    """`[R]` int64: start of each seed's bit stream; distinct for distinct seeds (modulo 2^64)."""
    return _mix(torch.tensor([_signed(seed * 0x9E3779B97F4A7C15 + 1) for seed in seeds], dtype=torch.int64))


def _mix(x: Tensor) -> Tensor:
    """SplitMix64's finalizer on int64 bits; products wrap around."""
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, count: int) -> Tensor:
    """A logical right shift; torch's shift of int64 is arithmetic."""
    return (x >> count) & (2 ** (64 - count) - 1)


def _signed(value: int) -> int:
    """The 64-bit two's complement reading of `value` modulo 2^64."""
    return ((value + 2**63) % 2**64) - 2**63
