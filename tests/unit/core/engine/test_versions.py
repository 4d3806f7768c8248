"""New weights while completions are being sampled: a copy of the policy, and the version of every token."""

import asyncio
import copy

import pytest
import torch

from rlvr.core.engine import LocalEngine, scheduler
from tests.unit.engines.tiny import generate, plain_logprobs, prompt, sampling, tiny_model


def count_tokens(engine: LocalEngine) -> list[int]:
    """Tokens of every pass from now on."""
    seen: list[int] = []
    embeddings = engine._model.get_input_embeddings()
    embeddings.register_forward_pre_hook(lambda module, args: seen.append(args[0].numel()))
    return seen


def test_pitfall_30_a_copy_samples_with_its_last_load(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = [tiny_model(seed=seed) for seed in range(4)]
    policy = copy.deepcopy(versions[0])
    sampler = copy.deepcopy(policy).requires_grad_(False)
    engine = LocalEngine(sampler, max_batch_size=4, max_context_tokens=64, weights=policy.named_parameters)

    async def until(num_tokens: int) -> None:
        while max((len(r.token_ids) for r in engine._scheduler.running), default=0) < num_tokens:
            await asyncio.sleep(0)
            assert engine._scheduler.has_work, "the engine has failed"

    def train(version: int, told: bool) -> None:
        policy.load_state_dict(versions[version].state_dict())
        if told:
            engine.load_weights(version)

    async def run():
        requests = [engine.generate(prompt(5 + i), sampling(i, max_tokens=9 + i)) for i in range(3)]
        running = [asyncio.ensure_future(request) for request in requests]
        await until(4)
        train(1, told=False)  # the trainer works: the copy does not see it
        await until(6)
        monkeypatch.setattr(scheduler, "MAX_PREFILL_TOKENS", 22)  # rows in flight are computed anew in two passes
        train(1, told=True)
        train(2, told=True)  # two loads between two tokens
        seen = count_tokens(engine)
        await until(8)
        assert [count for count in seen if count > 3] == [2 * 11, 12]  # and once, not before every token
        train(3, told=True)
        return await asyncio.gather(*running)

    for number, completion in enumerate(asyncio.run(run())):
        count = len(completion.token_ids)
        assert completion.policy_version == 0
        assert completion.version_changes == ((6, 2), (8, 3))
        assert completion.policy_versions == (0,) * 6 + (2,) * 2 + (3,) * (count - 8)
        behavior = torch.tensor(completion.behavior_logprobs)
        for part, version in ((slice(0, 6), 0), (slice(6, 8), 2), (slice(8, count), 3)):
            expected = plain_logprobs(versions[version], prompt(5 + number), completion)[part]
            torch.testing.assert_close(behavior[part], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("max_tokens", [1, 4])
def test_a_completion_before_the_next_load_has_one_version(max_tokens: int) -> None:
    engine = LocalEngine(tiny_model(), max_batch_size=2, max_context_tokens=64)
    engine.load_weights(3)
    [done] = generate(engine, [(prompt(5), sampling(0, max_tokens=max_tokens))])
    engine.load_weights(4)
    assert done.policy_versions == (3,) * max_tokens
    assert done.version_changes == ()
