"""A language-model head that computes in float32, whatever computes the hidden states (`model.head_dtype`)."""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlvr.errors import ConfigError


class Float32Head(nn.Linear):
    """Logits in float32, also under autocast: bfloat16 rounds a logit of 20 to a multiple of 1/8. MiniMax-M1,
    arXiv:2506.13585, and ScaleRL, arXiv:2510.13786."""

    def forward(self, input: Tensor) -> Tensor:
        with torch.autocast(input.device.type, enabled=False):
            bias = None if self.bias is None else self.bias.float()
            return nn.functional.linear(input.float(), self.weight.float(), bias)


def use_float32_head(model: PreTrainedModel) -> None:
    """Let the model's head, and that of every copy, compute in float32. ConfigError if it is no plain matrix."""
    head = model.get_output_embeddings()
    if isinstance(head, Float32Head):
        return
    if type(head) is not nn.Linear:
        raise ConfigError(f"model.head_dtype=float32: this model's head is a {type(head).__name__}; set it to auto.")
    head.__class__ = Float32Head
