"""The slow path gives the same completions, and is taken where the fast one would be wrong."""

import asyncio

import pytest
import torch

from rlvr.engines.local import LocalEngine
from rlvr.engines.local.runner import CachedRunner, FullForwardRunner
from rlvr.engines.local.select import choose_runner
from rlvr.engines.local.shared_prefix import SharedPrefixCache, SharedPrefixRunner
from tests.unit.engines.tiny import ARCHITECTURES, plain_logprobs, prompt, sampling, tiny_model


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_architectures_we_name_get_the_fast_path(name):
    with torch.no_grad():
        runner, reason = choose_runner(tiny_model(name).eval())
    assert runner is SharedPrefixRunner
    assert reason is None


def no_sharing(*args, **kwargs):
    raise ValueError("attention with softcap cannot share prefixes")


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_model_that_cannot_share_prefixes_gets_the_same_completions_from_a_plain_slot_cache(name, monkeypatch):
    model = tiny_model(name)
    stop = frozenset(range(0, 40, 5))
    requests = [(prompt(4 + i // 3), sampling(i, stop_ids=stop)) for i in range(15)]
    shared = LocalEngine(model, max_batch_size=4, max_context_tokens=64).generate_batch(requests)
    monkeypatch.setattr(SharedPrefixCache, "attend", no_sharing)
    engine = LocalEngine(model, max_batch_size=4, max_context_tokens=64)
    assert type(engine._scheduler._runner) is CachedRunner

    async def two_turns(ids, settings, session):
        first = await engine.generate(ids, settings, session=session)
        ids = [*ids, *first.token_ids, 3]
        return first, ids, await engine.generate(ids, settings, session=session)

    async def run():
        return await asyncio.gather(*(two_turns(*request, i) for i, request in enumerate(requests)))

    for expected, (first, ids, second) in zip(shared, asyncio.run(run()), strict=True):
        assert first.token_ids == expected.token_ids
        logprobs = plain_logprobs(model, ids, second)
        torch.testing.assert_close(torch.tensor(second.behavior_logprobs), logprobs, atol=1e-5, rtol=0)


def test_the_slow_path_gives_the_same_completions_after_one_warning(monkeypatch):
    model = tiny_model()
    requests = [(prompt(4 + i // 3), sampling(i, stop_ids=frozenset({5, 10}))) for i in range(9)]
    fast = LocalEngine(model, max_batch_size=4, max_context_tokens=64).generate_batch(requests)
    monkeypatch.setattr("rlvr.engines.local.select.unsupported_attention", lambda config: "layers of kind mamba")
    with pytest.warns(UserWarning, match="LlamaForCausalLM has layers of kind mamba") as warned:
        engine = LocalEngine(model, max_batch_size=4, max_context_tokens=64)
    assert len(warned) == 1
    slow = engine.generate_batch(requests)
    assert [c.token_ids for c in slow] == [c.token_ids for c in fast]
    assert [c.stop_reason for c in slow] == [c.stop_reason for c in fast]
    for (ids, _), completion in zip(requests, slow, strict=True):
        expected = plain_logprobs(model, ids, completion)
        torch.testing.assert_close(torch.tensor(completion.behavior_logprobs), expected, atol=1e-5, rtol=0)
    asyncio.run(engine.generate(prompt(4), sampling(0), session="a"))
    assert engine._scheduler.num_parked == 0


def test_a_cache_that_gives_other_logits_is_noticed_at_the_start(monkeypatch):
    monkeypatch.setattr(SharedPrefixCache, "attend", lambda self, query, keys, values, mask, scaling: query * 0)
    monkeypatch.setattr(CachedRunner, "_mask", lambda self, positions, num_columns: None)
    with torch.no_grad():
        runner, reason = choose_runner(tiny_model().eval())
    assert runner is FullForwardRunner
    assert reason is not None


def test_only_the_last_position_goes_through_the_head():
    model = tiny_model().eval()
    shapes = []
    model.get_output_embeddings().register_forward_hook(lambda module, args, output: shapes.append(output.shape))
    with torch.no_grad():
        CachedRunner(model, 4).prefill(0, [prompt(9), prompt(5)], [0, 0, 1, 1])
    assert shapes == [(2, 1, 40)]
