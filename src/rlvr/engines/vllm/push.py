"""New weights for servers: loaded by each while it pauses, and compared with the trainer's."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlvr.engines.vllm.probe import FP32_TOLERANCE, HALF_TOLERANCE, MAX_TOP, Gap, Probe
from rlvr.engines.vllm.server import Facts, Server
from rlvr.engines.vllm.transfer import Parcel, transfer
from rlvr.engines.vllm.wire import RefusedError
from rlvr.errors import UserError

PARTIAL = "partial"
"""Name of a server's weights during a push."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Properties of the policy that a server must share."""

    config: Mapping[str, int | str | bool | None]  # of the model, CONFIG_KEYS of the extension
    tokenizer: str  # digest, as the extension computes it
    is_float32: bool  # the trainer's precision
    adapter_rank: int | None  # None: whole weights are pushed


@dataclass(frozen=True, kw_only=True)
class Push:
    """A version of the weights, ready for any server at any time.

    An adapter has a new name in every version, and requests name it: in vLLM 0.32 each step of a request reloads an
    adapter that was replaced in place, from the folder it had when the request began, so requests of two versions would
    sample with the one loaded last.
    """

    version: int
    name: str  # of the version, on the servers
    source: Path | Parcel  # files, or what is broadcast
    adapter: str | None  # its name on the servers; None: whole weights
    probe: Probe
    tolerance: float | None  # None: by the precision


class Member:
    """A server, its state and its load."""

    def __init__(self, server: Server, facts: Facts, model: str) -> None:
        self.server, self.facts = server, facts
        self.model = model  # its name in requests, without adapters
        self.adapters: list[str] = []  # that it was given, oldest first
        self.load = 0  # requests that it has
        self.is_up = True
        self.num_looks = 0  # pushes that were tried
        self.problem = ""  # why it is down
        self.lock = threading.Lock()  # one push at a time

    @property
    def url(self) -> str:
        """Its address."""
        return self.server.url


def check_fits(url: str, facts: Facts, expected: Expected) -> None:
    """UserError unless the server's model, tokenizer and flags are what training needs."""
    ours = f"start it on the policy's model (now it has {facts.architecture})"
    for key, wanted in expected.config.items():
        theirs = facts.config.get(key)
        if None not in (theirs, wanted) and theirs != wanted:
            raise UserError(f"the server {url} has a model with {key}={theirs}, the policy has {wanted}: {ours}.")
    if facts.tokenizer is not None and facts.tokenizer != expected.tokenizer:
        raise UserError(f"the server {url} has another tokenizer than the policy: {ours}.")
    if facts.quantization is not None:
        raise UserError(
            f"the server {url} keeps its weights quantized ({facts.quantization}), and no check can tell whether "
            "pushed ones arrived: start it without quantization."
        )
    if facts.logprobs_mode != "processed_logprobs":
        raise UserError(
            f"the server {url} gives {facts.logprobs_mode}, not the logprobs of the distribution it samples from: "
            "start it with --logprobs-mode processed_logprobs."
        )
    if facts.device == "cpu" and facts.chunked_prefill:
        raise UserError(
            f"the server {url} cuts long prompts, and on a CPU vLLM dies of that where requests have seeds: start it "
            "with --no-enable-chunked-prefill."
        )
    if expected.adapter_rank is not None and facts.max_lora_rank < expected.adapter_rank:
        now = f"takes adapters up to rank {facts.max_lora_rank}" if facts.max_lora_rank else "takes no adapters"
        raise UserError(
            f"the server {url} {now}, model.lora.r={expected.adapter_rank}: start it with -- --enable-lora "
            f"--max-lora-rank {expected.adapter_rank}, or set engine.sync=folder."
        )


def push_to(member: Member, push: Push, expected: Expected) -> None:
    """Bring a server up to date. Requests in flight go on with the new weights. The server may have restarted since the
    last push, so its facts are read again.

    Raises:
        UserError: it does not fit any more, cannot read the files, or gives other logprobs than the trainer.
        ServerGoneError: it is not there.
    """
    try:
        if member.server.weight_version() == push.name:
            member.server.call("/resume")  # an earlier push may have been cut off before it
        else:
            _refresh(member, expected)
            _load(member, push)
        limit = MAX_TOP if member.facts.max_logprobs < 0 else min(member.facts.max_logprobs, MAX_TOP)
        top = min(limit, push.probe.logprobs.shape[1])
        gap = push.probe.gap(member.server.call, push.adapter or member.model, top=top)
    except RefusedError as error:
        raise UserError(_refusal(member.url, push, str(error))) from error
    _check_gap(member, push, gap, expected)


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
        for name in names[:-2]:  # running requests keep theirs; one that is still unread names the last but one
            server.unload_adapter(name)
        member.adapters = names[-2:]
        server.name_version(push.name)
        return
    server.call("/pause?mode=keep")  # requests in flight freeze, and go on from the tokens they have
    try:
        server.name_version(PARTIAL)  # if the push breaks, completions do not count as of the old weights
        server.forget_prefixes()  # requests in flight compute theirs again when the server resumes
        transfer(server, member.facts, push.source, push.name)
    finally:
        server.call("/resume")


def _check_gap(member: Member, push: Push, gap: Gap, expected: Expected) -> None:
    exact = member.facts.dtype == "float32" and expected.is_float32 and push.probe.exact
    allowed = push.tolerance if push.tolerance is not None else FP32_TOLERANCE if exact else HALF_TOLERANCE
    if not gap.size <= allowed:
        raise UserError(
            f"the server {member.url} does not sample from the pushed weights: after probe {gap.prompt} token "
            f"{gap.token} has logprob {gap.theirs:.5f} there and {gap.ours:.5f} in the trainer, {gap.size:.2g} apart, "
            f"and at most {allowed:g} is allowed (engine.max_logprob_gap); see that it has the policy's model."
        )


def _refusal(url: str, push: Push, reason: str) -> str:
    if "there is no safetensors file" in reason or "LoRAConfig" in reason or "not found" in reason.lower():
        return (
            f"the server {url} cannot use the weights in {push.source} ({reason}): let engine.weights_dir name a "
            "folder that trainer and servers share, and start it as docs/vllm.md says."
        )
    return f"the server {url} does not take the weights ({reason}): start it on the policy's model (docs/vllm.md)."
