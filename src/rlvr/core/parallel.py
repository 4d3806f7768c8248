"""How training is spread over processes: what each holds of the model, and what they tell each other.

    single   one process
    ddp      every rank holds all weights; gradients are added up once per optimizer step
    fsdp2    every rank holds some rows of every weight; a layer is gathered when it computes, and its gradients are
             added up, each rank keeping its rows, as soon as they are known

Gradients are sums, never means: the weights of the loss carry the denominators of the whole minibatch, wherever its
rows are. Adapters and the critic are small, so all ranks hold them whole under fsdp2, too, and they go the way of ddp.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from transformers import PreTrainedModel

from rlvr.core.policy import Policy
from rlvr.core.settings import TrainerSettings
from rlvr.core.sharding import GATHERED, is_sharded, own_rows, row_range
from rlvr.core.world import World
from rlvr.errors import ConfigError

BUCKET_NUMBERS = 1 << 24
"""Gradients are added up in pieces of this many numbers (64 MiB): few messages, little memory."""


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


class Spread:
    """The trainer's models, spread over the world as `trainer.strategy` says.

    Models are added before an optimizer gets their parameters: under fsdp2 they become others.
    """

    def __init__(self, settings: TrainerSettings, world: World, *, bf16: bool) -> None:
        self._settings, self._world = settings, world
        self.in_lockstep = settings.strategy == "fsdp2"  # every rank has to make as many passes as the others
        self.casts = self.in_lockstep and bf16  # weights are bf16 where they compute: autocast has nothing to do

    def add(self, policy: Policy) -> None:
        """Take a policy's model over; one that is already there, as that of a reference without adapters, stays."""
        if self.in_lockstep and not any(map(is_sharded, policy.model.parameters())):
            adapted = any(not p.requires_grad for p in policy.model.parameters())
            self._shard(policy.model, set(policy.parameters()) if adapted else set())

    def add_gradients(self, policy: Policy) -> None:
        """Sum what the ranks found for the tensors that all of them hold; FSDP has done the others."""
        if self._world.size == 1:
            return
        gradients = [p.grad for p in policy.parameters() if p.grad is not None and not is_sharded(p)]
        for bucket in _buckets(gradients):
            flat = self._world.add(torch.cat([gradient.flatten() for gradient in bucket]))
            for gradient, total in zip(bucket, flat.split([g.numel() for g in bucket]), strict=True):
                gradient.copy_(total.view_as(gradient))

    def clip(self, policy: Policy, max_norm: float) -> float:
        """Scale the gradient to at most `max_norm`; the norm over all ranks that it had."""
        parameters = list(policy.parameters())
        if not any(map(is_sharded, parameters)):
            return torch.nn.utils.clip_grad_norm_(parameters, max_norm).item()
        gradients = [p.grad for p in parameters if p.grad is not None]
        cut = _square([own_rows(g) for g in gradients if is_sharded(g)])
        same = _square([g for g in gradients if not is_sharded(g)])
        norm = math.sqrt(self._world.add(cut).item() + same.item())
        for gradient in gradients:
            own_rows(gradient).mul_(min(1.0, max_norm / (norm + 1e-6)))
        return norm

    def weight_sample(self, policy: Policy, per_tensor: int = 4096) -> Tensor:
        """The first `per_tensor` weights of every trained tensor, as far as they are on this rank; what all ranks have
        is the first one's."""
        return torch.cat([self._first_weights(p, per_tensor) for p in policy.parameters()])

    def changed_share(self, before: Tensor, after: Tensor) -> float:
        """Share of the sampled weights of all ranks that are not what they were."""
        counts = torch.tensor([int((before != after).sum()), before.numel()])
        changed, total = self._world.add(counts).float()
        return (changed / total).item()

    def _first_weights(self, parameter: nn.Parameter, count: int) -> Tensor:
        if not is_sharded(parameter) and not self._world.is_first:
            return torch.empty(0)
        first_row, end = row_range(parameter)
        own = own_rows(parameter).flatten()
        before = first_row * (own.numel() // (end - first_row)) if end > first_row else 0
        return own[: max(0, count - before)].float().cpu()

    def _shard(self, model: PreTrainedModel, whole: set[nn.Parameter]) -> None:
        """Cut the weights of a model into rows, each decoder layer and the rest being gathered by themselves."""
        offload, device, root = self._settings.cpu_offload, model.device.type, _Root(model)
        if offload and device == "cpu":
            raise ConfigError("trainer.cpu_offload=true: the model is in the CPU's memory already; set it to false.")
        mesh = init_device_mesh(device, (self._world.size,))
        precision = MixedPrecisionPolicy()
        if self.casts:
            precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for module in (*decoder_layers(model), root):
            fully_shard(
                module,
                mesh=mesh,
                mp_policy=precision,
                offload_policy=CPUOffloadPolicy() if offload else OffloadPolicy(),
                ignored_params=whole,
            )
            assert isinstance(module, FSDPModule)
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
        setattr(model, GATHERED, partial(_gathered, root))


def start_alike(policy: Policy, world: World) -> None:
    """Give every rank the first one's trained weights: a warm start is a long sum, and machines may differ in it."""
    for parameter in policy.parameters():
        world.copy_first(parameter.detach())


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The blocks that the architecture says are not to be taken apart; none where it says nothing."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    return [module for module in model.modules() if type(module).__name__ in names]


def _buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Consecutive tensors of together at most BUCKET_NUMBERS numbers (at least one tensor each)."""
    bucket: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if bucket and size + tensor.numel() > BUCKET_NUMBERS:
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += tensor.numel()
    if bucket:
        yield bucket


def _square(tensors: Sequence[Tensor]) -> Tensor:
    """Sum of the squares of all numbers: [] float64 on the CPU."""
    return torch.nn.utils.get_total_norm(tensors).double().square().cpu()
