"""FSDP2: every rank holds some rows of every weight.

A layer is gathered when it computes; its gradients are summed, each rank keeping its rows, as soon as they are known.
Adapters and the critic are small: all ranks hold them whole, and their gradients go the way of `DataParallel`.
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

from rlvr.core.parallel import DataParallel
from rlvr.core.policy import GATHERED, Policy
from rlvr.core.settings import TrainerSettings
from rlvr.core.world import World
from rlvr.errors import ConfigError
from rlvr.scale.sharding import is_sharded, own_rows, row_range


def make_parallel(settings: TrainerSettings, world: World, *, bf16: bool) -> DataParallel:
    if settings.strategy == "fsdp2":
        return FullySharded(world, bf16=bf16, cpu_offload=settings.cpu_offload)
    return DataParallel(world, bf16=bf16)


class FullySharded(DataParallel):
    """Weights, gradients and moments cut over the ranks; with `cpu_offload` they wait in the CPU's memory."""

    in_lockstep = True

    def __init__(self, world: World, *, bf16: bool = False, cpu_offload: bool = False) -> None:
        super().__init__(world, bf16=bf16)
        self._cpu_offload = cpu_offload

    def shard(self, policy: Policy) -> None:
        """As `DataParallel.shard`; a model that is sharded already, as that of a reference without adapters, stays.

        Each decoder layer and the rest are gathered by themselves. ConfigError if there is nowhere to offload to.
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

    def go_on_in(self, bf16: bool) -> None:
        """As `DataParallel.go_on_in`. ConfigError if it is another one: the weights were sharded with this one."""
        if bf16 != self.bf16:
            begun = "bf16" if bf16 else "fp32"
            raise ConfigError(f"trainer.precision: the run was begun in {begun}; set trainer.precision={begun}.")

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        return nullcontext()  # the weights are cast where they are gathered

    def clip(self, policy: Policy, max_norm: float) -> float:
        """As `DataParallel.clip`; torch's own does not know that some gradients are cut and others are not."""
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
        """As `DataParallel.first_weights`; of a sharded tensor each rank has those in its rows."""
        if not is_sharded(parameter):
            return super().first_weights(parameter, count)
        first_row, end = row_range(parameter)
        own = own_rows(parameter).flatten()
        before = first_row * (own.numel() // (end - first_row)) if end > first_row else 0
        return own[: max(0, count - before)].float().cpu()


class _Root(nn.Module):
    """A model with all that is computed from its hidden states: FSDP gathers weights where a module's `forward` runs,
    and ours calls the trunk and the head one by one."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """`function(*arguments)`; FSDP hangs its hooks on tensors that it finds in tuples, lists and dicts."""
        return function(*arguments)


def _gathered(root: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    result = root(function, *arguments)
    if not torch.is_grad_enabled():
        root.reshard()  # else after the backward pass: between two uses every parameter is its rows of this rank
    return result


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The blocks that the architecture says are not to be taken apart; none where it says nothing."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    return [module for module in model.modules() if type(module).__name__ in names]


def _square(tensors: Sequence[Tensor]) -> Tensor:
    """Sum of the squares of all numbers: [] float64 on the CPU."""
    return torch.nn.utils.get_total_norm(tensors).double().square().cpu()
