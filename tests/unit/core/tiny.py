"""A policy of a few thousand weights, and batches of random rows for it."""

from dataclasses import replace
from functools import cache
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from rlvr.algorithms.objective import Objective
from rlvr.config import Config
from rlvr.config.compose import load_config
from rlvr.core.packing import Packing
from rlvr.core.settings import cpu_tokens
from rlvr.core.trainer import Trainer
from rlvr.core.world import ALONE, World
from rlvr.models.devices import in_bf16
from rlvr.models.loading import value_head
from rlvr.models.policy import HubPolicy
from rlvr.models.scratch import build_tokenizer
from rlvr.scale.fsdp import make_parallel
from rlvr.types import TokenBatch

VOCABULARY = ("<pad>", "<boe>", "<eoe>", "=", "+", *map(str, range(12)))
SIZES: dict[str, Any] = {"vocab_size": len(VOCABULARY), "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES |= {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "max_position_embeddings": 64}
SIZES |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "initializer_range": 0.3}
MIXED = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"], "final_logit_softcapping": 5.0}
ARCHITECTURES: dict[str, Any] = {
    "llama": (transformers.LlamaForCausalLM, {}),
    "qwen2": (transformers.Qwen2ForCausalLM, {"tie_word_embeddings": True}),
    "mixtral": (transformers.MixtralForCausalLM, {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3": (transformers.Qwen3ForCausalLM, {}),
    "gemma3": (transformers.Gemma3ForCausalLM, MIXED),
}


def tiny_model(architecture: str = "llama", **changes: Any) -> PreTrainedModel:
    """Random float32 weights, the same at every call."""
    model_class, more = ARCHITECTURES[architecture]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return model_class(model_class.config_class(**SIZES | more | changes)).eval()


def tiny_policy(architecture: str = "llama", *, critic: bool = False, **changes: Any) -> HubPolicy:
    """With `critic`, a value head that is not zero."""
    head = None
    if critic:
        head = value_head(32)
        torch.nn.init.constant_(head.weight, 0.05)
    model = tiny_model(architecture, **changes)
    return HubPolicy(model=model, tokenizer=build_tokenizer(VOCABULARY), value_head=head)


def tiny_batch(policy: HubPolicy, *, num_groups: int = 3, group_size: int = 4, seed: int = 0) -> TokenBatch:
    """Groups with a common prompt, ragged completions, some tool tokens (mask 0) inside, behavior = current."""
    generator = torch.Generator().manual_seed(seed)
    rows, width = num_groups * group_size, 20
    ids = torch.randint(len(VOCABULARY), (rows, width), generator=generator)
    prompts = torch.randint(2, 6, (num_groups,), generator=generator).repeat_interleave(group_size)
    lengths = prompts + torch.randint(2, 14, (rows,), generator=generator)
    for row in range(rows):
        first = row - row % group_size
        ids[row, : prompts[row]] = ids[first, : prompts[row]]
    place = torch.arange(width)[None]
    mask = (place >= prompts[:, None]) & (place < lengths[:, None])
    mask &= ~((place == prompts[:, None] + 3) & (torch.arange(rows)[:, None] % 3 == 0))  # a tool token in some rows
    rewards = torch.randint(2, (rows,), generator=generator).float()
    rewards[:group_size] = 1.0  # a group without spread
    rewards[group_size], rewards[group_size + 1] = 0.0, 1.0  # and one that certainly has some
    batch = TokenBatch(
        ids=torch.where(place < lengths[:, None], ids, 0),
        lengths=lengths,
        prompt_lengths=prompts,
        loss_mask=mask,
        behavior_logprobs=torch.zeros(rows, width),
        rewards=rewards,
        groups=torch.arange(num_groups).repeat_interleave(group_size),
        episodes=torch.arange(num_groups * group_size),
        valid=torch.ones(rows, dtype=torch.bool),
        truncated=torch.arange(rows) % 5 == 4,
    )
    return replace(batch, behavior_logprobs=plain_logprobs(policy, batch) * mask)


@torch.no_grad()
def plain_logprobs(policy: HubPolicy, batch: TokenBatch, temperature: float = 1.0) -> torch.Tensor:
    """[B, T] logprobs from transformers' own forward pass over each row alone; 0 for the first token and padding."""
    out = torch.zeros(batch.ids.shape)
    for row, length in enumerate(batch.lengths.tolist()):
        ids = batch.ids[row : row + 1, :length]
        logits = policy.model(input_ids=ids, use_cache=False).logits[0, :-1].float() / temperature
        out[row, 1:length] = torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[:, 0]
    return out


@cache  # frozen; Hydra takes an eighth of a second
def tiny_config(*overrides: str, name: str = "rpn") -> Config:
    """The default configuration with overrides, of which the last of a key counts."""
    last = {line.partition("=")[0]: line for line in overrides}
    return load_config(list(last.values()), config_name=name)


def tiny_objective(config: Config, temperature: float = 1.0) -> Objective:
    """The configured algorithm for completions of up to 16 tokens."""
    return Objective(algorithm=config.algorithm, max_completion_tokens=16, temperature=temperature)


def tiny_trainer(
    policy: HubPolicy, *overrides: str, temperature: float = 1.0, layout: Any = "shared", world: World = ALONE
) -> Trainer:
    """A trainer whose gradient is not clipped, so that it can be compared."""
    config = tiny_config("trainer.max_grad_norm=1e9", "trainer.warmup_steps=0", *overrides)
    return Trainer(
        policy=policy,
        objective=tiny_objective(config, temperature),
        settings=config.trainer,
        seed=0,
        packing=Packing(layout=layout, max_tokens=cpu_tokens(config.trainer.microbatch_tokens)),
        parallel=make_parallel(
            config.trainer, world, bf16=world.first(in_bf16(config.trainer.precision, policy.model))
        ),
    )


def update(trainer: Trainer, batch: TokenBatch) -> dict[str, float]:
    """Score, advantages, update, as the loop does."""
    batch = trainer.objective.advantages(trainer.score(batch))
    return trainer.update(batch, 0)[0]


def gradient(trainer: Trainer, batch: TokenBatch) -> torch.Tensor:
    """The gradient that the last minibatch of an update left, flattened."""
    update(trainer, batch)
    return torch.cat([p.grad.flatten() for p in trainer.policy.parameters() if p.grad is not None])
