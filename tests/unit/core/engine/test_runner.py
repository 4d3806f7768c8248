"""The slow path gives the same completions, and is taken where the fast one would be wrong."""

import asyncio

import pytest
import torch

from rlvr.core.engine import LocalEngine
from rlvr.core.engine.runner import CachedRunner, FullForwardRunner
from rlvr.core.engine.select import choose_runner, unfit
from rlvr.core.engine.shared_prefix import Grouping, engine_attention
from tests.unit.engines.tiny import ARCHITECTURES, assert_exact, generate, prompt, sampling, tiny_model


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_architectures_we_name_get_the_fast_path(name):
    model = tiny_model(name).eval()
    with torch.no_grad(), engine_attention(model):
        assert choose_runner(model) == (CachedRunner, None)


def test_the_slow_path_gives_the_same_completions(monkeypatch):
    model = tiny_model()
    requests = [(prompt(4 + i // 3), sampling(i, stop_ids=frozenset({5, 10}))) for i in range(9)]
    fast = generate(LocalEngine(model, max_batch_size=4, max_context_tokens=64), requests)
    monkeypatch.setattr("rlvr.core.engine.select.unfit", lambda config: "layers of kind mamba")
    with pytest.warns(UserWarning, match="LlamaForCausalLM has layers of kind mamba") as warned:
        engine = LocalEngine(model, max_batch_size=4, max_context_tokens=64)
    assert len(warned) == 1
    slow = generate(engine, requests)
    assert [c.token_ids for c in slow] == [c.token_ids for c in fast]
    assert [c.stop_reason for c in slow] == [c.stop_reason for c in fast]
    assert_exact(model, requests, slow)
    asyncio.run(engine.generate(prompt(4), sampling(0), session="a"))
    assert not engine._scheduler.parked


def test_a_cache_that_gives_other_logits_is_noticed_at_the_start(monkeypatch):
    attend = Grouping.attend
    monkeypatch.setattr(Grouping, "attend", lambda *arguments, **how: attend(*arguments, **how) * 0)
    model = tiny_model().eval()
    with torch.no_grad(), engine_attention(model):
        runner, reason = choose_runner(model)
    assert runner is FullForwardRunner
    assert reason is not None


def test_only_the_last_position_goes_through_the_head():
    model = tiny_model().eval()
    shapes = []
    model.get_output_embeddings().register_forward_hook(lambda module, args, output: shapes.append(output.shape))
    with torch.no_grad(), engine_attention(model):
        CachedRunner(model, 4).prefill([prompt(9), prompt(5)], [0, 0, 1, 1])
    assert shapes == [(2, 1, 40)]


def test_layers_that_no_cache_of_ours_fits_are_named():
    config = tiny_model("qwen3").config
    assert unfit(config) is None
    config.layer_types = ["linear_attention", "full_attention", "full_attention"]
    assert unfit(config) == "layers of kind linear_attention"
