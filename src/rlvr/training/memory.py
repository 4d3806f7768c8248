"""How much memory a run will need, said before it begins; and the most tokens per pass that fit a GPU.

    weights        the model, as its tensors are
    gradients      float32, of what is trained
    optimizer      two moments of what is trained
    reference      the frozen copy that the KL term compares with; with adapters it is the model itself
    sampler        the copy of the model that samples while training goes on
    activations    what a forward pass keeps for the backward pass, of one microbatch
    logits         of one chunk of predicted tokens, with what is made of them
    keys, values   of all completions that are sampled together

All but the activations and the logits follow from shapes. Activations are measured on the model itself: three forward
passes of a few tokens, in which torch says what it keeps. What a line of L tokens needs is

    fixed + per_token x tokens + per_pair x tokens x L

where `fixed` is what does not depend on the tokens (weights cast to bfloat16) and `per_pair` is the mask. Where layers
are recomputed (model.gradient_checkpointing) it is the input of every layer, and one layer twice.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rlvr.core.engine import cache
from rlvr.core.packing import Layout
from rlvr.core.policy import logits_per_chunk
from rlvr.core.settings import cpu_tokens
from rlvr.errors import ConfigError
from rlvr.models.policy import HubPolicy
from rlvr.models.recompute import keeping_activations, recomputed_layers

LOGITS_COPIES = 4
"""Float32 tensors of the size of a chunk's logits that live at once in its backward pass (counted by a test)."""
USABLE = 0.9  # share of a GPU's free memory that is planned with; the rest is lost between tensors
MOST_TOKENS = 1 << 17  # more tokens a pass make no GPU faster
SHORT, LONG = 32, 64  # tokens of the lines that are measured


@dataclass(frozen=True, kw_only=True)
class Activations:
    fixed: float
    per_token: float
    per_pair: float


@dataclass(frozen=True, kw_only=True)
class Demand:
    line_tokens: int  # the longest row, about
    num_rows: int  # of a batch
    activations: Activations
    keys_values_per_row: int  # bytes of one completion that is being sampled; 0: another process samples
    max_batch_size: int  # completions sampled together
    has_reference: bool
    has_copy: bool  # the engine samples from weights of its own
    num_shards: int = 1  # ranks that the weights are cut over


Parts = dict[str, int]  # bytes, as this file's docstring names them


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    parts: Parts
    microbatch_tokens: int
    max_batch_size: int
    samples_fewer: bool  # than engine.max_batch_size, because they would not fit
    lines: tuple[str, ...]  # for the user


def plan_memory(
    policy: HubPolicy, demand: Demand, *, setting: int | Literal["auto"], available: int | None = None
) -> MemoryPlan:
    """The plan. `setting` is `trainer.microbatch_tokens`, `available` what the run may use of a GPU's memory, in bytes.

    Without `available`, on a CPU, nothing is compared. With it `auto` is the most that fits, of a line's tokens times
    1, 2, 4, ..., and fewer completions are sampled together where all of them would leave no room. ConfigError with
    what to change if not even that helps.
    """
    line, in_a_batch = demand.line_tokens, demand.num_rows * demand.line_tokens
    batch_size, tokens, notes = demand.max_batch_size, cpu_tokens(setting), []

    def parts(tokens: int) -> Parts:
        return _parts(policy, demand, max(line, min(tokens, in_a_batch)), batch_size)

    def total(tokens: int) -> int:
        return sum(parts(tokens).values())

    if available is not None:
        while batch_size > 1 and total(line) > available:
            batch_size //= 2
        if total(line) > available:
            raise ConfigError(
                f"the run needs {size_text(total(line))} of memory and may use {size_text(available)}, even with one "
                f"row of {line:,} tokens at a time ({_said(parts(line))}): lower rollout.max_completion_tokens, or set "
                "model.gradient_checkpointing=true, or train adapters with model.lora.enabled=true."
            )
        most = line
        while most < min(MOST_TOKENS, in_a_batch) and total(2 * most) <= available:
            most *= 2
        tokens = most if setting == "auto" else setting
        if batch_size < demand.max_batch_size:
            notes.append(
                f"memory: engine.max_batch_size={demand.max_batch_size}: the keys and values of that many completions "
                f"do not fit beside training; {batch_size} are sampled at a time"
            )
        if tokens > most:
            notes.append(f"memory: trainer.microbatch_tokens={tokens} may not fit; auto would choose {most}")
    room = "" if available is None else f" of {size_text(available)}"
    first = f"memory: {size_text(total(tokens))}{room} at {tokens:,} tokens a pass in rows of up to {line:,}: "
    return MemoryPlan(
        parts=parts(tokens),
        microbatch_tokens=tokens,
        max_batch_size=batch_size,
        samples_fewer=batch_size < demand.max_batch_size,
        lines=(first + _said(parts(tokens)), *notes),
    )


def _said(parts: Parts) -> str:
    return ", ".join(f"{name} {size_text(size)}" for name, size in parts.items() if size)


