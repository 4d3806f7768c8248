"""Cache of warm starts in the user's cache folder: the same content gives the same weights, bit for bit.

    ~/.cache/rlvr/warm_starts/KEY-CHECKSUM.safetensors      (XDG_CACHE_HOME is obeyed)

KEY hashes everything that determines the weights: initial weights, tokenizer, every example, settings, our code,
library versions and the processor. CHECKSUM is the file's. Only trained weights are kept.
"""

import hashlib
import json
import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from safetensors.torch import save_file

import rlvr
from rlvr.core.world import World
from rlvr.models.devices import device_name
from rlvr.models.policy import HubPolicy
from rlvr.places import cache_folder
from rlvr.records.files import sync_file, sync_folder, writing
from rlvr.scale.tensors import SavedTensors, copied, ready_tensors

MAX_BYTES = 2 * 1024**3  # total size; the least recently used files are removed


def kept_folder() -> Path:
    return cache_folder() / "warm_starts"


def content_key(policy: HubPolicy, about: Mapping[str, Any], examples: Iterable[bytes]) -> str | None:
    """A hash of everything that determines the weights after training on the examples; call it before.

    `about` are the settings, as JSON. None for a policy whose trained weights are too many to cache.
    """
    if sum(parameter.nbytes for parameter in policy.parameters()) > MAX_BYTES:
        return None
    digest = hashlib.blake2b(digest_size=20)
    for part in _content(policy, about, examples):
        digest.update(len(part).to_bytes(8, "big"))  # so that different lists of parts give different bytes
        digest.update(part)
    return digest.hexdigest()


def _content(policy: HubPolicy, settings: Mapping[str, Any], examples: Iterable[bytes]) -> Iterator[bytes]:
    tokenizer: Any = policy.tokenizer
    about = {
        "settings": settings,
        "model": policy.model.config.to_dict(),
        "tokenizer": tokenizer.backend_tokenizer.to_str(),
        "end": tokenizer.eos_token_id,
        "versions": [torch.__version__, transformers.__version__, tokenizers.__version__, platform.python_version()],
        "machine": [torch.get_num_threads(), torch.backends.cpu.get_cpu_capability(), _cpu()],
        "products": [device_name(policy.model.device), torch.get_float32_matmul_precision()],
    }
    yield json.dumps(about, sort_keys=True, default=str).encode()
    folder = Path(rlvr.__file__).parent
    for file in sorted(folder.rglob("*.py")):
        yield file.relative_to(folder).as_posix().encode()
        yield file.read_bytes()
    for name, parameter in policy.model.named_parameters():
        yield f"{name} {parameter.dtype} {list(parameter.shape)}".encode()
        yield parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
    yield from examples


def _cpu() -> str:
    """The processor's name: another one may round differently."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        return next((line for line in lines if line.startswith("model name")), platform.machine())
    return f"{platform.machine()} {platform.processor()}"


def restore_on_all(policy: HubPolicy, key: str | None, world: World) -> bool:
    """`restore` on rank 0, if it has a key, and then on every rank; collective."""
    found = world.first(key is not None and restore(policy, key))
    for parameter in policy.parameters() if found else ():
        world.broadcast(parameter.detach())
    return found


def restore(policy: HubPolicy, key: str) -> bool:
    """Load the weights cached under the key; False without a valid file of them."""
    for file in kept_folder().glob(f"{key}-*.safetensors"):
        try:
            if _file_name(key, file) != file.name:
                continue  # damaged: recompute and replace
            saved = SavedTensors([file])
            with torch.no_grad():
                for name, parameter in policy.named_parameters():
                    parameter.copy_(saved[name])
            os.utime(file)
        except OSError:  # removed by another process, or unreadable
            continue
        return True
    return False


def keep(policy: HubPolicy, key: str | None) -> None:
    """Cache the policy's weights under the key; a rank without one only takes part, as this is collective if the model
    is sharded. Raises UserError if the folder is not writable."""
    weights, folder = dict(policy.trained_weights()), kept_folder()
    if key is None:
        return
    ready = ready_tensors(weights)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for damaged in folder.glob(f"{key}-*.safetensors"):
            damaged.unlink(missing_ok=True)
        temporary = folder / f".{key}.tmp-{os.getpid()}"
        try:
            save_file({name: ready[name] if name in ready else copied(p) for name, p in weights.items()}, temporary)
            sync_file(temporary)
            temporary.replace(folder / _file_name(key, temporary))
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(folder)
        _remove_oldest(folder)


def _file_name(key: str, file: Path) -> str:
    with file.open("rb") as content:
        return f"{key}-{hashlib.file_digest(content, partial(hashlib.blake2b, digest_size=10)).hexdigest()}.safetensors"


def _remove_oldest(folder: Path) -> None:
    kept = sorted(((file.stat(), file) for file in folder.glob("*.safetensors")), key=lambda one: -one[0].st_mtime)
    total = 0
    for place, (status, file) in enumerate(kept):
        total += status.st_size
        if place and total > MAX_BYTES:  # always keep the newest one
            file.unlink(missing_ok=True)
