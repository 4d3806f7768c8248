"""Pushes new weights: each server loads them while paused, then its logprobs are compared with the trainer's.

The trainer's logprobs for fixed probe prompts are computed once per version, also for servers that come back later.
"""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlvr.core.noise import ALLOWED_16_BIT, ALLOWED_32_BIT, embeddings_moved, probe_rows
from rlvr.engines.vllm.server import (
    GENERATE,
    Facts,
    RefusedError,
    Server,
    ServerGoneError,
    read_sampled,
    request_body,
)
from rlvr.engines.vllm.weights import Parcel, transfer
from rlvr.errors import UserError
from rlvr.models.policy import HubPolicy
from rlvr.types import SamplingParams

PARTIAL = "partial"  # version name of a server during a push
LENGTHS = (5, 140, 300)
"""Tokens of the probe's prompts: longer than a block of the prefix cache (16 on a GPU, 128 on a CPU), so that the
probe detects stale keys and values."""
TEMPERATURE = 0.7  # of the probe. Not 1, so that logprobs with and without temperature differ
MAX_TOP = 20  # vLLM's limit
FP32_TOLERANCE, HALF_TOLERANCE = 1e-4, 0.25
"""Least of what a logprob may differ by: a server's kernels approximate where torch does not. See `allowed_gap` for a
model whose own noise is larger."""


@dataclass(frozen=True, kw_only=True)
class LogprobGap:
    """The largest difference: `theirs` and `ours` are logprobs of `token` after prompt `prompt`. `size` is relative for
    logprobs below -1."""

    size: float
    prompt: int
    token: int
    theirs: float
    ours: float


@dataclass(frozen=True, kw_only=True)
class PushProbe:
    prompts: tuple[tuple[int, ...], ...]
    logprobs: Tensor  # [P, V] float32, on the CPU
    exact: bool = True  # whether the trainer computed in float32
    noise: Mapping[torch.dtype, float] = field(default_factory=dict)  # largest gap by rounding alone, by precision

    def gap(self, ask: Callable[[str, Mapping[str, Any]], bytes], model: str, *, top: int) -> LogprobGap:
        """Compare with the `top` likeliest tokens of the server's `model`; `ask` posts a body to a path."""
        worst = LogprobGap(size=-1.0, prompt=0, token=0, theirs=0.0, ours=0.0)
        params = SamplingParams(max_tokens=1, stop_ids=frozenset(), seed=0, temperature=TEMPERATURE)
        for index, prompt in enumerate(self.prompts):
            body = request_body(model, prompt, params, top=top)
            sampled = read_sampled(ask(GENERATE, body), params, vocab_size=self.logprobs.shape[1])
            for token, theirs in (*sampled.top, (sampled.token_ids[0], sampled.logprobs[0])):
                if not 0 <= token < self.logprobs.shape[1]:
                    raise ServerGoneError(f"it knows a token {token}, outside of the vocabulary")
                ours = float(self.logprobs[index, token])
                size = relative_gap(theirs, ours)
                if not (size <= worst.size or math.isnan(worst.size)):  # NaN is worse than any number
                    worst = LogprobGap(size=size, prompt=index, token=token, theirs=theirs, ours=ours)
        return worst


def relative_gap(theirs: float, ours: float) -> float:
    return abs(theirs - ours) / max(1.0, abs(ours))  # rounding errors grow with the logits


def make_prompts(policy: HubPolicy, max_tokens: int) -> tuple[tuple[int, ...], ...]:
    """The probe's: text of the policy's own prompts, each at least one token shorter than the context."""
    lengths = sorted({min(length, max_tokens - 1) for length in LENGTHS})
    rows = probe_rows(policy.prompts, policy.model.config.get_text_config().vocab_size, lengths)
    return tuple(map(tuple, rows))


