"""AdamW and its learning rate, a function of the step alone (so resume has no scheduler to restore)."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn


def learning_rate(step: int, settings: Any, *, schedule: str, max_steps: int) -> float:
    """Learning rate of update `step` (0-based): linear warm-up, then constant, linear or cosine to a share of the peak.

    `settings` have the peak `learning_rate`, `warmup_steps` and `final_learning_rate_share`, all of them numbers. With
    warmup_steps=4 the first updates use 1/4, 2/4, 3/4 and 4/4 of the peak.
    """
    peak, warmup_steps, final_share = settings.learning_rate, settings.warmup_steps, settings.final_learning_rate_share
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    if schedule == "constant":
        return peak
    progress = min(1.0, (step - warmup_steps) / max(1, max_steps - 1 - warmup_steps))
    fraction = 1 - progress if schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return peak * (final_share + (1 - final_share) * fraction)


def adamw(parameters: Iterable[nn.Parameter], beta1: float, beta2: float, weight_decay: float) -> torch.optim.AdamW:
    """Fused AdamW; weight decay applies to matrices, not to norms and biases. The learning rate is set per step."""
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for parameter in parameters:
        is_plain = type(parameter) is nn.Parameter  # no kernel takes sharded ones (DTensors) and others together
        groups.setdefault((parameter.dim() < 2, is_plain), []).append(parameter)
    settings = [{"params": groups[key], "weight_decay": 0.0 if key[0] else weight_decay} for key in sorted(groups)]
    return torch.optim.AdamW(settings, lr=0.0, betas=(beta1, beta2), fused=True)
