"""Gradient checkpointing for a model that is always in eval mode.

transformers checkpoints a layer in training mode only, and silently not here. The same layers are wrapped one by one,
wherever gradients are on: a backward pass over L layers holds L inputs and the activations of one layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from rlvr.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def recompute_in_backward(model: PreTrainedModel) -> None:
    """Wrap the layers. ConfigError if the architecture supports no recomputation."""
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
    """The layers that `recompute_in_backward` has wrapped."""
    return [module for module in model.modules() if _wrapper(module) is not None]


@contextmanager
def keeping_activations(model: nn.Module) -> Iterator[None]:
    """The model as if nothing were recomputed."""
    layers = recomputed_layers(model)
    wrappers = [layer.forward for layer in layers]
    for layer, wrapper in zip(layers, wrappers, strict=True):
        layer.forward = cast(partial[Any], wrapper).args[0]
    try:
        yield
    finally:
        for layer, wrapper in zip(layers, wrappers, strict=True):
            layer.forward = wrapper


def _wrapper(module: nn.Module) -> partial[Any] | None:
    forward = module.forward
    return forward if isinstance(forward, partial) and forward.func is _forward else None


def _forward(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    # eval mode draws no random numbers
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)
