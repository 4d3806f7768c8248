import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import CohereConfig, CohereForCausalLM, GraniteConfig, GraniteForCausalLM

from rlvr.core.batch import to_batch
from rlvr.core.packing import Layout, Microbatch, Packing, first_fit, microbatches, share_out
from rlvr.core.policy import forward
from rlvr.core.world import World
from rlvr.errors import UserError
from rlvr.models.layout import LAYOUTS, choose_layout
from rlvr.models.policy import HubPolicy
from rlvr.types import TokenBatch
from tests.unit.core.fakes import completion, episode, group
from tests.unit.core.tiny import ARCHITECTURES, SIZES, plain_logprobs, tiny_batch, tiny_policy


def packed_logprobs(policy: HubPolicy, batch: TokenBatch, layout: Layout, budget: int = 64) -> torch.Tensor:
    out = torch.zeros(batch.ids.shape)
    with torch.no_grad():
        for part in microbatches(batch, range(len(batch.ids)), Packing(layout=layout, max_tokens=budget)):
            out[part.rows, part.columns] = forward(policy, part, temperature=1.0).logprobs
    return out


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_pitfall_02_packed_logprobs_equal_single_rows(architecture: str, layout: Layout) -> None:
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
    prompt = (10, 11)
    batch = to_batch([group(episode((prompt, completion(12, 13))), episode((prompt, completion(14))))])
    (part,) = microbatches(batch, [0, 1], Packing(max_tokens=64))
    assert part.ids.tolist() == [[10, 11, 12, 13, 14]]
    assert part.positions.tolist() == [[0, 1, 2, 3, 2]]
    assert part.predictors.tolist() == [1, 2, 1]
    assert part.targets.tolist() == [12, 13, 14]
    assert part.allowed()[0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 0, 0, 1],
    ]


def test_a_line_of_a_single_row_is_plain() -> None:
    policy = tiny_policy()
    batch = tiny_batch(policy)
    parts = list(microbatches(batch, range(len(batch.ids)), Packing(max_tokens=1)))
    single = [part.allowed() is None for part in parts if len(set(part.rows.tolist())) == 1]
    assert any(single)
    assert all(single)
    assert all(part.allowed() is not None for part in parts if len(set(part.rows.tolist())) > 1)
    assert torch.allclose(packed_logprobs(policy, batch, "shared", 1), plain_logprobs(policy, batch) * batch.loss_mask)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("budget", [1, 30, 100, 10_000])
def test_every_sampled_token_is_predicted_exactly_once(layout: Layout, budget: int) -> None:
    batch = tiny_batch(tiny_policy(), num_groups=5, group_size=3)
    chosen = [0, 1, 2, 4, 9, 14]
    seen = torch.zeros_like(batch.ids)
    for part in microbatches(batch, chosen, Packing(layout=layout, max_tokens=budget)):
        assert len(part.ids) == 1 or part.ids.numel() <= budget
        seen.index_put_((part.rows, part.columns), torch.ones(len(part.rows), dtype=torch.int64), accumulate=True)
    expected = torch.zeros_like(seen)
    expected[chosen] = batch.loss_mask[chosen].long()
    assert torch.equal(seen, expected)


@pytest.mark.parametrize("num_shares", [2, 3, 4])
def test_shares_differ_by_at_most_one_piece(num_shares: int) -> None:
    rng = random.Random(num_shares)
    for _ in range(50):
        sizes = [rng.randint(1, 90) for _ in range(rng.randint(0, 40))]
        shares = share_out(sizes, num_shares)
        assert sorted(i for share in shares for i in share) == list(range(len(sizes)))
        assert all(share == sorted(share) for share in shares)
        sums = [sum(sizes[i] for i in share) for share in shares]
        assert max(sums) - min(sums) <= max(sizes, default=0)


def dealt(size: int, layout: Layout = "shared", *, rows: Sequence[int], in_lockstep: bool) -> list[list[Microbatch]]:
    """The microbatches of each of `size` ranks."""
    batch, packing = tiny_batch(tiny_policy()), Packing(layout=layout, max_tokens=40)
    worlds = [World(rank=rank, size=size) for rank in range(size)]
    return [list(microbatches(batch, rows, packing, world, in_lockstep=in_lockstep)) for world in worlds]