def make_probe(
    policy: HubPolicy, prompts: Sequence[tuple[int, ...]], noise: Mapping[torch.dtype, float] | None = None
) -> PushProbe:
    """The policy's logprobs in its compute precision, one forward per prompt. Collective.

    `noise` is that of an earlier version, which training hardly changes; None measures it.
    """

    def next_logprobs() -> tuple[Tensor, bool]:
        hidden = (policy.hidden(torch.tensor([prompt], device=policy.model.device))[:, -1] for prompt in prompts)
        logits = torch.cat([policy.logits(last).float().cpu() for last in hidden])
        return torch.log_softmax(logits / TEMPERATURE, dim=-1), policy.dtype == torch.float32

    def moved(dtype: torch.dtype) -> float:
        with embeddings_moved(policy.model, dtype, seed=0):
            others, _ = policy.run(next_logprobs)
        likely = logprobs.topk(min(MAX_TOP, logprobs.shape[1])).indices
        theirs, ours = (x.gather(1, likely).flatten().tolist() for x in (others, logprobs))
        return max(map(relative_gap, theirs, ours))

    with torch.no_grad():
        logprobs, exact = policy.run(next_logprobs)
        if noise is None:
            noise = {dtype: moved(dtype) for dtype in (torch.float32, torch.bfloat16)}
    return PushProbe(prompts=tuple(prompts), logprobs=logprobs, exact=exact, noise=noise)


def allowed_gap(probe: PushProbe, *, exact: bool) -> float:
    """The largest difference that rounding explains where both sides compute in float32 (`exact`), or one does not."""
    least, times, dtype = FP32_TOLERANCE, ALLOWED_32_BIT, torch.float32
    if not exact:
        least, times, dtype = HALF_TOLERANCE, ALLOWED_16_BIT, torch.bfloat16
    return max(least, times * probe.noise.get(dtype, 0.0))


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Properties of the policy that a server must share."""

    config: Mapping[str, int | str | bool | None]  # CONFIG_KEYS of the model's config
    tokenizer: str  # digest, as the extension computes it
    is_float32: bool  # the trainer's precision
    adapter_rank: int | None  # None: whole weights are pushed


@dataclass(frozen=True, kw_only=True)
class Push:
    """A version of the weights, ready for any server at any time.

    Each version of an adapter has a new name, which requests use: vLLM 0.32 reloads an adapter replaced in place at
    each step from the folder of the request's start, so requests of two versions would both sample with the one loaded
    last.
    """

    version: int
    name: str  # version name on the servers
    source: Path | Parcel  # files, or tensors to broadcast
    adapter: str | None  # its name on the servers; None: whole weights
    probe: PushProbe
    tolerance: float | None  # None: by the precision

    @property
    def run(self) -> str:
        return self.name.partition("/")[0]


class Member:
    def __init__(self, server: Server, facts: Facts, model: str) -> None:
        self.server, self.facts = server, facts
        self.model = model  # model name in requests, without adapters
        self.adapters: list[str] = []  # loaded adapters, oldest first
        self.load = 0  # running requests
        self.is_up = True
        self.is_ours = False  # has had weights of this run
        self.num_looks = 0  # attempted pushes
        self.problem = ""  # why it is down
        self.lock = threading.Lock()  # one push at a time

    @property
    def url(self) -> str:
        return self.server.url


def check_fits(url: str, facts: Facts, expected: Expected) -> None:
    """UserError unless the server's model, tokenizer and flags fit training."""
    rank = expected.adapter_rank or 0
    problems = [
        f"has a model with {key}={facts.config.get(key)}, the policy has {wanted}: start it on the policy's model"
        for key, wanted in expected.config.items()
        if None not in (facts.config.get(key), wanted) and facts.config.get(key) != wanted
    ]
    if facts.tokenizer is not None and facts.tokenizer != expected.tokenizer:
        problems.append("has another tokenizer than the policy: start it on the policy's model")
    if facts.quantization is not None:  # the probe could not verify pushed weights
        problems.append(f"keeps its weights quantized ({facts.quantization}): start it without quantization")
    if facts.logprobs_mode != "processed_logprobs":  # not those of the sampling distribution
        problems.append(f"gives {facts.logprobs_mode}: start it with --logprobs-mode processed_logprobs")
    if facts.device == "cpu" and facts.chunked_prefill:
        problems.append(
            "cuts long prompts, and on a CPU vLLM dies of that where requests have seeds: start it with "
            "--no-enable-chunked-prefill"
        )
    if facts.max_lora_rank < rank:
        problems.append(
            f"takes adapters up to rank {facts.max_lora_rank}, model.lora.r={rank}: start it with -- --enable-lora "
            f"--max-lora-rank {rank}, or set engine.sync=folder"
        )
    if problems:
        raise UserError(f"the server {url} {problems[0]}.")


