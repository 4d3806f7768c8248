"""Data parallelism (DDP): equal initial weights, summed gradients, clipping. `rlvr.scale.fsdp` shards the weights.

Gradients are summed, not averaged: the loss weights carry the denominator of the whole minibatch.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from rlvr.core.policy import Policy
from rlvr.core.world import ALONE, World

BUCKET_NUMBERS = 1 << 24
"""Gradients are reduced in pieces of this many numbers (64 MiB): few messages, little memory."""


class DataParallel:
    """`DataParallel(world, bf16=True)`: bfloat16 autocast, float32 weights and gradients."""

    in_lockstep = False  # whether all ranks must make the same number of passes

    def __init__(self, world: World = ALONE, *, bf16: bool = False) -> None:
        self.world, self.bf16 = world, bf16

    def broadcast_weights(self, policy: Policy) -> None:
        """Broadcast rank 0's trained weights: machines may differ in the last bit of a warm start."""
        for parameter in policy.parameters():
            self.world.broadcast(parameter.detach())

    def shard(self, policy: Policy) -> None:
        """Shard the model's weights; call before an optimizer gets its parameters."""

    def set_precision(self, bf16: bool) -> None:
        """Set the precision the run started with."""
        self.bf16 = bf16

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        return torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.bf16)

    def loss_scales(self, weights: Tensor) -> Iterator[float]:
        """Factors of the loss [B, T] `weights` to try one after another, until the gradient is finite."""
        yield 1.0

    def unscale(self, policy: Policy, scale: float) -> bool:
        """Divide the gradient by the factor of the loss; whether it is finite, on all ranks."""
        return True

    def sum_gradients(self, policy: Policy) -> None:
        if self.world.size == 1:
            return
        for bucket in _buckets(p.grad for p in self.replicated(policy) if p.grad is not None):
            flat = self.world.add(torch.cat([gradient.flatten() for gradient in bucket]))
            for gradient, total in zip(bucket, flat.split([g.numel() for g in bucket]), strict=True):
                gradient.copy_(total.view_as(gradient))

    def clip(self, policy: Policy, max_norm: float) -> float:
        """Clip the gradient to norm `max_norm`; returns its norm before clipping, over all ranks."""
        return torch.nn.utils.clip_grad_norm_(list(policy.parameters()), max_norm).item()

    def weight_sample(self, policy: Policy, per_tensor: int = 4096) -> Tensor:
        """The first `per_tensor` weights of every trained tensor that this rank owns."""
        return torch.cat([self.first_weights(p, per_tensor) for p in policy.parameters()])

    def changed_share(self, before: Tensor, after: Tensor) -> float:
        """Share of the sampled weights, over all ranks, that differ."""
        counts = torch.tensor([int((before != after).sum()), before.numel()])
        changed, total = self.world.add(counts).float()
        return (changed / total).item()

    def replicated(self, policy: Policy) -> list[nn.Parameter]:
        """Trained parameters that every rank holds in full."""
        return list(policy.parameters())

    def first_weights(self, parameter: nn.Parameter, count: int) -> Tensor:
        """[up to count] float32 on the CPU; for replicated weights, empty except on rank 0."""
        return parameter.detach().flatten()[: count if self.world.is_first else 0].float().cpu()


class Float16(DataParallel):
    """float16 autocast: 8 times as fine as bfloat16, for numbers from 6e-8 to 65,504 only.

    So the loss is scaled by a power of two, which is exact, until a token's weight is near 1, and its gradient scaled
    back in float32. A gradient that overflows is computed again, 16 times smaller.
    """

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        return torch.autocast(device.type, dtype=torch.float16)

    def loss_scales(self, weights: Tensor) -> Iterator[float]:
        exponent = -math.floor(math.log2(max(weights.max().item(), 2.0**-24)))
        yield from (2.0**power for power in range(exponent, exponent - 25, -4))

    def unscale(self, policy: Policy, scale: float) -> bool:
        gradients = [p.grad for p in policy.parameters() if p.grad is not None]
        for gradient in gradients:
            gradient.div_(scale)
        return not self.world.any(any(not gradient.isfinite().all() for gradient in gradients))


def _buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Consecutive tensors with at most BUCKET_NUMBERS numbers together, at least one tensor each."""
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
