"""Memory plan of a run: predicted use, and the most tokens per pass that fit a GPU.

    libraries      of this process on a CPU, with all else that it held before
    weights        the model's tensors
    gradients      float32, of the trained weights
    unadded        the gradients that a backward pass has made and not yet added: of the largest tensor
    optimizer      two moments of the trained weights
    reference      frozen copies of the policy, as for the KL term; with adapters they are the model itself
    teachers       other models that the algorithm asks
    sampler        the copy of the model that samples during training, and of its matrices in the CPU's order
    activations    kept by a forward pass for backward, per microbatch
    logits         of one chunk of predicted tokens, with derived tensors
    keys, values   of all completions sampled together

All but activations and logits follow from shapes. Activations are measured on the model: three forward passes of a few
tokens, with torch's hooks for saved tensors. A line of L tokens needs

    fixed + per_token x tokens + per_pair x tokens x L

where `fixed` is independent of the tokens (weights cast to bfloat16) and `per_pair` is the mask. With recomputed layers
(model.gradient_checkpointing) it is the input of every layer, and one layer twice.
"""

import resource
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from rlvr.core.engine import cache
from rlvr.core.engine.packed import packed_bytes
from rlvr.core.packing import Layout
from rlvr.core.policy import logits_per_chunk
from rlvr.core.settings import cpu_tokens
from rlvr.errors import ConfigError
from rlvr.models.devices import WIDE_PASS_TOKENS, is_wide
from rlvr.models.policy import HubPolicy
from rlvr.models.recompute import keeping_activations, recomputed_layers

LOGITS_COPIES = 4
"""Float32 tensors of the size of a chunk's logits that live at once in its backward pass (counted by a test)."""
USABLE = 0.9  # planned share of a GPU's free memory; the rest is lost to fragmentation
MOST_TOKENS = 1 << 17  # more tokens per pass make no GPU faster
SHORT, LONG = 32, 64  # tokens of the measured lines


@dataclass(frozen=True, kw_only=True)
class Activations:
    fixed: float
    per_token: float
    per_pair: float


@dataclass(frozen=True, kw_only=True)
class Demand:
    line_tokens: int  # approximate length of the longest row
    num_rows: int  # of a batch
    batch_tokens: int | None = None  # of an update's rows, laid out with shared prompts; None: each row is the longest
    predicted_tokens: int | None = None  # of these; None: all
    library_bytes: int = 0  # of the process beside the model
    activations: Activations
    keys_values_per_row: int  # bytes per running completion; 0: another process samples
    max_batch_size: int  # completions sampled together
    num_references: int
    teacher_bytes: int  # weights of other models in this process, before sharding
    copy_dtype: torch.dtype | None  # of the engine's own copy of the weights; None: it has none
    num_shards: int = 1  # ranks that share the weights


Parts = dict[str, int]  # bytes by the names in this file's docstring


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    parts: Parts
    microbatch_tokens: int
    max_batch_size: int
    samples_fewer: bool  # than engine.max_batch_size, for lack of memory
    lines: tuple[str, ...]  # for the user


def plan_memory(
    policy: HubPolicy, demand: Demand, *, setting: int | Literal["auto"], available: int | None = None
) -> MemoryPlan:
    """The plan. `setting` is `trainer.microbatch_tokens`, `available` the usable memory of the GPU in bytes.

    Without `available`, on a CPU, nothing is checked. With it, `auto` is the largest fitting value among a line's
    tokens times 1, 2, 4, ..., and fewer completions are sampled together if all of them do not fit. ConfigError with a
    remedy if even that is not enough.
    """
    line, in_a_batch = demand.line_tokens, demand.num_rows * demand.line_tokens
    batch_size, tokens, notes = demand.max_batch_size, cpu_tokens(setting), []
    if setting == "auto" and policy.adapters is not None and is_wide(policy.model):
        tokens = WIDE_PASS_TOKENS

    def parts(tokens: int) -> Parts:
        return _parts(policy, demand, max(line, min(tokens, demand.batch_tokens or in_a_batch)), batch_size)

    def total(tokens: int) -> int:
        return sum(parts(tokens).values())

    if available is not None:
        while batch_size > 1 and total(line) > available:
            batch_size //= 2
        if total(line) > available:
            raise ConfigError(
                f"the run needs {size_text(total(line))} of memory and may use {size_text(available)}, even with one "
                f"row of {line:,} tokens at a time ({_text(parts(line))}): lower rollout.max_completion_tokens, or set "
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
        lines=(first + _text(parts(tokens)), *notes),
    )


def _text(parts: Parts) -> str:
    return ", ".join(f"{name} {size_text(size)}" for name, size in parts.items() if size)


