"""The policy: a transformers causal LM, its tokenizer and, for PPO, a value head on the same trunk."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from logging import ERROR, getLogger
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from rlvr.models.adapters import (
    adapter_weights,
    are_untrained,
    copy_adapters,
    load_adapters,
    merge,
    other_adapters,
    without_adapters,
)
from rlvr.models.attention import attention_mask
from rlvr.models.quantization import num_weights
from rlvr.models.sharding import GATHERED, copy_into, is_sharded, whole

T = TypeVar("T")

logging.disable_progress_bar()  # rlvr shows its own progress
getLogger("bitsandbytes").setLevel(ERROR)  # imported with every adapter, it tells that an optional package is missing

LOGITS_PER_CHUNK = 1 << 24
"""Logits held at once (64 MiB in fp32); longer selections are computed chunk by chunk and recomputed in backward."""

GPU_LOGITS_PER_CHUNK = 1 << 27
"""The same on a GPU (512 MiB): all of a head's weights are read, and their gradients written, for every chunk."""


def logits_per_chunk(device: torch.device) -> int:
    """Logits held at once on this device."""
    return GPU_LOGITS_PER_CHUNK if device.type == "cuda" else LOGITS_PER_CHUNK


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """LoRA weights are trained; the model under them is frozen."""

    fresh_base: Callable[[], PreTrainedModel]  # loads the model under them again, in float32
    merge_final: bool
    note: str  # for the user: rank, layers, dtype of the frozen weights


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What is trained. The model is always in eval mode: dropout would add noise to the ratio."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    value_head: nn.Linear | None = None
    adapters: Adapters | None = None  # None: the whole model is trained

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The trained parameters, the model's first, tied ones once; the critic's are `value_head.*`."""
        yield from ((name, p) for name, p in self.model.named_parameters() if p.requires_grad)
        if self.value_head is not None:
            yield from self.value_head.named_parameters(prefix="value_head")

    def parameters(self) -> Iterator[nn.Parameter]:
        """As `named_parameters`, without the names."""
        yield from (parameter for _, parameter in self.named_parameters())

    @property
    def is_sharded(self) -> bool:
        """Whether this rank holds only a part of the model's weights."""
        return any(map(is_sharded, self.model.parameters()))

    def trained_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Name and whole value of the model's trained tensors, tied ones once; collective if the model is sharded."""
        yield from ((name, whole(p)) for name, p in self.model.named_parameters() if p.requires_grad)

    def full_state(self) -> Iterator[tuple[str, Tensor]]:
        """Name and whole value of all tensors of a model folder, tied ones once; collective if the model is sharded."""
        kept = self.model.state_dict().keys()  # without the buffers that are computed from the configuration
        for name, weight in chain(self.model.named_parameters(), self.model.named_buffers()):
            if name in kept:
                yield name, whole(weight)

    @property
    def num_parameters(self) -> int:
        """Trained numbers, tied ones once."""
        return sum(p.numel() for p in self.parameters())

    @property
    def num_weights(self) -> int:
        """All numbers of the model, trained or frozen, tied ones once."""
        return sum(num_weights(p) for p in self.model.parameters())

    @property
    def trainable(self) -> str:
        """One line for the user: `trainable: 1,081,344 of 495,114,112 parameters (0.22 %): LoRA r=16 ...`."""
        if self.adapters is None:
            return f"trainable: all {self.num_weights:,} parameters"
        trained, total = sum(p.numel() for p in adapter_weights(self.model).values()), self.num_weights
        return f"trainable: {trained:,} of {total:,} parameters ({trained / total:.2%}): {self.adapters.note}"

    def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """`function(*arguments)`, which calls `hidden` and `logits`, with the weights of a sharded model gathered.

        Collective if the model is sharded. Tensors in a returned tuple have a gradient.
        """
        gathered = getattr(self.model, GATHERED, None)
        return function(*arguments) if gathered is None else gathered(function, *arguments)

    def hidden(self, ids: Tensor, positions: Tensor | None = None, allowed: Tensor | None = None) -> Tensor:
        """Last hidden states [R, L, D] of ids [R, L]; for a sharded model inside `run` only.

        `positions` [R, L] and `allowed` [R, L, L] (query q sees key k if allowed[r, q, k]) lay out packed lines;
        without them every row is one right-padded sequence.
        """
        layout: dict[str, Any] = {}  # plain rows pass nothing: not every architecture takes these arguments
        if allowed is not None and positions is not None:
            device = ids.device.type
            dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else self.dtype
            mask = attention_mask(self.model.config, allowed[:, None], positions, positions, dtype)
            layout = {"position_ids": positions, "attention_mask": mask}
        # use_cache=False: with a cache transformers takes packed lines for one growing sequence
        return self.model.base_model(input_ids=ids, use_cache=False, **layout).last_hidden_state

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the weights."""
        return next(self.model.parameters()).dtype

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] in fp32 of hidden states [..., D]."""
        head = self.model.get_output_embeddings()
        assert head is not None, "a causal LM has an output head"
        config = self.model.config.get_text_config()
        scale, divisor = getattr(config, "logit_scale", 1.0), getattr(config, "logits_scaling", 1.0)  # Cohere, Granite
        logits = head(hidden).float() * scale / divisor
        if cap := getattr(config, "final_logit_softcapping", None):  # Gemma
            logits = torch.tanh(logits / cap) * cap
        return logits

    def token_scores(
        self, hidden: Tensor, targets: Tensor, temperature: float, *, entropy_grad: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Logprob and entropy [N] fp32 of targets [N] under softmax(logits / temperature) after hidden [N, D]."""
        chunk = max(1, logits_per_chunk(hidden.device) // int(self.model.config.vocab_size))
        if len(targets) <= chunk:
            return self._token_scores(hidden, targets, temperature, entropy_grad)
        with _without_cast_cache():
            parts: list[tuple[Tensor, Tensor]] = [
                checkpoint(self._token_scores, h, t, temperature, entropy_grad, use_reentrant=False)  # pyright: ignore[reportAssignmentType]
                for h, t in zip(hidden.split(chunk), targets.split(chunk), strict=True)
            ]
        return torch.cat([logprobs for logprobs, _ in parts]), torch.cat([entropy for _, entropy in parts])

    def _token_scores(
        self, hidden: Tensor, targets: Tensor, temperature: float, entropy_grad: bool
    ) -> tuple[Tensor, Tensor]:
        log_probs = torch.log_softmax(self.logits(hidden) / temperature, dim=-1)  # [N, V]
        chosen = log_probs.gather(1, targets[:, None])[:, 0]
        source = log_probs if entropy_grad else log_probs.detach()
        return chosen, -(source.exp() * source).sum(-1)

    # --------------------------------------------------------------------------------------------- on and off the disk

    def save(self, folder: Path, *, writes: bool = True) -> None:
        """Write model, or adapter, and tokenizer in Hub format, without the value head, for transformers and peft.

        Collective if the model is sharded; only one rank `writes`.
        """
        state: dict[str, Tensor] | None = None
        if self.adapters is None and self.is_sharded:  # adapters are never sharded
            state = {name: weight.cpu() for name, weight in self.full_state() if writes}
        if writes:
            self.model.save_pretrained(folder, state_dict=state)
            self.tokenizer.save_pretrained(folder)

    def save_final(self, folder: Path, *, writes: bool = True) -> None:
        """Like `save`, with adapters merged if the settings say so."""
        if self.adapters is None or not self.adapters.merge_final:
            self.save(folder, writes=writes)
        elif writes:
            self.merged().save(folder)

    def merged(self) -> Policy:
        """The same policy with its adapters merged, in float32; ValueError if it has none.

        They are added to a fresh copy of the model, never in place: unmerging in bf16 does not restore the weights, and
        the base of the policy would drift (pitfall 32).
        """
        if self.adapters is None:
            raise ValueError("the policy has no adapters: there is nothing to merge")
        merged = self.adapters.fresh_base()
        copy_adapters(self.model, merged)
        merge(merged)
        return replace(self, model=merged, adapters=None)

    def load_weights(self, folder: Path) -> None:
        """Copy weights written by `save` into the policy's own tensors, which engine and optimizer share."""
        if self.adapters is not None:
            load_adapters(self.model, folder)
            return
        saved = type(self.model).from_pretrained(folder, dtype=self.dtype).state_dict()
        if not self.is_sharded:
            self.model.load_state_dict(saved)
            return
        for name, tensor in chain(self.model.named_parameters(), self.model.named_buffers()):
            if name in saved:
                copy_into(tensor, saved[name])

    # ------------------------------------------------------------------------------------------------------- reference

    def freeze(self) -> Callable[[], AbstractContextManager[Policy]]:
        """The policy as it is now, for later: `with frozen() as reference:`; use it inside the block only.

        With adapters the model is not copied: the reference is the same model with the adapters off, or with those that
        training started from. Freeze a model before it is sharded, and shard its copy separately.
        """
        if self.adapters is None:
            frozen = Policy(model=copy.deepcopy(self.model).requires_grad_(False), tokenizer=self.tokenizer)
            return lambda: nullcontext(frozen)
        if are_untrained(self.model):
            return lambda: self._with(without_adapters(self.model))
        start = {name: weight.detach().clone() for name, weight in adapter_weights(self.model).items()}
        return lambda: self._with(other_adapters(self.model, start))

    @contextmanager
    def _with(self, changed: AbstractContextManager[None]) -> Iterator[Policy]:
        with torch.no_grad(), changed:
            yield replace(self, value_head=None)


@contextmanager
def _without_cast_cache() -> Iterator[None]:
    """Autocast without its cached bfloat16 copy of each weight: its gradients would be summed over the chunks in
    bfloat16, where small terms are lost after a thousand. With a copy per chunk they are summed in float32.
    """
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


def check_trainable(policy: Policy) -> None:
    """RuntimeError unless exactly the adapters, or everything, is trained, in float32."""
    names = {name for name, parameter in policy.model.named_parameters() if parameter.requires_grad}
    everything = {name for name, _ in policy.model.named_parameters()}
    expected = everything if policy.adapters is None else set(adapter_weights(policy.model))
    if names != expected or not expected:
        raise RuntimeError(
            f"{len(names)} tensors are trainable instead of {len(expected)}, for example "
            f"{min(names ^ expected, default='none')}"
        )
    other = {p.dtype for name, p in policy.model.named_parameters() if name in names} - {torch.float32}
    if other:
        raise RuntimeError(f"trained weights are {', '.join(map(str, other))} instead of float32")
