"""Slots that grow, move, and are saved and put back; rows that share a prefix."""

import torch

from rlvr.core.engine.cache import Append, SlotCache, Slots, Stored
from rlvr.core.engine.shared_prefix import Grouping


def states(rows: int, tokens: int, start: float) -> torch.Tensor:
    """`[rows, 2, tokens, 3]`, every number another one."""
    return torch.arange(rows * 2 * tokens * 3, dtype=torch.float32).view(rows, 2, tokens, 3) + start


def filled() -> tuple[SlotCache, torch.Tensor]:
    """Four columns of three rows, each of its own numbers."""
    cache = SlotCache(8)
    cache.rows.reserve(3, 4)
    columns = torch.arange(4).expand(3, 4)
    cache.start(Append(first_row=0, positions=columns, num_columns=4))
    first = states(3, 4, 100)
    cache.update(first, -first, 0)
    return cache, first


def test_new_tokens_go_to_each_rows_own_column():
    cache, first = filled()
    cache.rows.reserve(3, 40)  # grows and keeps
    new = states(3, 1, 1000)
    cache.start(Append(first_row=0, positions=torch.tensor([[4], [2], [3]]), num_columns=5))
    keys, values = cache.update(new, -new, 0)
    assert torch.equal(values, -keys)
    for row, column in enumerate([4, 2, 3]):
        expected = torch.cat([first[row], torch.zeros(2, 1, 3)], 1)
        expected[:, column] = new[row, :, 0]
        assert torch.equal(keys[row], expected)


def stored(slots: Slots, rows: list[int], lengths: list[int]) -> list[Stored]:
    planes, gathered = slots.gather(rows, max(lengths))
    return [Stored(planes=planes, tensors=[g[i, :length] for g in gathered]) for i, length in enumerate(lengths)]


def test_a_saved_row_can_be_put_into_any_slot_of_any_cache():
    cache, first = filled()
    saved = stored(cache.rows, [2, 0], [3, 4])
    cache.rows.move(torch.tensor([1]), torch.tensor([2]), 4)
    assert torch.equal(cache.rows.buffers[0, 0][2, :, :4], first[1])
    empty = Slots(3)
    empty.reserve(3, 8)
    empty.load(1, saved, [2, 4])
    for which, sign in ((0, 1), (1, -1)):
        found = empty.buffers[0, which]
        assert torch.equal(found[1, :, :2], sign * first[2, :, :2])
        assert torch.equal(found[2, :, :4], sign * first[0])
        assert not found[1, :, 2:].any()  # what was not asked for is not there, and is a number


def test_layers_of_different_shapes_are_saved_and_put_back():
    cache = SlotCache(4)
    cache.prefixes.reserve(2, 4)
    cache.start(0)
    narrow, wide = states(2, 3, 5), torch.arange(2 * 1 * 3 * 7, dtype=torch.float32).view(2, 1, 3, 7)
    cache.update(narrow, wide, 0)
    cache.update(wide, 2 * wide, 1)
    saved = stored(cache.prefixes, [1], [3])
    assert [tensor.shape for tensor in saved[0].tensors] == [(3, 1, 2, 3), (3, 3, 1, 7)]
    other = Slots(4)
    other.reserve(3, 4)
    other.load(2, saved, [3])
    for plane, wanted in {(0, 0): narrow, (0, 1): wide, (1, 0): wide, (1, 1): 2 * wide}.items():
        assert torch.equal(other.buffers[plane][2, :, :3], wanted[1])


def test_the_example_of_grouping_spreads_and_collects():
    members, places = torch.tensor([0, 1, 2, 0]), torch.tensor([0, 1, 2])
    grouping = Grouping(prefixes=Slots(2), num_prefixes=2, num_columns=4, members=members, places=places)
    rows = torch.randn(3, 4, 2, 5)
    spread = grouping.spread(rows)
    assert spread.shape == (2, 4, 4, 5)
    assert torch.equal(spread[0, :, 2:], rows[1])
    assert torch.equal(spread[1, :, :2], rows[2])
    assert torch.equal(grouping.collect(spread, 2), rows)