def _parts(policy: HubPolicy, demand: Demand, tokens: int, batch_size: int) -> Parts:
    weights, parameters = weight_bytes(policy), list(policy.parameters())
    trained = sum(parameter.nbytes for parameter in parameters)
    replicated = 1 if policy.adapters is not None else demand.num_shards  # adapters are not sharded
    vocabulary = int(policy.model.config.get_text_config().vocab_size)
    predicted = min(tokens, demand.predicted_tokens or tokens)
    logits = min(predicted * vocabulary, logits_per_chunk(policy.model.device))
    made = demand.activations
    kept = made.fixed + made.per_token * tokens + made.per_pair * tokens * demand.line_tokens
    return {
        "libraries": demand.library_bytes,
        "weights": -(-weights // demand.num_shards),
        "gradients": -(-trained // replicated),
        "unadded": _unadded(policy),
        "optimizer": -(-2 * trained // replicated) + 4 * len(parameters),  # a step count a tensor
        "reference": demand.num_references * -(-weights // demand.num_shards) if policy.adapters is None else 0,
        "teachers": -(-demand.teacher_bytes // demand.num_shards),
        "sampler": _sampler(policy, weights, demand),
        "activations": round(kept),
        "logits": LOGITS_COPIES * 4 * logits,
        "keys and values": batch_size * demand.keys_values_per_row,
    }


def _sampler(policy: HubPolicy, own: int, demand: Demand) -> int:
    copied = own - _saved(policy, demand.copy_dtype) if demand.copy_dtype else 0
    samples = demand.keys_values_per_row > 0
    return copied + (packed_bytes(policy.model, demand.copy_dtype or policy.dtype) if samples else 0)


def _unadded(policy: HubPolicy) -> int:
    """Bytes of a backward pass's gradient of the largest trained tensor; of a tied embedding two, as head and as
    embedding."""
    largest = max(policy.parameters(), key=lambda parameter: parameter.nbytes)
    head = policy.model.get_output_embeddings()
    tied = head is not None and head.weight is policy.model.get_input_embeddings().weight is largest
    return largest.nbytes * (2 if tied else 1)


def _saved(policy: HubPolicy, dtype: torch.dtype) -> int:
    """Bytes by which a copy whose float32 weights are of that dtype is smaller."""
    weights = [p for p in policy.model.parameters() if p.dtype == torch.float32]
    return sum(p.numel() * (p.itemsize - dtype.itemsize) for p in weights)


def weight_bytes(policy: HubPolicy) -> int:
    """Of all tensors of the model and the critic, tied ones once, including the quantization state."""
    return sum({_storage(tensor): tensor.nbytes for tensor in _tensors(policy)}.values())


def keys_values_bytes(
    policy: HubPolicy,
    row_tokens: int,
    *,
    prompt_tokens: int = 0,
    dtype: torch.dtype | None = None,
    recomputed: bool = False,
) -> int:
    """Of one completion's keys and values at its end, in buffers that grow by doubling. On a CPU the smaller ones are
    kept for the next batch; on a GPU a recorded step keeps its logits and a copy of them. `prompt_tokens`: kept apart
    in a buffer that does not grow. `recomputed`: new weights can arrive during sampling, and sampled tokens become a
    prompt in addition to their old place. `dtype`: of the weights that sample, if they are not the policy's own."""
    dtype = dtype or policy.dtype
    config = policy.model.config.get_text_config()
    heads = int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
    width = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    on_cpu = policy.model.device.type == "cpu"
    capacity = max(16, 1 << (row_tokens - prompt_tokens - 1).bit_length())
    columns = capacity * (2 if on_cpu else 1) + (prompt_tokens + 15 & ~15)
    stored = 2 * int(config.num_hidden_layers) * heads * width * columns * (cache.KV_DTYPE or dtype).itemsize
    stored *= 2 if recomputed else 1
    return stored if on_cpu else stored + 2 * int(config.vocab_size) * dtype.itemsize


def available_memory(device: torch.device) -> int | None:
    """Bytes of a GPU that this process may use: free memory and its own; None for the CPU and MPS, which shares it."""
    module = torch.get_device_module(device)
    if not hasattr(module, "mem_get_info"):
        return None
    free, _ = module.mem_get_info(device)
    return int(USABLE * (free + module.memory_reserved(device)))


@lru_cache
def library_bytes(policy_bytes: int) -> int:
    """Resident bytes of this process beside a model of that size, as they were when first asked for: what a warm start
    frees stays resident, and is used again."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:  # no Linux
        return 0
    return max(0, pages * resource.getpagesize() - policy_bytes)


def size_text(num_bytes: int) -> str:
    unit, size = next((one for one in (("GB", 10**9), ("MB", 10**6)) if num_bytes >= one[1]), ("kB", 1000))
    return f"{num_bytes / size:,.1f} {unit}"


def measure_activations(
    policy: HubPolicy, layout: Layout, autocast: Callable[[], AbstractContextManager[object]] = nullcontext
) -> Activations:
    """Memory kept by forward passes of this model, from three small ones: two line lengths, one line and two."""
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
    """Bytes of all tensors that a forward pass over such lines saves, without the model's own."""
    device, vocabulary = policy.model.device, int(policy.model.config.get_text_config().vocab_size)
    ids = (torch.arange(lines * length, device=device) % vocabulary).view(lines, length)
    positions = torch.arange(length, device=device).expand(lines, length)
    allowed = torch.ones(lines, length, length, dtype=torch.bool, device=device).tril()
    own = {_storage(tensor) for tensor in _tensors(policy)}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if _storage(tensor) not in own:
            kept[_storage(tensor)] = tensor  # held, so that its memory is not reused
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = policy.hidden(ids) if layout in ("rows", "alone") else policy.hidden(ids, positions, allowed)
    del hidden
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def _storage(tensor: Tensor) -> int:
    """The same number for all views of one storage."""
    return tensor.untyped_storage()._cdata


def _tensors(policy: HubPolicy) -> list[Tensor]:
    modules = [policy.model] if policy.value_head is None else [policy.model, policy.value_head]
    found: list[Tensor] = [t for module in modules for t in (*module.parameters(), *module.buffers())]
    states = [state for t in found if (state := getattr(t, "quant_state", None)) is not None]
    return found + [t for state in states for t in (state.absmax, state.code) if isinstance(t, Tensor)]
