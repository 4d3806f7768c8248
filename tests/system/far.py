"""A second device on a machine that has only a CPU.

A tensor on `far` holds a CPU tensor and computes with it, but to torch it lies elsewhere: what brings tensors of two
devices together fails, as it would on a GPU, and whatever is read from it by the host is counted. torch allows such a
device to be written in Python (`_setup_privateuseone_for_python_backend`); it stays for the rest of the process, so
the tests use it in processes of their own.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

MAY_MIX = {"aten::copy_", "aten::_to_copy"}
"""Operations that take tensors of two devices."""
INDEXES = {"aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_"}
"""Those whose indices may lie on the CPU; on a GPU the host then waits until they are there."""
READS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::_unique2", "aten::unique_dim", "aten::masked_select"}
"""Those for whose result the host waits."""


class Far(Tensor):
    """A tensor on the device; `inner` is where its numbers are."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Far:
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), dtype=inner.dtype, device="far:0"
        )
        made.inner = inner
        return made

    def tolist(self) -> Any:
        FarMode.current.reads["tolist"] += 1
        return self.inner.tolist()

    def __repr__(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return f"Far({self.inner!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return FarMode.current.run(func, args, kwargs or {})


class FarMode(TorchDispatchMode):
    """While it is on, `device="far"` works, and `reads` counts by operation what the host has waited for."""

    current: FarMode

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()
        self.recording = False  # as into a CUDA graph: neither may be read what is there, nor brought what is here
        FarMode.current = self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Compute on the CPU what was asked for on the device."""
        name = func._schema.name
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        far = any(isinstance(leaf, Far) for leaf in leaves)
        if far and name not in MAY_MIX:
            _refuse_mixed(name, args, leaves)
        if self.recording and any(not isinstance(leaf, Far) for leaf in leaves):
            raise RuntimeError(f"{name}: a copy from the CPU into a recorded step")
        wanted, before = kwargs.get("device"), self.reads.total()
        to_far = far if wanted is None else torch.device(wanted).type == "far"
        if name in READS or (name == "aten::_to_copy" and far and not to_far) or _is_mask(name, args):
            self.reads[name] += far
        if name == "aten::copy_" and not isinstance(args[0], Far):
            self.reads[name] += far
        if self.recording and self.reads.total() > before:
            raise RuntimeError(f"{name}: a recorded step cannot wait")
        if wanted is not None and to_far:
            kwargs = {
                **kwargs,
                "device": torch.device("cpu"),
                **({"pin_memory": None} if "pin_memory" in kwargs else {}),
            }
        result = func(*tree_map(inner_of, args), **tree_map(inner_of, kwargs))
        if func._schema.is_mutable and not any(a.alias_info is None for a in func._schema.returns):
            return _same(func, args, kwargs, result)
        return tree_map(lambda leaf: Far(leaf) if to_far and isinstance(leaf, Tensor) else leaf, result)


class FarLists(TorchFunctionMode):
    """Lets `torch.tensor` make tensors there: it makes them behind the back of a `TorchDispatchMode`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") is not None:
            device = kwargs["device"]
            return func(*args, **{**kwargs, "device": "cpu"}).to(device)
        return func(*args, **kwargs)


def install() -> None:
    """Make the name `far` known to torch, for good."""
    module = _DummyBackendModule()
    module.get_amp_supported_dtype = lambda: [torch.bfloat16]  # pyright: ignore[reportAttributeAccessIssue]
    _setup_privateuseone_for_python_backend("far", module)
    torch.inference_mode = torch.no_grad  # tensors made in Python cannot be written to in inference mode


def inner_of(leaf: Any) -> Any:
    """The CPU tensor in a tensor of the device; anything else as it is."""
    return leaf.inner if isinstance(leaf, Far) else leaf


def _same(func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> Any:
    """What an operation in place returns: its own argument."""
    if not func._schema.returns:
        return result
    for argument, value in zip(func._schema.arguments, args, strict=False):
        if argument.alias_info is not None and argument.alias_info.is_write:
            return value
    return kwargs["out"]


def _is_mask(name: str, args: Any) -> bool:
    if name not in INDEXES:
        return False
    return any(index is not None and index.dtype == torch.bool for index in args[1])


def _refuse_mixed(name: str, args: Any, leaves: list[Tensor]) -> None:
    if name in INDEXES:
        leaves = [leaf for leaf in leaves if not any(leaf is index for index in args[1])]
    near = [leaf for leaf in leaves if not isinstance(leaf, Far) and leaf.dim() > 0]
    if near:
        raise RuntimeError(f"{name}: tensors of two devices; on the CPU one of shape {tuple(near[0].shape)}")
