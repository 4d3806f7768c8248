"""Nested state (optimizer, random generators) as JSON plus named tensors, and back, bit for bit.

flatten({"lr": 0.1, "betas": (0.9, 0.99), 0: tensor}, "optimizer", tensors)
-> structure {"dict": [["lr", 0.1], ["betas", {"tuple": [0.9, 0.99]}], [0, {"tensor": "optimizer/0"}]]}
   tensors   {"optimizer/0": tensor}
"""

import math
import random
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


def flatten(tree: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """A tree of dicts (int or str keys), lists, tuples, tensors and scalars as JSON; its tensors go into `tensors`."""
    if isinstance(tree, Tensor):
        tensors[name] = tree.detach()
        return {"tensor": name}
    if isinstance(tree, Mapping):
        return {"dict": [[key, flatten(value, f"{name}/{key}", tensors)] for key, value in tree.items()]}
    if isinstance(tree, (list, tuple)):
        items = [flatten(value, f"{name}/{index}", tensors) for index, value in enumerate(tree)]
        return {"tuple": items} if isinstance(tree, tuple) else items
    if isinstance(tree, float) and not math.isfinite(tree):
        return {"float": repr(tree)}
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree
    raise TypeError(f"{name} holds a {type(tree).__name__}, which JSON and safetensors cannot hold")


def unflatten(structure: Any, read: Callable[[str], Tensor]) -> Any:
    if isinstance(structure, list):
        return [unflatten(item, read) for item in structure]
    if not isinstance(structure, dict):
        return structure
    [(kind, content)] = structure.items()
    match kind:
        case "tensor":
            return read(content).clone()
        case "dict":
            return {key: unflatten(value, read) for key, value in content}
        case "tuple":
            return tuple(unflatten(item, read) for item in content)
    return float(content)


def random_state() -> dict[str, Any]:
    """The state of every global random generator that rlvr could touch; flatten it to save it."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"python": random.getstate(), "torch": torch.get_rng_state(), "cuda": cuda}


def set_random_state(state: Mapping[str, Any]) -> None:
    """Put back what `random_state` returned. CUDA states are put back only where as many devices exist."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if state["cuda"] and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
