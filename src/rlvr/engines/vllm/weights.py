"""The policy's weights as files for vLLM's workers."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from rlvr.models.adapters import adapter_weights, write_adapters
from rlvr.models.policy import HubPolicy
from rlvr.scale.sharding import whole
from rlvr.tracking.files import writing

MAX_FILE_BYTES = 2 << 30
"""Of one file: bounds the memory used beside the weights."""
KEEP = 2
"""Versions kept: a server that comes back may read the last one while the next is written."""
KEEP_ADAPTERS = 16
"""Adapters are small; a server with many of them reads the one of a request again."""
PREFIX = "v"


def full_weights(policy: HubPolicy) -> Iterator[tuple[str, Tensor]]:
    """Name and value of every tensor of the model, as in a checkpoint without adapters, tied ones once.

    Adapters are merged in float32 into a copy; the policy itself does not change (pitfall 32).
    """
    if policy.adapters is None:
        yield from policy.trained_weights()
        return
    from peft.tuners.lora import LoraLayer

    own = adapter_weights(policy.model)
    layers = {name: module for name, module in policy.model.named_modules() if isinstance(module, LoraLayer)}
    for name, parameter in policy.model.named_parameters():
        if name in own:
            continue
        value, layer = whole(parameter), name.removesuffix(".base_layer.weight")
        if layer != name:
            delta: Any = layers[layer]
            value = value.float() + delta.get_delta_weight("default").detach().float()
        yield name.replace(".base_layer.", "."), value


def as_served(value: Tensor, dtype: torch.dtype, *, copy: bool = False) -> Tensor:
    """A tensor in host memory, in the servers' precision."""
    return value.to(device="cpu", dtype=dtype if value.is_floating_point() else None, copy=copy).contiguous()


def in_parts(tensors: Iterable[tuple[str, Tensor]], max_bytes: int) -> Iterator[dict[str, Tensor]]:
    """Tensors in dictionaries of at most this many bytes; a larger one goes alone."""
    held: dict[str, Tensor] = {}
    for name, tensor in tensors:
        if held and sum(one.nbytes for one in held.values()) + tensor.nbytes > max_bytes:
            yield held
            held = {}
        held[name] = tensor
    yield held


class WeightsFolder:
    """`root/v000005/*.safetensors`: the newest versions of the weights; older ones are removed.

    Every rank names folders, one writes. UserError where the disk fails.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()  # servers have another working directory

    def of(self, version: int) -> Path:
        """Folder of a version."""
        return self.root / f"{PREFIX}{version:06d}"

    def write(self, version: int, weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype) -> None:
        """Write the tensors in the servers' precision and remove old versions."""
        with _new_folder(self.of(version)) as folder:
            served = ((name, as_served(value, dtype)) for name, value in weights)
            for number, part in enumerate(in_parts(served, MAX_FILE_BYTES)):
                save_file(part, folder / f"{number:05d}.safetensors")
        self._keep(version, KEEP)

    def write_adapter(self, version: int, policy: HubPolicy) -> None:
        """Write the adapter as peft does."""
        with _new_folder(self.of(version)) as folder:
            write_adapters(policy.model, folder)
        self._keep(version, KEEP_ADAPTERS)

    def clear(self) -> None:
        """Remove all versions, and the folder itself if nothing else is in it."""
        for folder in self._versions():
            shutil.rmtree(folder, ignore_errors=True)
        if self.root.is_dir() and not any(self.root.iterdir()):
            self.root.rmdir()

    def _keep(self, version: int, count: int) -> None:
        found = self._versions()
        kept = [folder for folder in found if folder <= self.of(version)][-count:]  # later ones: of before a resume
        for folder in found:
            if folder not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def _versions(self) -> list[Path]:
        return sorted(self.root.glob(f"{PREFIX}[0-9]*")) if self.root.is_dir() else []


@contextmanager
def _new_folder(final: Path) -> Iterator[Path]:
    """A folder that gets its name when it is complete."""
    partial = final.with_name(f"{final.name}.partial")
    with writing(final):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
