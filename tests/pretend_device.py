"""A pretend accelerator: to torch its tensors lie elsewhere, but they compute on the CPU.

    install()  # for the rest of this process; the harness's `rlvr(..., prepare=install)` makes one
    torch.zeros(3, device="pretend") + torch.zeros(3)  # RuntimeError: tensors of two devices

What fails on a GPU fails here: an operation over two devices, `numpy()` of what is not on the CPU, a layer whose
weights were left behind. `Pretend.reads` counts what the host waits for. `install(float64=False)` is a device without
float64, as Apple's MPS. torch calls what is used here experimental; it is there from 2.10 on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.utils.backend_registration as backends
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from tests.ranks import forkserver

AVAILABLE = hasattr(backends, "_setup_privateuseone_for_python_backend")
NAME = "pretend"
_libraries: list[torch.library.Library] = []  # kept: what they register ends with them

MAY_MIX = {"aten::copy_", "aten::_to_copy"}
"""Operations that take tensors of two devices."""
INDEXES = {"aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_"}
"""Those whose indices may lie on the CPU; on a GPU the host then waits until they are there."""
READS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::_unique2", "aten::unique_dim", "aten::masked_select"}
"""Those for whose result the host waits."""
IN_BF16 = ("linear", "matmul", "mm", "bmm", "addmm", "scaled_dot_product_attention")
"""Those that autocast computes in its own type."""


class Pretend(Tensor):
    """A tensor on the device; `inner` has its numbers."""

    inner: Tensor
    float64: ClassVar[bool] = True
    recording: ClassVar[bool] = False  # as into a CUDA graph: nothing may be read there, nor brought there
    reads: ClassVar[Counter[str]] = Counter()

    @staticmethod
    def __new__(cls, inner: Tensor) -> Pretend:
        if inner.dtype == torch.float64 and not Pretend.float64:
            raise TypeError(f"{NAME} has no float64")
        layout = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "dtype": inner.dtype}
        made = Tensor._make_wrapper_subclass(cls, inner.size(), device=f"{NAME}:0", **layout)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})

    def tolist(self) -> Any:
        _read("tolist")
        return self.inner.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError(f"can't convert {NAME} tensor to numpy. Use Tensor.cpu() first")

    def untyped_storage(self) -> Any:  # safetensors asks where a tensor begins before it copies it
        return self.inner.untyped_storage()

    def __repr__(self) -> str:
        return f"Pretend({self.inner!r})"


def compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """On the CPU what was asked of the device: of operations that a tensor there takes part in."""
    name = func._schema.name
    leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    _refuse_mixed(name, args, leaves)
    if Pretend.recording and not all(isinstance(leaf, Pretend) for leaf in leaves):
        raise RuntimeError(f"{name}: a copy from the CPU into a recorded step")
    wanted = kwargs.get("device")
    stays = wanted is None or torch.device(wanted).type == NAME
    brought = name == "aten::copy_" and not isinstance(args[0], Pretend)
    if name in READS or (name in MAY_MIX and (brought or not stays)) or _is_mask(name, args):
        _read(name)
    near = {} if wanted is None else {"device": torch.device("cpu")}
    result = func(*tree_map(inner_of, args), **tree_map(inner_of, kwargs) | near)
    if func._schema.is_mutable and all(one.alias_info is not None for one in func._schema.returns):
        return _changed(func, args, kwargs) if func._schema.returns else result
    return tree_map(lambda leaf: Pretend(leaf) if stays and isinstance(leaf, Tensor) else leaf, result)


def inner_of(leaf: Any) -> Any:
    return leaf.inner if isinstance(leaf, Pretend) else leaf


class Module(backends._DummyBackendModule):
    """`torch.pretend`, with what `torch.cuda` has of the same name."""

    free_memory = 1 << 30
    random_state = torch.zeros(1, dtype=torch.uint8)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]

    def is_bf16_supported(self, including_emulation: bool) -> bool:
        return True

    def mem_get_info(self, device: Any) -> tuple[int, int]:
        return self.free_memory, self.free_memory

    def memory_reserved(self, device: Any) -> int:
        return 0

    def empty_cache(self) -> None:
        """There is none."""

    def get_rng_state(self, device: Any) -> Tensor:
        return self.random_state

    def set_rng_state(self, state: Tensor, device: Any) -> None:
        self.random_state = state


def install(*, float64: bool = True) -> None:
    """Make the device torch's accelerator, for good, and let layers fail whose weights are not on it."""
    Pretend.float64 = float64
    backends._setup_privateuseone_for_python_backend(NAME, Module())
    aten, rest = torch.library.Library("aten", "IMPL"), torch.library.Library("_", "IMPL")
    _libraries.extend([aten, rest])
    # all other factories fill what these make
    for name in ("empty.memory_format", "empty_strided"):
        aten.impl(name, _maker(getattr(torch, name.partition(".")[0])), "PrivateUse1")
    aten.impl("_copy_from", lambda source, to, non_blocking=False: _copy(to, source), "PrivateUse1")
    rest.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    for name in IN_BF16:
        aten.impl(name, _autocast(getattr(torch.ops.aten, name)), "AutocastPrivateUse1")
    torch.inference_mode = torch.no_grad  # in which a slice of a tensor made in Python fails
    torch.__future__.set_swap_module_params_on_conversion(True)  # or tied weights would be two after `Module.to`
    nn.modules.module.register_module_forward_pre_hook(_check_weights)


