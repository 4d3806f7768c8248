"""A policy with its tokenizer, saved in Hub format, optionally with LoRA adapters."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from logging import ERROR, getLogger
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from rlvr.core.policy import Frozen, Policy
from rlvr.models.adapters import (
    adapter_weights,
    copy_adapters,
    load_adapters,
    merge,
    other_adapters,
    without_adapters,
    write_adapters,
)
from rlvr.models.quantization import num_weights
from rlvr.scale.sharding import copy_into, is_sharded, whole
from rlvr.scale.tensors import SavedTensors

logging.disable_progress_bar()  # rlvr shows its own progress
getLogger("bitsandbytes").setLevel(ERROR)  # imported with every adapter; warns of a missing optional package


WHERE_FROM = ("is_local", "local_files_only")
"""What transformers notes in a tokenizer from a folder: saved, a resumed run would differ from an uninterrupted one."""


@dataclass(frozen=True, kw_only=True)
class Adapters:
    fresh_base: Callable[[], PreTrainedModel]  # reloads the base model in float32
    merge_final: bool
    note: str  # for the user: rank, layers, dtype of the frozen weights


@dataclass(frozen=True, kw_only=True)
class HubPolicy(Policy):
    tokenizer: PreTrainedTokenizerBase
    adapters: Adapters | None = None  # None: the whole model is trained
    prompts: tuple[tuple[int, ...], ...] = ()  # some that it is asked: its computations are compared on their text
    load_report: Mapping[str, Collection[Any]] = field(default_factory=dict)
    """`missing_keys`, `unexpected_keys` and so on of the files, as transformers reports them."""

    def trained_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Name and full value of the trained tensors, tied ones once; collective if the model is sharded."""
        yield from ((name, whole(p)) for name, p in self.model.named_parameters() if p.requires_grad)

    def full_state(self) -> Iterator[tuple[str, Tensor]]:
        """Name and full value of all tensors of a model folder, tied ones once; collective if the model is sharded."""
        yield from ((name, whole(weight)) for name, weight in self._tensors())

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        kept = self.model.state_dict().keys()  # without buffers computed from the configuration
        named = chain(self.model.named_parameters(), self.model.named_buffers())
        yield from ((name, weight) for name, weight in named if name in kept)

    @property
    def num_weights(self) -> int:
        return sum(num_weights(p) for p in self.model.parameters())

    @property
    def trainable(self) -> str:
        """One line for the user: `trainable: 1,081,344 of 495,114,112 parameters (0.22 %): LoRA r=16 ...`."""
        if self.adapters is None:
            return f"trainable: all {self.num_weights:,} parameters"
        trained, total = sum(p.numel() for p in adapter_weights(self.model).values()), self.num_weights
        return f"trainable: {trained:,} of {total:,} parameters ({trained / total:.2%}): {self.adapters.note}"

    def save(self, folder: Path, *, writes: bool = True) -> None:
        """Write model or adapter, and tokenizer, in Hub format for transformers and peft, without the value head.

        Collective if the model is sharded; only one rank `writes`.
        """
        state: dict[str, Tensor] | None = None
        if self.adapters is None and any(map(is_sharded, self.model.parameters())):  # adapters never are
            state = {name: weight.cpu() for name, weight in self.full_state() if writes}
        if not writes:
            return
        if self.adapters is None:
            self.model.save_pretrained(folder, state_dict=state)
        else:
            write_adapters(self.model, folder)
            self.model.generation_config.save_pretrained(folder)
        for name in WHERE_FROM:
            self.tokenizer.init_kwargs.pop(name, None)
        self.tokenizer.save_pretrained(folder)

    def save_final(self, folder: Path, *, writes: bool = True) -> None:
        if self.adapters is None or not self.adapters.merge_final:
            self.save(folder, writes=writes)
        elif writes:
            self.merged().save(folder)

    def merged(self) -> Self:
        """The policy with its adapters merged, in float32.

        Merges into a fresh copy of the model, not in place: unmerging in bf16 does not restore the weights, and the
        base would drift (pitfall 32).
        """
        assert self.adapters is not None, "there is nothing to merge"
        merged = self.adapters.fresh_base()
        copy_adapters(self.model, merged)
        merge(merged)
        return replace(self, model=merged, adapters=None)

    def load_weights(self, folder: Path) -> None:
        """Copy weights written by `save` into the policy's own tensors, which engine and optimizer share."""
        if self.adapters is not None:
            load_adapters(self.model, folder)
            return
        own = dict(self._tensors())
        saved: Mapping[str, Tensor] = SavedTensors(sorted(folder.glob("*.safetensors")))
        if not own.keys() <= saved.keys():  # transformers writes some architectures in another form
            saved = type(self.model).from_pretrained(folder, dtype=self.dtype).state_dict()
        for name, tensor in own.items():
            copy_into(tensor, saved[name])

    def freeze(self, *, moves: bool = False) -> Frozen:
        """See `Policy.freeze`. With adapters the model is not copied: the reference is the same model with the adapters
        disabled, or with the initial ones."""
        if self.adapters is None:
            return super().freeze(moves=moves)
        start = {name: weight.detach().clone() for name, weight in adapter_weights(self.model).items()}
        if not moves and not any(weight.any() for name, weight in start.items() if ".lora_B." in name):
            return Frozen(lambda: self._with(without_adapters(self.model)), dict)  # they have no effect
        return Frozen(lambda: self._with(other_adapters(self.model, start)), lambda: start)

    @contextmanager
    def _with(self, changed: AbstractContextManager[None]) -> Iterator[Self]:
        with torch.no_grad(), changed:
            yield replace(self, value_head=None)


def check_trainable(policy: HubPolicy) -> None:
    """RuntimeError unless exactly the adapters, or all weights, are trained, in float32."""
    parameters = dict(policy.model.named_parameters())
    expected = parameters if policy.adapters is None else adapter_weights(policy.model)
    wrong = [
        name
        for name, p in parameters.items()
        if p.requires_grad != (name in expected) or (p.requires_grad and p.dtype != torch.float32)
    ]
    if wrong:
        raise RuntimeError(f"{wrong[0]} and {len(wrong) - 1} more are trained and should not be, or not in float32")
