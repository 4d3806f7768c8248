"""Check after every push: a server's next-token logprobs must be the trainer's.

The trainer's numbers are computed once a version and also serve servers that come back later. The prompts are fixed and
longer than a block of the prefix cache, so stale keys and values are found.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlvr.engines.vllm.wire import GENERATE, ServerGoneError, read_sampled, request_body
from rlvr.models.policy import HubPolicy
from rlvr.types import SamplingParams

LENGTHS = (5, 140, 300)
"""Tokens of the prompts; a block of vLLM's cache has 16 on a GPU and 128 on a CPU."""
TEMPERATURE = 0.7
"""Not 1: logprobs before and after the temperature must differ."""
MAX_TOP = 20
"""vLLM's own limit of alternatives."""
FP32_TOLERANCE, HALF_TOLERANCE = 1e-4, 0.25
"""Largest difference of a logprob; every kernel rounds half precision differently."""

Ask = Callable[[str, Mapping[str, Any]], bytes]
"""Posts a body to a path; returns the answer."""


@dataclass(frozen=True, kw_only=True)
class Gap:
    """The largest difference: `theirs` and `ours` are logprobs of `token` after prompt `prompt`. `size` is relative for
    logprobs below -1."""

    size: float
    prompt: int
    token: int
    theirs: float
    ours: float


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Fixed prompts and the trainer's logprobs of the token after each."""

    prompts: tuple[tuple[int, ...], ...]
    logprobs: Tensor  # [P, V] float32, on the CPU
    exact: bool = True  # whether the trainer computed in float32

    def gap(self, ask: Ask, model: str, *, top: int) -> Gap:
        """Compare with the `top` likeliest tokens of the server's `model`. Raises ServerGoneError, RefusedError."""
        worst = Gap(size=-1.0, prompt=0, token=0, theirs=0.0, ours=0.0)
        params = SamplingParams(max_tokens=1, stop_ids=frozenset(), seed=0, temperature=TEMPERATURE)
        for index, prompt in enumerate(self.prompts):
            body = request_body(model, prompt, params, top=top)
            sampled = read_sampled(ask(GENERATE, body), params, vocab_size=self.logprobs.shape[1])
            for token, theirs in (*sampled.top, (sampled.token_ids[0], sampled.logprobs[0])):
                if not 0 <= token < self.logprobs.shape[1]:
                    raise ServerGoneError(f"it knows a token {token}, outside of the vocabulary")
                ours = float(self.logprobs[index, token])
                size = abs(theirs - ours) / max(1.0, abs(ours))  # logits of 30 are rounded 30 times as coarsely
                if not size <= worst.size:  # NaN is worst
                    worst = Gap(size=size, prompt=index, token=token, theirs=theirs, ours=ours)
        return worst


def probe_prompts(vocab_size: int, max_tokens: int) -> tuple[tuple[int, ...], ...]:
    """Fixed ids from the whole vocabulary, each at least one token shorter than the context."""
    lengths = sorted({min(length, max_tokens - 1) for length in LENGTHS})
    draw = random.Random(0)
    return tuple(tuple(draw.randrange(vocab_size) for _ in range(length)) for length in lengths)


def make_probe(policy: HubPolicy, prompts: Sequence[tuple[int, ...]]) -> Probe:
    """The policy's logprobs in the precision its weights compute in, one forward a prompt. Ranks call it together."""
    with torch.no_grad():
        logprobs, exact = policy.run(_next_logprobs, policy, prompts)
    return Probe(prompts=tuple(prompts), logprobs=logprobs, exact=exact)


def _next_logprobs(policy: HubPolicy, prompts: Sequence[tuple[int, ...]]) -> tuple[Tensor, bool]:
    rows = []
    for prompt in prompts:
        hidden = policy.hidden(torch.tensor([prompt], device=policy.model.device))
        logits = policy.logits(hidden[:, -1])
        rows.append(torch.log_softmax(logits.float() / TEMPERATURE, dim=-1)[0].cpu())
    return torch.stack(rows), policy.dtype == torch.float32
