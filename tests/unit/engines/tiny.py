"""Tiny random models of the architectures the engine serves, and the oracle: a plain forward of one sequence."""

import asyncio
from collections.abc import Sequence
from typing import Any

import torch
import transformers as hf
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from rlvr.core.engine import LocalEngine
from rlvr.seeding import derive_seed
from rlvr.types import Completion, SamplingParams

VOCABULARY = 40
EVERY_FIFTH = frozenset(range(0, VOCABULARY, 5))
Requests = Sequence[tuple[Sequence[int], SamplingParams]]
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.15,
}
SLIDING = {"use_sliding_window": True, "sliding_window": 5}
GEMMA = {"head_dim": 16, "sliding_window": 5}
EXPERTS = {"num_local_experts": 4}
FALCON = {key: value for key, value in COMMON.items() if key != "num_key_value_heads"} | {"alibi": False}
EAGER = {"attn_implementation": "eager"}
MIXED = ["sliding_attention", "sliding_attention", "full_attention"]
ARCHITECTURES = ("llama", "qwen2", "qwen2_sliding", "qwen3", "gemma3", "mistral", "mixtral", "gpt2")

MODELS: dict[str, tuple[type[PretrainedConfig], type[PreTrainedModel], dict[str, Any]]] = {
    "llama": (hf.LlamaConfig, hf.LlamaForCausalLM, COMMON),
    "qwen2": (hf.Qwen2Config, hf.Qwen2ForCausalLM, COMMON),
    "qwen2_sliding": (hf.Qwen2Config, hf.Qwen2ForCausalLM, COMMON | SLIDING | {"max_window_layers": 1}),
    "qwen3": (hf.Qwen3Config, hf.Qwen3ForCausalLM, COMMON | {"head_dim": 16}),
    "gemma3": (hf.Gemma3TextConfig, hf.Gemma3ForCausalLM, COMMON | GEMMA | {"layer_types": MIXED}),
    "mistral": (hf.MistralConfig, hf.MistralForCausalLM, COMMON | {"sliding_window": 5}),
    "mixtral": (
        hf.MixtralConfig,
        hf.MixtralForCausalLM,
        COMMON | EXPERTS | {"num_experts_per_tok": 2, "sliding_window": None, "router_jitter_noise": 0.3},
    ),
    "gpt2": (
        hf.GPT2Config,
        hf.GPT2LMHeadModel,
        {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
        | {"initializer_range": 0.15, "bos_token_id": 0, "eos_token_id": 0},
    ),
    # caps scores
    "gemma2": (hf.Gemma2Config, hf.Gemma2ForCausalLM, COMMON | GEMMA | EAGER | {"attn_logit_softcapping": 0.5}),
    # have attention of their own, which asks for the name of the kind
    "falcon": (hf.FalconConfig, hf.FalconForCausalLM, FALCON),
    "falcon_alibi": (hf.FalconConfig, hf.FalconForCausalLM, FALCON | {"alibi": True}),
    # has attention sinks
    "gpt_oss": (hf.GptOssConfig, hf.GptOssForCausalLM, COMMON | GEMMA | EAGER | EXPERTS),
}


def tiny_model(name: str = "llama", seed: int = 0) -> PreTrainedModel:
    """A random float32 model, in training mode as a trainer would leave it."""
    torch.manual_seed(seed)
    config, model, settings = MODELS[name]
    return model(config(**settings)).train()


def sampling(seed: int = 0, **changes) -> SamplingParams:
    """Eight tokens at most, no stop ids, unless changed."""
    settings = {"max_tokens": 8, "stop_ids": frozenset(), "seed": seed} | changes
    return SamplingParams(**settings)


def prompt(length: int, seed: int = 0) -> list[int]:
    """Random ids."""
    generator = torch.Generator().manual_seed(1000 * length + seed)
    return torch.randint(1, VOCABULARY, (length,), generator=generator).tolist()


@torch.no_grad()
def plain_logprobs(model: PreTrainedModel, ids: list[int], completion: Completion, temperature: float = 1.0) -> Tensor:
    """The completion's log-probabilities by one full forward of prompt + completion alone, without a cache."""
    was_training = model.training
    model.eval()
    sequence = torch.tensor([[*ids, *completion.token_ids]])
    logits = model(input_ids=sequence, use_cache=False).logits[0, len(ids) - 1 : -1]
    model.train(was_training)
    logprobs = torch.log_softmax(logits / temperature, -1)
    return logprobs.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]


def generate(engine: LocalEngine, requests: Requests) -> list[Completion]:
    """Completions in the order of the requests, from outside of an event loop."""

    async def together() -> list[Completion]:
        return await asyncio.gather(*(engine.generate(*request) for request in requests))

    return asyncio.run(together())


def crowd(num_prompts: int = 5, group_size: int = 4, **changes) -> list[tuple[list[int], SamplingParams]]:
    """Groups of ragged prompts, of ragged completions: every fifth token stops."""
    settings = {"max_tokens": 14, "stop_ids": EVERY_FIFTH} | changes
    return [
        (prompt(3 + 4 * i), sampling(derive_seed(0, i, j), **settings))
        for i in range(num_prompts)
        for j in range(group_size)
    ]


def play(engine: LocalEngine, prompts: Sequence[list[int]], **changes) -> tuple[Requests, list[Completion]]:
    """Sessions of three turns, all at once: prompts grow by the completion and a reply of 1 to 4 tokens."""
    requests, completions = [], []

    async def session(index: int, ids: list[int]) -> None:
        for turn in range(3):
            settings = sampling(derive_seed(0, index, turn), **changes)
            completion = await engine.generate(ids, settings, session=index)
            requests.append((ids, settings))
            completions.append(completion)
            ids = [*ids, *completion.token_ids, *prompt(1 + (index + turn) % 4, seed=turn)]
        engine.release(index)

    async def together() -> None:
        await asyncio.gather(*(session(index, ids) for index, ids in enumerate(prompts)))

    asyncio.run(together())
    return requests, completions


def assert_exact(
    model: PreTrainedModel, requests: Requests, completions: Sequence[Completion], *, atol: float = 1e-5
) -> None:
    """The behavior logprobs are those of a plain forward, at the temperature of each request."""
    for (ids, settings), completion in zip(requests, completions, strict=True):
        assert len(completion.token_ids) == len(completion.behavior_logprobs) == len(completion.sampling_logprobs)
        expected = plain_logprobs(model, list(ids), completion, settings.temperature or 1.0)
        torch.testing.assert_close(torch.tensor(completion.behavior_logprobs), expected, atol=atol, rtol=0)
