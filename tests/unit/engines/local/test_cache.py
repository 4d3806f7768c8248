"""Slots that grow, move, and are saved and put back; rows that share a prefix."""

import torch

from rlvr.engines.local.cache import Append, Fresh, SlotCache
from rlvr.engines.local.shared_prefix import Grouping


def states(rows: int, tokens: int, start: float) -> torch.Tensor:
    """`[rows, 2, tokens, 3]`, every number another one."""
    return torch.arange(rows * 2 * tokens * 3, dtype=torch.float32).view(rows, 2, tokens, 3) + start


def filled() -> tuple[SlotCache, torch.Tensor]:
    cache = SlotCache(8)
    cache.reserve(3, 4)
    cache.start(Fresh(first_row=0, copies=torch.tensor([0, 0, 1]), group_size=None))
    fresh = states(2, 4, 100)
    cache.update(fresh, -fresh, 0)
    return cache, fresh


def test_a_fresh_sequence_goes_to_every_copy_and_new_tokens_to_each_rows_own_column():
    cache, fresh = filled()
    cache.reserve(3, 40)  # grows and keeps
    new = states(3, 1, 1000)
    cache.start(Append(first_row=0, positions=torch.tensor([[4], [2], [3]]), num_columns=5))
    keys, values = cache.update(new, -new, 0)
    assert torch.equal(values, -keys)
    for row, (source, column) in enumerate([(0, 4), (0, 2), (1, 3)]):
        expected = torch.cat([fresh[source], torch.zeros(2, 1, 3)], 1)
        expected[:, column] = new[row, :, 0]
        assert torch.equal(keys[row], expected)


def test_regular_groups_are_stored_as_any_other():
    copies = torch.tensor([0, 0, 1, 1])
    buffers = []
    for group_size in (2, None):
        cache = SlotCache(4)
        cache.reserve(4, 4)
        cache.start(Fresh(first_row=0, copies=copies, group_size=group_size))
        cache.update(states(2, 3, 1), states(2, 3, 50), 0)
        buffers.append(cache.buffers[0])
    assert torch.equal(buffers[0][0], buffers[1][0])
    assert torch.equal(buffers[0][1], buffers[1][1])


def test_a_saved_row_can_be_put_into_any_slot_of_any_cache():
    cache, fresh = filled()
    stored = cache.save([2, 0], [3, 4])
    cache.move(torch.tensor([1]), torch.tensor([2]), 4)
    assert torch.equal(cache.buffers[0][0][2, :, :4], fresh[0])
    empty = SlotCache(3)
    empty.reserve(3, 8)
    empty.load(1, stored, [2, 4])
    for keys_or_values, sign in zip(empty.buffers[0], (1, -1), strict=True):
        assert torch.equal(keys_or_values[1, :, :2], sign * fresh[1, :, :2])
        assert torch.equal(keys_or_values[2, :, :4], sign * fresh[0])
        assert not keys_or_values[1, :, 2:].any()  # what was not asked for is not there, and is a number


def test_layers_of_different_shapes_are_saved_and_put_back():
    cache = SlotCache(4)
    cache.reserve(2, 4)
    cache.start(Fresh(first_row=0, copies=torch.tensor([0, 1]), group_size=1))
    narrow, wide = states(2, 3, 5), torch.arange(2 * 1 * 3 * 7, dtype=torch.float32).view(2, 1, 3, 7)
    cache.update(narrow, -narrow, 0)
    cache.update(wide, 2 * wide, 1)
    stored = cache.save([1], [3])
    assert [tensor.shape for tensor in stored[0].tensors] == [(3, 2, 2, 3), (3, 2, 1, 7)]
    other = SlotCache(4)
    other.reserve(3, 4)
    other.load(2, stored, [3])
    expected = {0: (narrow, -narrow), 1: (wide, 2 * wide)}
    for layer, pair in expected.items():
        for found, wanted in zip(other.buffers[layer], pair, strict=True):
            assert torch.equal(found[2, :, :3], wanted[1])


def test_the_example_of_grouping_spreads_and_collects():
    grouping = Grouping(
        num_prefixes=2, num_columns=4, members=torch.tensor([0, 1, 2, 0]), places=torch.tensor([0, 1, 2])
    )
    rows = torch.randn(3, 4, 2, 5)
    spread = grouping.spread(rows)
    assert spread.shape == (2, 4, 4, 5)
    assert torch.equal(spread[0, :, 2:], rows[1])
    assert torch.equal(spread[1, :, :2], rows[2])
    assert torch.equal(grouping.collect(spread, 2), rows)
