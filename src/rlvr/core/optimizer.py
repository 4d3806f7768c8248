"""AdamW and its learning-rate schedule, a function of the step alone: resume restores no scheduler."""

import math
from collections.abc import Iterable

import torch
from torch import nn


def learning_rate(
    step: int, *, peak: float, warmup_steps: int, final_share: float, schedule: str, max_steps: int
) -> float:
    """Learning rate of update `step` (0-based): linear warm-up, then constant, linear or cosine to final_share x peak.

    With warmup_steps=4 the first updates use 1/4, 2/4, 3/4 and 4/4 of the peak.
    """
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    if schedule == "constant":
        return peak
    progress = min(1.0, (step - warmup_steps) / max(1, max_steps - 1 - warmup_steps))
    fraction = 1 - progress if schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return peak * (final_share + (1 - final_share) * fraction)


def adamw(parameters: Iterable[nn.Parameter], beta1: float, beta2: float, weight_decay: float) -> torch.optim.AdamW:
    """Fused AdamW; weight decay applies to matrices, not to norms and biases. The caller sets the rate of each step."""
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for parameter in parameters:
        is_plain = type(parameter) is nn.Parameter  # no fused kernel mixes DTensors and plain tensors
        groups.setdefault((parameter.dim() < 2, is_plain), []).append(parameter)
    settings = [{"params": groups[key], "weight_decay": 0.0 if key[0] else weight_decay} for key in sorted(groups)]
    return torch.optim.AdamW(settings, lr=0.0, betas=(beta1, beta2), fused=True)
