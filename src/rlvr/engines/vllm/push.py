"""New weights for servers: written once, loaded by each while it pauses, and compared with the trainer's."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from rlvr.engines.vllm.broadcast import Meeting, Parcel
from rlvr.engines.vllm.extension.rlvr_vllm_group import UNREACHABLE
from rlvr.engines.vllm.probe import FP32_TOLERANCE, HALF_TOLERANCE, MAX_TOP, Gap, Probe
from rlvr.engines.vllm.server import Facts, Server
from rlvr.engines.vllm.wire import RefusedError
from rlvr.errors import UserError

PARTIAL = "partial"
"""Name of a server's weights during a push."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Properties of the policy that a server must share."""

    vocab_size: int
    hidden_size: int
    num_layers: int
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
    files: Path  # unused with a parcel
    parcel: Parcel | None = None  # to broadcast
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
    for what, theirs, wanted in (
        ("vocab_size", facts.vocab_size, expected.vocab_size),
        ("hidden_size", facts.hidden_size, expected.hidden_size),
        ("num_hidden_layers", facts.num_layers, expected.num_layers),
    ):
        if theirs != wanted:
            raise UserError(f"the server {url} has a model with {what}={theirs}, the policy has {wanted}: {ours}.")
    if facts.tokenizer is not None and facts.tokenizer != expected.tokenizer:
        raise UserError(f"the server {url} has another tokenizer than the policy: {ours}.")
    if facts.quantization is not None:
        raise UserError(
            f"the server {url} keeps its weights quantized ({facts.quantization}), and nobody could tell whether "
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


def push_to(member: Member, push: Push, expected: Expected, meeting: Meeting | None = None) -> None:
    """Bring a server up to date, with a parcel together with those in the `meeting`. Requests in flight go on with the
    new weights. The server may have restarted since the last push, so its facts are read again.

    Raises:
        UserError: it does not fit any more, cannot read the files, or gives other logprobs than the trainer.
        ServerGoneError: it is not there.
    """
    try:
        if member.server.weight_version() == push.name:
            member.server.resume()  # an earlier push may have been cut off before it
        else:
            _refresh(member, expected)
            _load(member, push, meeting)
        limit = MAX_TOP if member.facts.max_logprobs < 0 else min(member.facts.max_logprobs, MAX_TOP)
        top = min(limit, push.probe.logprobs.shape[1])
        gap = push.probe.gap(member.server.sample_now, push.adapter or member.model, top=top)
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


def _load(member: Member, push: Push, meeting: Meeting | None) -> None:
    server = member.server
    if push.adapter is not None:
        server.load_adapter(push.adapter, str(push.files))
        names = [*(name for name in member.adapters if name != push.adapter), push.adapter]
        for name in names[:-2]:  # running requests keep theirs; one that is still unread names the last but one
            server.unload_adapter(name)
        member.adapters = names[-2:]
        server.name_version(push.name)
        return
    server.pause()
    try:
        server.name_version(PARTIAL)  # if the push breaks, completions do not count as of the old weights
        if push.parcel is None:
            server.load_policy(str(push.files))
        else:
            (meeting or Meeting(push.parcel, [server])).receive(server, member.facts.num_workers)
        server.forget_prefixes()
        server.name_version(push.name)
    finally:
        server.resume()


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
    if UNREACHABLE in reason:
        return (
            f"the server {url} cannot get the weights ({reason}): let engine.broadcast_host name an address of this "
            "machine that the server reaches, and no firewall be between them (docs/vllm.md)."
        )
    if "workers came" in reason:
        return (
            f"the server {url} has more workers than it tells of ({reason}), as data parallel engines are: set "
            "engine.sync=folder, or start a server for each."
        )
    if "there is no safetensors file" in reason or "LoRAConfig" in reason or "not found" in reason.lower():
        return (
            f"the server {url} cannot use the weights in {push.files} ({reason}): let engine.weights_dir name a folder "
            "that trainer and servers share, and start it as docs/vllm.md says."
        )
    return f"the server {url} does not take the weights ({reason}): start it on the policy's model (docs/vllm.md)."
