"""Gradient checkpointing for a model in eval mode.

transformers checkpoints layers in training mode only, without a warning. We wrap the same layers whenever gradients are
enabled: backward over L layers holds L inputs and the activations of one layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from rlvr.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def recompute_in_backward(model: PreTrainedModel) -> None:
    """Wrap the layers. ConfigError if the architecture does not support recomputation."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(
            f"model.gradient_checkpointing=true: {type(model).__name__} has no layers that can be recomputed; "
            "set it to false."
        )
    for layer in layers:
        layer.forward = partial(_forward, layer.forward)


def recomputed_layers(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if getattr(module.forward, "func", None) is _forward]


@contextmanager
def keeping_activations(model: nn.Module) -> Iterator[None]:
    wrappers: dict[nn.Module, Any] = {layer: layer.forward for layer in recomputed_layers(model)}
    for layer, wrapper in wrappers.items():
        layer.forward = wrapper.args[0]
    try:
        yield
    finally:
        for layer, wrapper in wrappers.items():
            layer.forward = wrapper


def _forward(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    # eval mode uses no random numbers
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)
