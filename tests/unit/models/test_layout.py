"""The layout of rows by architecture: the model's own logprobs, whatever its layers, or one sentence."""

import asyncio
from typing import Any

import pytest
import torch
import transformers as hf
from transformers import AutoModelForCausalLM, PretrainedConfig

from rlvr.core.engine import LocalEngine
from rlvr.core.packing import Packing, microbatches
from rlvr.core.policy import forward
from rlvr.errors import UserError
from rlvr.models.layout import choose_layout, computes_logprobs
from rlvr.models.policy import HubPolicy
from rlvr.serve.prompt_logprobs import prompt_logprobs
from tests.unit.core.tiny import plain_logprobs, tiny_batch, tiny_policy
from tests.unit.engines.tiny import assert_exact, generate, prompt, sampling

SIZES: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "pad_token_id": 0,
}
HEADS = {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 16}
LONGROPE = {
    "rope_scaling": {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [3.0] * 4},
    "original_max_position_embeddings": 24,
}


def policy_of(config: type[PretrainedConfig], **more: Any) -> HubPolicy:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config(**SIZES | more)).eval()
    return HubPolicy(model=model, tokenizer=tiny_policy().tokenizer)


@pytest.mark.parametrize(
    ("config", "more", "layout"),
    [
        (hf.MambaConfig, {}, "rows"),
        (hf.FalconMambaConfig, {}, "rows"),
        (hf.Lfm2Config, {"layer_types": ["conv", "full_attention"]}, "rows"),
        (hf.Phi3Config, LONGROPE, "alone"),
    ],
)
def test_logprobs_are_the_models_own_in_the_chosen_layout(
    config: type[PretrainedConfig], more: dict[str, Any], layout: str
) -> None:
    policy = policy_of(config, **more)
    assert choose_layout(policy) == layout
    batch = tiny_batch(policy, num_groups=3, group_size=3)
    expected, out = plain_logprobs(policy, batch) * batch.loss_mask, torch.zeros(batch.ids.shape)
    with torch.no_grad():
        for part in microbatches(batch, range(len(batch.ids)), Packing(layout=choose_layout(policy), max_tokens=4096)):
            out[part.rows, part.columns] = forward(policy, part, temperature=1.0).logprobs
    assert torch.allclose(out, expected, atol=1e-4)


@pytest.mark.parametrize(
    ("config", "more"),
    [
        (hf.FalconH1Config, HEADS | {"lm_head_multiplier": 0.3}),  # scales its logits by itself
        (hf.Llama4TextConfig, {"head_dim": 16, "num_local_experts": 2, "intermediate_size_mlp": 64}),
        (hf.MptConfig, {"d_model": 32, "n_heads": 2, "n_layers": 2}),
    ],
)
def test_an_architecture_that_the_trainer_cannot_compute_is_one_sentence(
    config: type[PretrainedConfig], more: dict[str, Any]
) -> None:
    policy = policy_of(config, **more)
    with pytest.raises(UserError, match=r"cannot be trained: .*; use another architecture$"):
        choose_layout(policy)


@pytest.mark.parametrize(
    ("config", "more", "batched"),
    [
        (hf.LlamaConfig, {}, True),
        (hf.FalconH1Config, HEADS | {"lm_head_multiplier": 0.3}, False),
        (hf.Llama4TextConfig, {"head_dim": 16, "num_local_experts": 2, "intermediate_size_mlp": 64}, False),
        (hf.Phi3Config, LONGROPE, False),
    ],
)
def test_logprobs_of_prompts_are_those_of_the_models_own_forward_pass(
    config: type[PretrainedConfig], more: dict[str, Any], batched: bool
) -> None:
    policy = policy_of(config, **more)
    assert computes_logprobs(policy) == batched
    prompts = [(10, 11, 12), tuple(range(3, 40)), (4, 59)]
    seen = {k: v for part in prompt_logprobs(policy, prompts, 2, batched=batched) for k, v in part.items()}
    for number, ids in enumerate(prompts):
        with torch.no_grad():
            logits = policy.model(input_ids=torch.tensor([ids])).logits[0].float()
        own = torch.log_softmax(logits[:-1], -1)
        values, likely = seen[number]
        assert values == pytest.approx(own.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist(), abs=1e-4)
        assert [list(top) for _, top in likely] == [pytest.approx(row.topk(2).values.tolist(), abs=1e-4) for row in own]


def test_completions_do_not_depend_on_the_length_of_their_neighbours() -> None:
    """Phi's longrope takes other frequencies where the longest row of a pass is long."""
    model = policy_of(hf.Phi3Config, **LONGROPE).model
    with pytest.warns(UserWarning, match="rotary positions that depend on the longest row"):
        engine = LocalEngine(model, max_batch_size=4, max_context_tokens=64)
    requests = [(prompt(4), sampling(7)), (prompt(40), sampling(8))]
    assert_exact(model, requests, generate(engine, requests))
    asyncio.run(engine.generate(prompt(4), sampling(0)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_of_any_precision_is_packed_and_one_without_its_mask_is_not(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tiny_policy()
    policy.model.to(dtype)
    assert choose_layout(policy) == "shared"
    hidden = HubPolicy.hidden
    monkeypatch.setattr(HubPolicy, "hidden", lambda self, ids, positions=None, allowed=None: hidden(self, ids))
    assert choose_layout(policy) == "rows"
