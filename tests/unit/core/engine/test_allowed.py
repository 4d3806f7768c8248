"""A request may say which tokens come next; the others of its batch are as without it."""

import asyncio
from collections.abc import Sequence

import pytest
import torch

from rlvr.core.engine import LocalEngine
from rlvr.types import Completion, SamplingParams
from tests.unit.engines.tiny import tiny_model

SIZE = 20


def sampled(allowed: bool) -> list[Completion]:
    model = tiny_model()
    vocabulary = model.config.vocab_size

    def even(ids: Sequence[int]) -> torch.Tensor:
        mask = torch.zeros(vocabulary, dtype=torch.bool)
        mask[len(ids) % 2 :: 2] = True
        return mask

    async def run() -> list[Completion]:
        engine = LocalEngine(model, max_batch_size=3, max_context_tokens=64)
        sampling = [
            SamplingParams(max_tokens=SIZE, stop_ids=frozenset(), seed=seed, temperature=1.0) for seed in (1, 2)
        ]
        plain = engine.generate((3, 4, 5), sampling[0])
        other = engine.generate((3, 4, 5), sampling[1], allowed=even if allowed else None)
        return list(await asyncio.gather(plain, other))

    return asyncio.run(run())


def test_only_allowed_tokens_are_sampled_and_others_are_untouched() -> None:
    (plain, free), (beside, bound) = sampled(False), sampled(True)
    assert plain.token_ids == beside.token_ids
    assert plain.behavior_logprobs == pytest.approx(beside.behavior_logprobs, abs=1e-5)
    assert [token % 2 for token in bound.token_ids] == [place % 2 for place in range(SIZE)]
    assert [token % 2 for token in free.token_ids] != [place % 2 for place in range(SIZE)]
    assert all(-10 < logprob <= 0 for logprob in bound.behavior_logprobs)
