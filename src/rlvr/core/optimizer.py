"""The optimizer, and its learning-rate schedule, a function of the step alone: resume restores no scheduler."""

import math
from collections.abc import Iterable
from typing import Any, assert_never

import torch
from torch import nn

from rlvr.core.muon import Muon
from rlvr.core.policy import Policy
from rlvr.core.settings import Schedule, TrainerSettings


def learning_rate(
    step: int, *, peak: float, warmup_steps: int, final_share: float, schedule: Schedule, max_steps: int
) -> float:
    """Learning rate of update `step` (0-based): linear warm-up, then constant, linear or cosine to final_share x peak.

    With warmup_steps=4 the first updates use 1/4, 2/4, 3/4 and 4/4 of the peak.
    """
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    progress = min(1.0, (step - warmup_steps) / max(1, max_steps - 1 - warmup_steps))
    match schedule:
        case "constant":
            return peak
        case "linear":
            fraction = 1 - progress
        case "cosine":
            fraction = (1 + math.cos(math.pi * progress)) / 2
        case _:
            assert_never(schedule)
    return peak * (final_share + (1 - final_share) * fraction)


def make_optimizer(policy: Policy, settings: TrainerSettings) -> torch.optim.AdamW:
    """The optimizer of the policy's trained parameters. The caller sets the rate of each step."""
    betas, decay = (settings.adam_beta1, settings.adam_beta2), settings.weight_decay
    match settings.optimizer:
        case "adamw":
            return adamw(policy.parameters(), *betas, decay)
        case "muon":
            matrices, others = hidden_matrices(policy)
            return Muon(matrices, groups_of(others, 0.0), betas=betas, weight_decay=decay)
        case _:
            assert_never(settings.optimizer)


def adamw(parameters: Iterable[nn.Parameter], beta1: float, beta2: float, weight_decay: float) -> torch.optim.AdamW:
    """Fused AdamW; weight decay applies to matrices, not to norms and biases. The caller sets the rate of each step."""
    return torch.optim.AdamW(groups_of(parameters, weight_decay), lr=0.0, betas=(beta1, beta2), fused=True)


def groups_of(parameters: Iterable[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Groups of AdamW: parameters with and without weight decay."""
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for parameter in parameters:
        is_plain = type(parameter) is nn.Parameter  # no fused kernel mixes DTensors and plain tensors
        groups.setdefault((parameter.dim() < 2, is_plain), []).append(parameter)
    return [{"params": groups[key], "weight_decay": 0.0 if key[0] else weight_decay} for key in sorted(groups)]


def hidden_matrices(policy: Policy) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The trained matrices between hidden states, and the other parameters: embeddings, heads, norms, biases."""
    ends = (policy.model.get_input_embeddings(), policy.model.get_output_embeddings(), policy.value_head)
    of_ends = {id(weight) for end in ends if end is not None for weight in end.parameters()}
    matrices, others = list[nn.Parameter](), list[nn.Parameter]()
    for parameter in policy.parameters():
        (matrices if parameter.dim() == 2 and id(parameter) not in of_ends else others).append(parameter)
    return matrices, others
