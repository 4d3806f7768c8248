"""A model of your own: a Llama whose feed-forward layers have squared ReLUs (arXiv:2109.08668).

In the folder of this file:

    rlvr train --config-name rpn_test model=my_model:Squared
    rlvr train --config-name rpn_test model=my_model:Squared model.width=128 --cfg job

It is a class of transformers, registered under its own `model_type`: so `rlvr eval`, `predict` and `export`, which
import this file because the run's settings name it, read its folders.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from rlvr.models.devices import move
from rlvr.models.policy import HubPolicy
from rlvr.models.scratch import build_tokenizer
from rlvr.models.settings import Model, ModelContext
from rlvr.settings import PositiveInt, setting


class SquaredConfig(LlamaConfig):
    model_type = "squared_llama"


class SquaredLlama(LlamaForCausalLM):
    config_class = SquaredConfig

    def __init__(self, config: SquaredConfig) -> None:
        super().__init__(config)
        for layer in self.model.layers:
            layer.mlp = FeedForward(config.hidden_size, config.intermediate_size)
        self.post_init()


class FeedForward(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, inner, bias=False), nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x).relu().square())


AutoConfig.register(SquaredConfig.model_type, SquaredConfig)
AutoModelForCausalLM.register(SquaredConfig, SquaredLlama)


class Squared(Model):
    """Random weights, and one token for each word of the task."""

    from_scratch: ClassVar[bool] = True
    tokens_are_words: ClassVar[bool] = True
    width: PositiveInt = setting(64, "width of the residual stream, a multiple of 8", multiple_of=8)
    num_layers: PositiveInt = setting(3, "blocks")
    max_context_tokens: PositiveInt = setting(64, "longest prompt and completion together")

    def open(self, context: ModelContext) -> HubPolicy:
        tokenizer = build_tokenizer(context.vocabulary or ())
        config = SquaredConfig(
            vocab_size=len(tokenizer),
            hidden_size=self.width,
            intermediate_size=4 * self.width,
            num_hidden_layers=self.num_layers,
            num_attention_heads=4,
            max_position_embeddings=self.max_context_tokens,
            **{f"{role}_token_id": getattr(tokenizer, f"{role}_token_id") for role in ("pad", "bos", "eos")},
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(context.seed)
            model = SquaredLlama(config).eval()
        move(model, context.device)
        return HubPolicy(model=model, tokenizer=tokenizer)