def push_to(member: Member, push: Push, expected: Expected) -> None:
    """Update a server. Requests in flight continue with the new weights. The server may have restarted since the last
    push, so its facts are read again.

    Raises:
        UserError: it no longer fits, has another run's weights, cannot read the files, or its logprobs differ from the
            trainer's.
        ServerGoneError: it does not answer.
    """
    try:
        has = member.server.weight_version()
        if member.is_ours and "/" in has and has.partition("/")[0] != push.run:
            raise UserError(
                f"the server {member.url} has weights of another run now: give each run servers of its own "
                "(engine.urls), and go on with resume=true."
            )
        if has == push.name:
            member.server.call("/resume")  # an interrupted push may have left it paused
        else:
            _refresh(member, expected)
            _load(member, push)
        limit = MAX_TOP if member.facts.max_logprobs < 0 else min(member.facts.max_logprobs, MAX_TOP)
        top = min(limit, push.probe.logprobs.shape[1])
        gap = push.probe.gap(member.server.call, push.adapter or member.model, top=top)
    except RefusedError as error:
        raise UserError(
            f"the server {member.url} does not take the weights ({error}): start it on the policy's model as "
            "docs/vllm.md says, and let engine.weights_dir name a folder that it shares with the trainer."
        ) from error
    _check_gap(member, push, gap, expected)
    member.is_ours = True


def _refresh(member: Member, expected: Expected) -> None:
    facts = member.server.describe()
    check_fits(member.url, facts, expected)
    if facts.max_model_len < member.facts.max_model_len:
        raise UserError(
            f"the server {member.url} came back with room for {facts.max_model_len} tokens, and had "
            f"{member.facts.max_model_len}: start it with --max-model-len {member.facts.max_model_len}."
        )
    member.facts, member.model = facts, member.server.model_name()


def _load(member: Member, push: Push) -> None:
    server = member.server
    if push.adapter is not None:
        server.load_adapter(push.adapter, str(push.source))
        names = [*(name for name in member.adapters if name != push.adapter), push.adapter]
        for name in names[:-2]:  # running requests keep their adapter; an unread one may name the last but one
            server.unload_adapter(name)
        member.adapters = names[-2:]
        server.name_version(push.name)
        return
    server.call("/pause?mode=keep")  # freezes requests in flight; they continue later
    try:
        server.name_version(PARTIAL)  # after a broken push, completions do not pass for the old version
        server.forget_prefixes()  # requests in flight recompute theirs on resume
        transfer(server, member.facts, push.source, push.name)
    finally:
        server.call("/resume")


def _check_gap(member: Member, push: Push, gap: LogprobGap, expected: Expected) -> None:
    exact = member.facts.dtype == "float32" and expected.is_float32 and push.probe.exact
    allowed = push.tolerance if push.tolerance is not None else allowed_gap(push.probe, exact=exact)
    if not gap.size <= allowed:
        raise UserError(
            f"the server {member.url} does not sample from the pushed weights: after probe {gap.prompt} token "
            f"{gap.token} has logprob {gap.theirs:.5f} there and {gap.ours:.5f} in the trainer, {gap.size:.2g} apart, "
            f"and at most {allowed:g} is allowed (engine.max_logprob_gap); see that it has the policy's model."
        )
