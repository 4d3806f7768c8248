"""Logprobs of the tokens that were sampled, from packed forward passes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rlvr.core.packing import Microbatch
from rlvr.core.policy import Policy


class TokenScores(NamedTuple):
    """What a forward pass says about the N predicted tokens of a microbatch."""

    logprobs: Tensor  # [N] fp32
    entropy: Tensor  # [N] fp32, of the distribution the token was drawn from
    values: Tensor | None  # [N] fp32, the critic's estimate before the token was drawn


def forward(policy: Policy, microbatch: Microbatch, temperature: float, entropy_grad: bool = False) -> TokenScores:
    """One pass over the packed lines; head and critic run on the predicting positions only. Called by `Policy.run`.

    Here is the border between the batch, which stays on the CPU with all that algorithms see, and the model's device.
    """
    home, microbatch = microbatch.ids.device, microbatch.to(policy.model.device)
    allowed = microbatch.allowed()
    positions = None if allowed is None else microbatch.positions
    hidden = policy.hidden(microbatch.ids, positions, allowed)
    before = hidden.flatten(0, 1).index_select(0, microbatch.predictors)  # [N, D]
    found = policy.token_scores(before, microbatch.targets, temperature, entropy_grad=entropy_grad)
    with torch.autocast(before.device.type, enabled=False):  # the critic's targets are too fine for bf16
        values = None if policy.value_head is None else policy.value_head(before.float())[:, 0]
    # copies: on a view of another tensor FSDP's hooks could get lost
    logprobs, entropy = (x.to(home).clone() for x in found)
    return TokenScores(logprobs, entropy, None if values is None else values.to(home).clone())


def scatter(flat: Tensor, place: tuple[Tensor, Tensor], shape: torch.Size) -> Tensor:
    """Put N values at their (row, token) places of a [B, T] array, zeros elsewhere; differentiable."""
    return torch.zeros(shape, dtype=flat.dtype, device=flat.device).index_put(place, flat)
