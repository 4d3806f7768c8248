"""A request of the engine, and what one sequence alone would have given its caller: the definition, without batches."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log
from typing import Any

import torch
import transformers

from rlvr.core.engine import sampler
from rlvr.core.engine.base import Allowed, Alternatives
from rlvr.types import Completion, SamplingParams, StopReason

VOCABULARY, CONTEXT, NOISE = 12, 32, 1e-4
SIZES: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": CONTEXT}


def tiny_model(seed: int) -> transformers.PreTrainedModel:
    """A thousand random weights, large enough that each token changes the next."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, initializer_range=0.7)).eval()


WEIGHTS = [tiny_model(seed) for seed in range(3)]  # of version v: the one at v % 3


@dataclass(eq=False, kw_only=True)
class Asked:
    """A request, and what its caller has heard."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    session: int | None = None
    allowed: Allowed | None = None
    alternatives: Alternatives | None = None
    heard: list[tuple[int, float]] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)  # of the weights at each token
    aborted: bool = False

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(token for token, _ in self.heard)

    @property
    def limit(self) -> int:
        return min(self.sampling.max_tokens, CONTEXT - len(self.prompt))

    @property
    def done(self) -> bool:
        return bool(self.heard) and (self.tokens[-1] in self.sampling.stop_ids or len(self.heard) >= self.limit)


def kept(probs: Sequence[float], wanted: SamplingParams) -> list[int]:
    """The tokens that truncation leaves, by its definition."""
    order = sorted(range(VOCABULARY), key=lambda token: -probs[token])
    if not wanted.truncates:
        return order
    left = [token for token in order[: wanted.top_k or None] if probs[token] >= wanted.min_p * probs[order[0]]]
    mass = sum(probs[token] for token in left)
    ahead = [sum(probs[token] for token in left[:place]) for place in range(len(left))]
    return [t for t, before in zip(left, ahead, strict=True) if before < wanted.top_p * mass or wanted.top_p >= 1]


def check_token(asked: Asked, done: Completion, place: int, logits: torch.Tensor) -> None:
    """The token at a place is the one that its seed draws from these logits `[V]`, with both logprobs."""
    wanted, token = asked.sampling, done.token_ids[place]
    if asked.allowed is not None:
        logits = logits.masked_fill(~asked.allowed(done.token_ids[:place]), -torch.inf)
    logprobs = torch.log_softmax(logits / (wanted.temperature or 1.0), -1)
    probs = logprobs.double().exp().tolist()
    left = kept(probs, wanted)
    mass = sum(probs[one] for one in left)
    assert token in left
    assert abs(done.behavior_logprobs[place] - float(logprobs[token])) < NOISE
    assert abs(done.sampling_logprobs[place] - (float(logprobs[token]) - log(mass))) < NOISE
    if wanted.temperature:
        position = torch.tensor([len(asked.prompt) + place])
        target = float(sampler.uniform(sampler.streams([wanted.seed]), position)) * mass
        below = sum(probs[one] for one in left if one < token)
        assert below - NOISE < target < below + probs[token] + NOISE
    else:
        assert probs[token] > max(probs) - NOISE
    if asked.alternatives is not None:
        ids, values = asked.alternatives.seen[place]
        assert len(set(ids)) == asked.alternatives.count
        expected = logprobs.topk(asked.alternatives.count).values
        torch.testing.assert_close(torch.tensor(values), expected, atol=NOISE, rtol=0)
        torch.testing.assert_close(logprobs[list(ids)], expected, atol=NOISE, rtol=0)


@torch.no_grad()
def check_alone(asked: Asked, done: Completion) -> None:
    """A finished request is what one sequence alone gives, with the weights that each of its tokens had."""
    assert done.token_ids == asked.tokens
    assert done.behavior_logprobs == tuple(logprob for _, logprob in asked.heard)
    assert done.policy_versions == tuple(asked.versions)
    assert [place for place, _ in done.version_changes] == sorted({place for place, _ in done.version_changes})
    stopped = done.token_ids[-1] in asked.sampling.stop_ids
    assert done.stop_reason == (StopReason.STOP if stopped else StopReason.LENGTH)
    assert not asked.sampling.stop_ids & set(done.token_ids[:-1])
    assert stopped or len(done.token_ids) == asked.limit
    ids = torch.tensor([[*asked.prompt, *done.token_ids]])
    logits = {
        version: WEIGHTS[version % 3](input_ids=ids, use_cache=False).logits[0] for version in set(asked.versions)
    }
    for place, version in enumerate(asked.versions):
        check_token(asked, done, place, logits[version][len(asked.prompt) + place - 1])
