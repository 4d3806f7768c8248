"""Model folders of a few thousand weights, and the settings that load them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rlvr.models.loading import load_policy
from rlvr.models.policy import HubPolicy
from rlvr.models.settings import LoraSettings, PretrainedModel
from tests.unit.core.tiny import tiny_policy

TARGETS = ("q_proj", "v_proj", "down_proj")
KINDS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "4bit": {"load_in_4bit": True},
    "8bit": {"load_in_8bit": True},
    "4bit_bfloat16": {"load_in_4bit": True, "dtype": "bfloat16"},
}
"""Ways to keep the frozen weights."""


def save_model(folder: Path, architecture: str = "llama", **changes: Any) -> Path:
    """A model with random weights and a word-level tokenizer in Hub format."""
    tiny_policy(architecture, **changes).save(folder)
    return folder


def lora(**changes: Any) -> LoraSettings:
    """Adapters of rank 4 on three layers of each block."""
    values = {"enabled": True, "r": 4, "alpha": 8, "target_modules": TARGETS, "merge_final": False}
    return LoraSettings(**(values | changes))


def settings(folder: Path | str, **changes: Any) -> PretrainedModel:
    """Of a model with adapters."""
    return PretrainedModel(**({"name_or_path": str(folder), "dtype": "float32", "lora": lora()} | changes))


def adapted(folder: Path, *, shake: float = 0.0, **changes: Any) -> HubPolicy:
    """A policy with adapters; with `shake` they are random, as after some training."""
    policy = load_policy(settings(folder, **changes), seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if shake and "lora_B" in name:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * shake)
    return policy


def num_trained(policy: HubPolicy) -> int:
    """Trained numbers, tied ones once."""
    return sum(p.numel() for p in policy.parameters())


def frozen_bytes(policy: HubPolicy) -> dict[str, bytes]:
    """Every tensor of the model that is no adapter, quantization constants included, bit for bit."""
    return {
        name: tensor.detach().contiguous().view(torch.uint8).numpy().tobytes() if tensor.dim() else str(tensor).encode()
        for name, tensor in policy.model.state_dict().items()
        if "lora_" not in name
    }