def on_device(function: Callable[..., Any], *args: Any) -> Any:
    """`function(*args)`, in a process of its own with the device."""
    with forkserver().Pool(1, install) as pool:
        return pool.apply(function, args)


def _maker(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *args, device=None, pin_memory=None, **kwargs: Pretend(make(*args, **kwargs))


def _copy(to: Tensor, source: Tensor) -> Tensor:
    inner_of(to).copy_(inner_of(source))
    return to


def _autocast(operation: Callable[..., Tensor]) -> Callable[..., Tensor]:
    here = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

    def cast(leaf: Any) -> Any:
        is_wide = isinstance(leaf, Tensor) and leaf.dtype == torch.float32
        return leaf.to(torch.get_autocast_dtype(NAME)) if is_wide else leaf

    def run(*args: Any, **kwargs: Any) -> Tensor:
        with torch._C._ExcludeDispatchKeyGuard(here):
            return operation(*map(cast, args), **{name: cast(value) for name, value in kwargs.items()})

    return run


def _check_weights(module: nn.Module, inputs: Any) -> None:
    left = [name for name, weight in module.named_parameters(recurse=False) if weight.device.type != NAME]
    if left:
        raise RuntimeError(f"{type(module).__name__} computes on the CPU: {', '.join(left)}")


def _read(name: str) -> None:
    Pretend.reads[name] += 1
    if Pretend.recording:
        raise RuntimeError(f"{name}: a recorded step cannot wait")


def _changed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What an operation in place returns: its own argument."""
    for argument, value in zip(func._schema.arguments, args, strict=False):
        if argument.alias_info is not None and argument.alias_info.is_write:
            return value
    return kwargs["out"]


def _is_mask(name: str, args: Any) -> bool:
    return name in INDEXES and any(index is not None and index.dtype == torch.bool for index in args[1])


def _refuse_mixed(name: str, args: Any, leaves: list[Tensor]) -> None:
    indices = args[1] if name in INDEXES else ()
    near = [leaf for leaf in leaves if not isinstance(leaf, Pretend) and not any(leaf is index for index in indices)]
    if name not in MAY_MIX and any(leaf.dim() > 0 for leaf in near):
        shapes = ", ".join(str(tuple(leaf.shape)) for leaf in near)
        raise RuntimeError(f"{name}: tensors of two devices; on the CPU of shape {shapes}")