def places(parts: list[Microbatch]) -> list[tuple[int, int]]:
    return [place for part in parts for place in zip(part.rows.tolist(), part.columns.tolist(), strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_every_token_is_predicted_on_exactly_one_rank(size: int, layout: Layout) -> None:
    batch = tiny_batch(tiny_policy())
    ranks = [places(parts) for parts in dealt(size, layout, rows=range(12), in_lockstep=True)]
    assert sorted(place for rank in ranks for place in rank) == [tuple(p) for p in batch.loss_mask.nonzero().tolist()]
    rows = [{row for row, _ in rank} for rank in ranks]
    assert sum(map(len, rows)) == 12  # a row is never cut
    assert all(rows[:3])  # three groups: a fourth rank may have nothing


def test_in_lockstep_all_ranks_make_as_many_passes() -> None:
    for rows in ([0], [0, 1, 4], list(range(12))):
        ranks = dealt(4, in_lockstep=True, rows=rows)
        assert len({len(parts) for parts in ranks}) == 1
        free = dealt(4, in_lockstep=False, rows=rows)
        assert [places(parts) for parts in free] == [places(parts) for parts in ranks]
        assert sum(map(len, free)) < sum(map(len, ranks)) or len(rows) == 12
        empty = [part for parts in ranks for part in parts if not len(part.targets)]
        assert all(part.ids.shape == (1, 1) for part in empty)
    assert dealt(2, in_lockstep=True, rows=[]) == [[], []]


def test_bins_and_shares_by_hand() -> None:
    assert first_fit([3, 5, 2], 5) == [[1], [0, 2]]
    assert first_fit([3, 3, 3, 9], 5) == [[3], [0], [1], [2]]
    assert share_out([3, 5, 2, 1], 2) == [[1, 3], [0, 2]]
    assert share_out([5, 1, 1, 1], 2) == [[0], [1, 2, 3]]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_line_is_longer_than_the_longest_row(layout: Layout) -> None:
    batch = tiny_batch(tiny_policy(), num_groups=2, group_size=12)
    longest = int(batch.lengths.max())
    parts = list(microbatches(batch, range(24), Packing(layout=layout, max_tokens=longest)))
    assert max(part.ids.shape[1] for part in parts) == longest
    assert layout != "shared" or len(parts) < 24


def test_sharing_saves_the_repeated_prompts() -> None:
    batch = tiny_batch(tiny_policy(), num_groups=2, group_size=4)
    tokens = {}
    for layout in LAYOUTS:
        parts = microbatches(batch, range(len(batch.ids)), Packing(layout=layout, max_tokens=4096))
        tokens[layout] = sum(int((part.segments >= 0).sum()) for part in parts)
    repeated = 3 * int(batch.prompt_lengths[0] + batch.prompt_lengths[4])
    assert tokens["packed"] == int(batch.lengths.sum())
    assert tokens["shared"] == tokens["packed"] - repeated


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_the_self_test_accepts_sharing_where_it_is_exact(architecture: str) -> None:
    assert choose_layout(tiny_policy(architecture)) == "shared"


def long_prompts(prompt_tokens: int, completion_tokens: int = 24) -> TokenBatch:
    """Two groups of four rows."""
    draw = random.Random(0)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(draw.randrange(3, 7) for _ in range(count))

    prompts = [ids(prompt_tokens) for _ in range(2)]
    return to_batch(
        [group(*(episode((prompt, completion(*ids(completion_tokens)))) for _ in range(4))) for prompt in prompts]
    )


@pytest.mark.parametrize(
    ("prompt_tokens", "completion_tokens", "columns", "shape"),
    [
        (150, 24, None, (8, 174)),  # short lines: no room for a second completion
        (150, 24, 1024, (2, 246)),
        (20, 120, 1024, (8, 140)),  # attention to 500 columns costs more than four short prompts
    ],
)
def test_long_lines_hold_a_whole_group_where_that_costs_less(
    prompt_tokens: int, completion_tokens: int, columns: int | None, shape: tuple[int, int]
) -> None:
    batch = long_prompts(prompt_tokens, completion_tokens)
    [part] = microbatches(batch, range(8), Packing(max_tokens=4096, columns=columns))
    assert tuple(part.ids.shape) == shape
    assert len(part.targets) == 8 * completion_tokens


def test_long_lines_have_the_same_logprobs_and_fit_the_budget() -> None:
    policy, batch = tiny_policy(max_position_embeddings=256), long_prompts(150)
    expected, out = plain_logprobs(policy, batch) * batch.loss_mask, torch.zeros(batch.ids.shape)
    with torch.no_grad():
        for part in microbatches(batch, range(8), Packing(max_tokens=200, columns=1024)):
            assert part.ids.numel() <= 200
            out[part.rows, part.columns] = forward(policy, part, temperature=1.0).logprobs
    assert torch.allclose(out, expected, atol=1e-5)


def test_the_self_test_refuses_sharing_without_a_mask(monkeypatch, logged) -> None:
    policy = tiny_policy()
    inner = policy.model.base_model.forward
    monkeypatch.setattr(policy.model.base_model, "forward", lambda input_ids, **_: inner(input_ids, use_cache=False))
    assert choose_layout(policy) == "rows"
    assert "slower layout" in logged.getvalue()


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
