from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import CohereConfig, CohereForCausalLM, GraniteConfig, GraniteForCausalLM

from rlvr.core.forward import forward
from rlvr.core.packing import Layout, first_fit, microbatches, share_out
from rlvr.errors import UserError
from rlvr.models.policy import HubPolicy
from rlvr.training.layout import LAYOUTS, choose_layout
from rlvr.types import TokenBatch
from tests.unit.core.tiny import ARCHITECTURES, SIZES, plain_logprobs, tiny_batch, tiny_policy


def packed_logprobs(policy: HubPolicy, batch: TokenBatch, layout: Layout, budget: int = 64) -> torch.Tensor:
    out = torch.zeros(batch.ids.shape)
    with torch.no_grad():
        for part in microbatches(batch, range(len(batch.ids)), budget_tokens=budget, layout=layout):
            out[part.rows, part.tokens] = forward(policy, part, temperature=1.0).logprobs
    return out


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_pitfall_02_packed_logprobs_equal_those_of_the_rows_alone(architecture: str, layout: Layout) -> None:
    policy = tiny_policy(architecture)
    batch = tiny_batch(policy)
    expected = plain_logprobs(policy, batch) * batch.loss_mask
    for budget in (20, 64, 4096):
        assert torch.allclose(packed_logprobs(policy, batch, layout, budget), expected, atol=1e-5)


def test_pitfall_02_a_segment_does_not_see_its_neighbors() -> None:
    policy = tiny_policy()
    batch = tiny_batch(policy)
    changed_ids = batch.ids.clone()
    changed_ids[0, batch.prompt_lengths[0] :] = 7
    before = packed_logprobs(policy, batch, "shared", 4096)
    after = packed_logprobs(policy, replace(batch, ids=changed_ids), "shared", 4096)
    assert torch.equal(before[1:], after[1:])
    assert not torch.equal(before[0], after[0])


def test_two_rows_share_their_prompt_as_in_the_docstring() -> None:
    batch = TokenBatch(
        ids=torch.tensor([[10, 11, 12, 13], [10, 11, 14, 0]]),
        lengths=torch.tensor([4, 3]),
        prompt_lengths=torch.tensor([2, 2]),
        loss_mask=torch.tensor([[False, False, True, True], [False, False, True, False]]),
        behavior_logprobs=torch.zeros(2, 4),
        rewards=torch.zeros(2),
        groups=torch.zeros(2, dtype=torch.int64),
        episodes=torch.arange(2),
        valid=torch.ones(2, dtype=torch.bool),
        truncated=torch.zeros(2, dtype=torch.bool),
    )
    (part,) = microbatches(batch, [0, 1], budget_tokens=64)
    assert part.ids.tolist() == [[10, 11, 12, 13, 14]]
    assert part.positions.tolist() == [[0, 1, 2, 3, 2]]
    assert part.predictors.tolist() == [1, 2, 1]
    assert part.targets.tolist() == [12, 13, 14]
    allowed = part.allowed()
    assert allowed is not None
    assert allowed[0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 0, 0, 1],
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("budget", [1, 30, 100, 10_000])
def test_every_sampled_token_is_predicted_exactly_once(layout: Layout, budget: int) -> None:
    batch = tiny_batch(tiny_policy(), num_groups=5, group_size=3)
    chosen = [0, 1, 2, 4, 9, 14]
    seen = torch.zeros_like(batch.ids)
    for part in microbatches(batch, chosen, budget_tokens=budget, layout=layout):
        assert len(part.ids) == 1 or part.ids.numel() <= budget
        seen.index_put_((part.rows, part.tokens), torch.ones(len(part.rows), dtype=torch.int64), accumulate=True)
    expected = torch.zeros_like(seen)
    expected[chosen] = batch.loss_mask[chosen].long()
    assert torch.equal(seen, expected)


def test_bins_and_shares_by_hand() -> None:
    assert first_fit([3, 5, 2], 5) == [[1], [0, 2]]
    assert first_fit([3, 3, 3, 9], 5) == [[3], [0], [1], [2]]
    assert share_out([3, 5, 2, 1], 2) == [[1, 3], [0, 2]]
    assert share_out([5, 1, 1, 1], 2) == [[0], [1, 2, 3]]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_line_is_longer_than_the_longest_row(layout: Layout) -> None:
    """With a shared prompt too: memory is planned for that length."""
    batch = tiny_batch(tiny_policy(), num_groups=2, group_size=12)
    longest = int(batch.lengths.max())
    parts = list(microbatches(batch, range(24), budget_tokens=longest, layout=layout))
    assert max(part.ids.shape[1] for part in parts) == longest
    assert layout != "shared" or len(parts) < 24


def test_sharing_saves_the_repeated_prompts() -> None:
    batch = tiny_batch(tiny_policy(), num_groups=2, group_size=4)
    tokens = {
        layout: sum(
            int((part.segments >= 0).sum())
            for part in microbatches(batch, range(len(batch.ids)), budget_tokens=4096, layout=layout)
        )
        for layout in LAYOUTS
    }
    repeated = 3 * int(batch.prompt_lengths[0] + batch.prompt_lengths[4])
    assert tokens["packed"] == int(batch.lengths.sum())
    assert tokens["shared"] == tokens["packed"] - repeated


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_the_self_test_accepts_sharing_where_it_is_exact(architecture: str) -> None:
    assert choose_layout(tiny_policy(architecture)) == "shared"


def test_the_self_test_refuses_sharing_for_a_model_that_ignores_the_mask(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    policy = tiny_policy()
    inner = policy.model.base_model.forward

    def without_mask(input_ids: torch.Tensor, use_cache: bool, **_: object) -> object:
        return inner(input_ids=input_ids, use_cache=use_cache)

    monkeypatch.setattr(policy.model.base_model, "forward", without_mask)
    assert choose_layout(policy) == "rows"
    assert "slower layout" in caplog.text


@pytest.mark.parametrize(
    ("model_class", "config"),
    [
        (GraniteForCausalLM, GraniteConfig(**SIZES, logits_scaling=4.0, embedding_multiplier=2.0)),
        (CohereForCausalLM, CohereConfig(**SIZES, logit_scale=0.25)),
    ],
)
def test_scaled_logits_are_scaled_by_the_trainer_too(model_class: Any, config: Any) -> None:
    torch.manual_seed(0)
    policy = HubPolicy(model=model_class(config).eval(), tokenizer=tiny_policy().tokenizer)
    assert choose_layout(policy) == "shared"


def test_a_model_whose_logprobs_we_cannot_compute_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tiny_policy()
    monkeypatch.setattr(HubPolicy, "logits", lambda self, hidden: self.model.get_output_embeddings()(hidden) * 0.5)
    with pytest.raises(UserError, match="LlamaForCausalLM cannot be trained"):
        choose_layout(policy)
