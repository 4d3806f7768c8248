"""A real vLLM server for tests, with a tiny model whose heads its CPU build can do."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlvr.commands.serve.vllm import VllmServer, VllmSettings, open_vllm
from rlvr.models.scratch import build_tokenizer

WORDS = ("<pad>", "<boe>", "<eoe>", *(f"w{i}" for i in range(61)))
CONTEXT_TOKENS = 320
NUM_SLOTS = 16


def save_tiny_qwen(folder: Path, *, tied: bool = True, seed: int = 0) -> None:
    """Two layers, heads of 32, grouped queries, biases, every number random; if tied, the head is the embedding."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(WORDS),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=tied,
        initializer_range=0.15,
    )
    model = Qwen2ForCausalLM(config)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, mean=float("norm" in name), std=0.1)
    model.save_pretrained(folder)
    build_tokenizer(WORDS).save_pretrained(folder)


@contextmanager
def vllm_server(model: Path, *arguments: str) -> Iterator[VllmServer]:
    """As `rlvr serve --engine vllm` starts it, on a free port."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = int(one.getsockname()[1])
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("VLLM_CPU_CI_ENV", "1")  # no warm-up
        settings = VllmSettings(port=port, names=("policy",), max_batch_size=NUM_SLOTS, arguments=arguments)
        with _one_core():
            server = stack.enter_context(open_vllm(str(model), settings, note=print))
        yield server


@contextmanager
def _one_core() -> Iterator[None]:
    """For processes that begin in the block. Those of vLLM wait by spinning, and where they may do so on every core,
    nobody else runs while they sample: whoever wants to push weights then comes when all is done."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