def _parts(policy: HubPolicy, demand: Demand, tokens: int, batch_size: int) -> Parts:
    own, parameters = weight_bytes(policy), list(policy.parameters())
    trained = sum(parameter.nbytes for parameter in parameters)
    replicated = 1 if policy.adapters is not None else demand.num_shards  # what is trained of adapters is never cut
    logits = min(tokens * int(policy.model.config.vocab_size), logits_per_chunk(policy.model.device))
    made = demand.activations
    kept = made.fixed + made.per_token * tokens + made.per_pair * tokens * demand.line_tokens
    return {
        "weights": -(-own // demand.num_shards),
        "gradients": -(-trained // replicated),
        "optimizer": -(-2 * trained // replicated) + 4 * len(parameters),  # a step count a tensor
        "reference": -(-own // demand.num_shards) if demand.has_reference and policy.adapters is None else 0,
        "sampler": own if demand.has_copy else 0,
        "activations": round(kept),
        "logits": LOGITS_COPIES * 4 * logits,
        "keys and values": batch_size * demand.keys_values_per_row,
    }


def weight_bytes(policy: HubPolicy) -> int:
    """Of all tensors of the model and the critic, tied ones once; what quantized ones need to be read included."""
    return sum({_storage(tensor): tensor.nbytes for tensor in _tensors(policy)}.values())


def keys_values_bytes(policy: HubPolicy, row_tokens: int, *, recomputed: bool = False) -> int:
    """Of one completion's keys and values at its end, in buffers that grow by doubling; on a CPU the smaller ones are
    kept for the next batch, elsewhere a recorded step keeps its logits, and a copy of them. If rows are `recomputed`
    for weights that come while they are sampled, what they have sampled becomes a prompt, beside its old place."""
    config = policy.model.config.get_text_config()
    heads = int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
    width = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    capacity = max(16, 1 << (row_tokens - 1).bit_length())
    stored = 2 * int(config.num_hidden_layers) * heads * width * capacity * (cache.KV_DTYPE or policy.dtype).itemsize
    stored *= 2 if recomputed else 1
    on_cpu = policy.model.device.type == "cpu"
    return 2 * stored if on_cpu else stored + 2 * int(config.vocab_size) * policy.dtype.itemsize


def available_memory(device: torch.device) -> int | None:
    """Bytes of a GPU that this process may use: what is free, and what it has taken already; None for a CPU."""
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return int(USABLE * (free + torch.cuda.memory_reserved(device)))


def size_text(num_bytes: int) -> str:
    unit, size = next((one for one in (("GB", 10**9), ("MB", 10**6)) if num_bytes >= one[1]), ("kB", 1000))
    return f"{num_bytes / size:,.1f} {unit}"


def measure_activations(
    policy: HubPolicy, layout: Layout, autocast: Callable[[], AbstractContextManager[object]] = nullcontext
) -> Activations:
    """What forward passes of this model keep, from three small ones: two line lengths, one line and two."""
    with keeping_activations(policy.model), torch.enable_grad(), autocast():
        one, two, longer = (_kept_bytes(policy, layout, *shape) for shape in ((1, SHORT), (2, SHORT), (1, LONG)))
    # one = f + S t + S S p,   two = f + 2 S t + 2 S S p,   longer = f + L t + L L p
    per_token_short = (two - one) / SHORT  # t + S p
    fixed = one - SHORT * per_token_short
    per_pair = ((longer - fixed) / LONG - per_token_short) / (LONG - SHORT)
    per_token = per_token_short - SHORT * per_pair
    config = policy.model.config.get_text_config()
    num_layers = int(config.num_hidden_layers)
    if recomputed_layers(policy.model):
        inputs = num_layers * int(config.hidden_size) * policy.dtype.itemsize
        per_token = min(per_token, inputs + 2 * per_token / num_layers)  # a recomputed layer, and its gradients
    return Activations(fixed=fixed, per_token=per_token, per_pair=per_pair)


def _kept_bytes(policy: HubPolicy, layout: Layout, lines: int, length: int) -> int:
    """Bytes of all tensors that a forward pass over lines of this length keeps, those of the model left out."""
    device = policy.model.device
    ids = (torch.arange(lines * length, device=device) % int(policy.model.config.vocab_size)).view(lines, length)
    positions = torch.arange(length, device=device).expand(lines, length)
    allowed = torch.ones(lines, length, length, dtype=torch.bool, device=device).tril()
    own = {_storage(tensor) for tensor in _tensors(policy)}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if _storage(tensor) not in own:
            kept[_storage(tensor)] = tensor  # held, or another one could get its place
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = policy.hidden(ids) if layout == "rows" else policy.hidden(ids, positions, allowed)
    del hidden
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def _storage(tensor: Tensor) -> int:
    """The same number for all views of one piece of memory."""
    return tensor.untyped_storage()._cdata


def _tensors(policy: HubPolicy) -> list[Tensor]:
    modules = [policy.model] if policy.value_head is None else [policy.model, policy.value_head]
    found: list[Tensor] = [t for module in modules for t in (*module.parameters(), *module.buffers())]
    states = [state for t in found if (state := getattr(t, "quant_state", None)) is not None]
    return found + [t for state in states for t in (state.absmax, state.code) if isinstance(t, Tensor)]
