"""FSDP2: every rank holds some rows of every weight.

A layer's weights are gathered for its computation; its gradients are reduced at once, each rank keeping its rows.
Adapters and the critic are small: all ranks hold them in full, with gradients summed as in `DataParallel`.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from rlvr.core.parallel import DataParallel, Float16
from rlvr.core.policy import GATHERED, Policy
from rlvr.core.settings import TrainerSettings
from rlvr.core.world import World
from rlvr.errors import ConfigError
from rlvr.scale.sharding import is_sharded, own_rows, row_range


def make_parallel(settings: TrainerSettings, world: World, *, bf16: bool) -> DataParallel:
    if settings.strategy == "fsdp2":
        return FullySharded(world, bf16=bf16, cpu_offload=settings.cpu_offload)
    return Float16(world) if settings.precision == "fp16" else DataParallel(world, bf16=bf16)


class FullySharded(DataParallel):
    """Weights, gradients and optimizer moments sharded over the ranks; with `cpu_offload` in CPU memory."""

    in_lockstep = True

    def __init__(self, world: World, *, bf16: bool = False, cpu_offload: bool = False) -> None:
        super().__init__(world, bf16=bf16)
        self._cpu_offload = cpu_offload

    def shard(self, policy: Policy) -> None:
        """As `DataParallel.shard`; an already sharded model, such as a reference without adapters, is unchanged.

        Each decoder layer, and the rest, are gathered separately. ConfigError for cpu_offload without a GPU.
        """
        model, device = policy.model, policy.model.device.type
        if any(map(is_sharded, model.parameters())):
            return
        if self._cpu_offload and device == "cpu":
            raise ConfigError("trainer.cpu_offload=true: the model is in the CPU's memory already; set it to false.")
        adapted = any(not p.requires_grad for p in model.parameters())
        precision = MixedPrecisionPolicy()
        if self.bf16:
            precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        mesh, root = init_device_mesh(device, (self.world.size,)), _Root(model)
        for module in (*decoder_layers(model), root):
            fully_shard(
                module,
                mesh=mesh,
                mp_policy=precision,
                offload_policy=CPUOffloadPolicy() if self._cpu_offload else OffloadPolicy(),
                ignored_params=set(policy.parameters()) if adapted else set(),
            )
            assert isinstance(module, FSDPModule)
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
        setattr(model, GATHERED, partial(_gathered, root))

    def set_precision(self, bf16: bool) -> None:
        """As `DataParallel.set_precision`. ConfigError for another precision: the weights are already sharded in this
        one."""
        if bf16 != self.bf16:
            begun = "bf16" if bf16 else "fp32"
            raise ConfigError(f"trainer.precision: the run was begun in {begun}; set trainer.precision={begun}.")

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        return nullcontext()  # weights are cast when gathered

    def clip(self, policy: Policy, max_norm: float) -> float:
        """As `DataParallel.clip`; torch's own cannot mix sharded and plain gradients."""
        if not any(map(is_sharded, policy.parameters())):
            return super().clip(policy, max_norm)
        gradients = [p.grad for p in policy.parameters() if p.grad is not None]
        cut = _square([own_rows(g) for g in gradients if is_sharded(g)])
        same = _square([g for g in gradients if not is_sharded(g)])
        norm = math.sqrt(self.world.add(cut).item() + same.item())
        for gradient in gradients:
            own_rows(gradient).mul_(min(1.0, max_norm / (norm + 1e-6)))
        return norm

    def replicated(self, policy: Policy) -> list[nn.Parameter]:
        return [p for p in policy.parameters() if not is_sharded(p)]

    def first_weights(self, parameter: nn.Parameter, count: int) -> Tensor:
        """As `DataParallel.first_weights`; for a sharded tensor each rank returns those in its rows."""
        if not is_sharded(parameter):
            return super().first_weights(parameter, count)
        first_row, end = row_range(parameter)
        own = own_rows(parameter).flatten()
        before = first_row * (own.numel() // (end - first_row)) if end > first_row else 0
        return own[: max(0, count - before)].float().cpu()


class _Root(nn.Module):
    """Wraps the model and all computations on its hidden states: FSDP gathers weights in a module's `forward`, and we
    call trunk and head separately."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """`function(*arguments)`; FSDP hooks tensors that it finds in tuples, lists and dicts."""
        return function(*arguments)


def _gathered(root: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    result = root(function, *arguments)
    if not torch.is_grad_enabled():
        root.reshard()  # otherwise only after backward; between uses each rank keeps its rows only
    return result


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The blocks that the architecture declares as not to be split; empty if it declares none."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    return [module for module in model.modules() if type(module).__name__ in names]


def _square(tensors: Sequence[Tensor]) -> Tensor:
    """Sum of the squares of all numbers: [] float64 on the CPU."""
    return torch.nn.utils.get_total_norm(tensors).cpu().double().square()
