"""The policy's weights as files that vLLM's workers read."""

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
from rlvr.models.policy import Policy
from rlvr.models.sharding import whole
from rlvr.tracking.files import writing

MAX_FILE_BYTES = 2 << 30
"""Of one file, so that no more than this is held in memory beside the weights themselves."""
KEEP = 2
"""Versions in the folder: a server that comes back may be reading the last one while the next is written."""
KEEP_ADAPTERS = 16
"""Of those, which are small: a server reads the adapter of a request again when it has too many others."""
PREFIX = "v"


def full_weights(policy: Policy) -> Iterator[tuple[str, Tensor]]:
    """Name and value of every tensor of the policy's model, as a checkpoint without adapters has them, tied ones once.

    Adapters are added in float32 to a copy of the weight under them; the policy itself stays as it is (pitfall 32).
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
            value = value.float() + merged_part(layers[layer])
        yield name.replace(".base_layer.", "."), value


def merged_part(layer: Any) -> Tensor:
    """What the adapter adds to the weight under it."""
    return layer.get_delta_weight("default").detach().float()


def as_served(value: Tensor, dtype: torch.dtype, *, copy: bool = False) -> Tensor:
    """A tensor in host memory, in the servers' precision."""
    return value.to(device="cpu", dtype=dtype if value.is_floating_point() else None, copy=copy).contiguous()


class WeightsFolder:
    """`root/v000005/*.safetensors`: the newest versions of the weights; older ones are removed.

    Every rank names folders, one of them writes. Raises UserError where the disk does not take it.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()  # servers run elsewhere in the tree of folders

    def of(self, version: int) -> Path:
        """Where the weights of a version lie."""
        return self.root / f"{PREFIX}{version:06d}"

    def write(self, version: int, weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype) -> Path:
        """Write the tensors, as the servers keep them, and forget old versions."""
        with _new_folder(self.of(version)) as folder:
            held: dict[str, Tensor] = {}
            num_bytes = num_files = 0
            for name, value in weights:
                tensor = as_served(value, dtype)
                if held and num_bytes + tensor.nbytes > MAX_FILE_BYTES:
                    save_file(held, folder / f"{num_files:05d}.safetensors")
                    held, num_bytes, num_files = {}, 0, num_files + 1
                held[name] = tensor
                num_bytes += tensor.nbytes
            save_file(held, folder / f"{num_files:05d}.safetensors")
        return self._keep(version, KEEP)

    def write_adapter(self, version: int, policy: Policy) -> Path:
        """Write the adapter as peft does."""
        with _new_folder(self.of(version)) as folder:
            write_adapters(policy.model, folder)
        return self._keep(version, KEEP_ADAPTERS)

    def clear(self) -> None:
        """Remove all versions, and the folder itself if nothing else is in it."""
        for folder in self._versions():
            shutil.rmtree(folder, ignore_errors=True)
        if self.root.is_dir() and not any(self.root.iterdir()):
            self.root.rmdir()

    def _keep(self, version: int, count: int) -> Path:
        """Versions after this one are of a run that was resumed before them."""
        current = self.of(version)
        before = [folder for folder in self._versions() if folder.name < current.name]
        after = [folder for folder in self._versions() if folder.name > current.name]
        for folder in [*before[: max(0, len(before) - count + 1)], *after]:
            shutil.rmtree(folder, ignore_errors=True)
        return current

    def _versions(self) -> list[Path]:
        return sorted(self.root.glob(f"{PREFIX}[0-9]*")) if self.root.is_dir() else []


@contextmanager
def _new_folder(final: Path) -> Iterator[Path]:
    """A folder that gets its name when it is whole."""
    partial = final.with_name(f"{final.name}.partial")
    with writing(final):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
