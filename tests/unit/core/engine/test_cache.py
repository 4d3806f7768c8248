"""Slots that grow, move, and are saved and put back; rows that share a prefix."""

from inspect import signature

import pytest
import torch
from transformers import LlamaForCausalLM

import rlvr.core.engine.cache as cache_module
from rlvr.core.engine import LocalEngine
from rlvr.core.engine.cache import Append, SlotCache, Slots
from rlvr.core.engine.runner import CachedRunner
from rlvr.core.engine.select import probe
from rlvr.core.engine.shared_prefix import Grouping, engine_attention
from tests.unit.engines.tiny import assert_exact, play, prompt, tiny_model

OWN_NAME = "cache" if "cache" in signature(LlamaForCausalLM.forward).parameters else "past_key_values"


def states(rows: int, tokens: int, start: float) -> torch.Tensor:
    """`[rows, 2, tokens, 3]`, every number another one."""
    return torch.arange(rows * 2 * tokens * 3, dtype=torch.float32).view(rows, 2, tokens, 3) + start


def filled() -> tuple[SlotCache, torch.Tensor]:
    """Four columns of three rows, each of its own numbers."""
    cache = SlotCache(8)
    cache.rows.reserve(3, 4)
    columns = torch.arange(4).expand(3, 4)
    cache.start_rows(Append(first_row=0, positions=columns, num_columns=4))
    first = states(3, 4, 100)
    cache.update(first, -first, 0)
    return cache, first


def test_new_tokens_go_to_each_rows_own_column():
    cache, first = filled()
    cache.rows.reserve(3, 40)  # grows and keeps
    new = states(3, 1, 1000)
    cache.start_rows(Append(first_row=0, positions=torch.tensor([[4], [2], [3]]), num_columns=5))
    keys, values = cache.update(new, -new, 0)
    assert torch.equal(values, -keys)
    for row, column in enumerate([4, 2, 3]):
        expected = torch.cat([first[row], torch.zeros(2, 1, 3)], 1)
        expected[:, column] = new[row, :, 0]
        assert torch.equal(keys[row], expected)


def test_a_saved_row_can_be_put_into_any_slot_of_any_cache():
    cache, first = filled()
    saved = cache.rows.save([2, 0], [3, 4])
    cache.rows.move(torch.tensor([1]), torch.tensor([2]), 4)
    assert torch.equal(cache.rows.buffers[0, 0][2, :, :4], first[1])
    empty = Slots(3)
    empty.reserve(3, 8)
    empty.load(1, [[(planes, states[:2]) for planes, states in saved[0]], saved[1]])
    for which, sign in ((0, 1), (1, -1)):
        found = empty.buffers[0, which]
        assert torch.equal(found[1, :, :2], sign * first[2, :, :2])
        assert torch.equal(found[2, :, :4], sign * first[0])
        assert not found[1, :, 2:].any()  # what was not asked for is not there, and is a number


def test_layers_of_different_shapes_are_saved_and_put_back():
    cache = SlotCache(4)
    cache.prefixes.reserve(2, 4)
    cache.start_prompts(0)
    narrow, wide = states(2, 3, 5), torch.arange(2 * 1 * 3 * 7, dtype=torch.float32).view(2, 1, 3, 7)
    cache.update(narrow, wide, 0)
    cache.update(wide, 2 * wide, 1)
    saved = cache.prefixes.save([1], [3])
    assert [states.shape for _, states in saved[0]] == [(3, 1, 2, 3), (3, 3, 1, 7)]
    other = Slots(4)
    other.reserve(3, 4)
    other.load(2, saved)
    planes = {(0, 0): narrow, (0, 1): wide, (1, 0): wide, (1, 1): 2 * wide}
    assert all(torch.equal(other.buffers[plane][2, :, :3], wanted[1]) for plane, wanted in planes.items())


def test_the_example_of_grouping_spreads_and_collects():
    members, places = torch.tensor([0, 1, 2, 0]), torch.tensor([0, 1, 2])
    grouping = Grouping(prefixes=Slots(2), num_prefixes=2, num_columns=4, starts=places, members=members, places=places)
    rows = torch.randn(3, 4, 2, 5)
    spread = grouping.spread(rows)
    assert spread.shape == (2, 4, 4, 5)
    assert torch.equal(spread[0, :, 2:], rows[1])
    assert torch.equal(spread[1, :, :2], rows[2])
    assert torch.equal(grouping.collect(spread, 2), rows)


@pytest.mark.parametrize("sinks", [None, torch.tensor([-1.0, 0.0, 0.5, 2.0])])
def test_attention_without_prefixes_by_hand(sinks):
    """Of four heads over two heads of keys; a sink takes a share of the probability and gives no value."""
    grouping = Grouping(prefixes=Slots(1), num_prefixes=0, num_columns=0, starts=torch.zeros(2, dtype=torch.int64))
    query, keys, values = torch.randn(2, 4, 1, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)
    found = grouping.attend(0, query, keys, values, torch.zeros(1), s_aux=sinks)
    powers = ((query * keys.repeat_interleave(2, dim=1)).sum(-1) / 8**0.5).exp()
    shares = powers / (powers.sum(-1) + (0 if sinks is None else sinks.exp()))[..., None]
    expected = (shares[..., None] * values.repeat_interleave(2, dim=1)).sum(2)
    torch.testing.assert_close(found[:, 0], expected)


class Forgetful(CachedRunner):
    """Nobody sees a prompt's first token."""

    def _mask(self, allowed, positions, key_positions):
        return super()._mask(allowed.index_fill(3, torch.tensor(0), False), positions, key_positions)


class UnluckyOnce(CachedRunner):
    """The first of its kind rounds badly."""

    made = 0

    def __init__(self, *words):
        super().__init__(*words)
        type(self).made += 1
        self.scale = 1 + (0.02 if self.made == 1 else 0)

    def decode(self, ids, positions):
        return super().decode(ids, positions) * self.scale


def test_chance_on_one_text_does_not_cost_the_cache():
    with torch.inference_mode(), engine_attention(model := tiny_model().eval()):
        assert probe(model, UnluckyOnce) is None
        assert UnluckyOnce.made == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [1.0, 0.2, 0.1])
def test_a_wrong_cache_is_seen_where_logits_are_flat_too(dtype, scale):
    model = tiny_model().eval().to(dtype).requires_grad_(False)
    for matrix in (p for p in model.parameters() if p.dim() == 2):
        matrix.mul_(scale)
    with torch.inference_mode(), engine_attention(model):
        assert probe(model, CachedRunner) is None
        assert probe(model, Forgetful) is not None


def old_name(forward):
    return lambda *args, past_key_values=None, **more: forward(*args, **{OWN_NAME: past_key_values}, **more)


def new_name(forward):
    return lambda *args, cache=None, **more: forward(*args, **{OWN_NAME: cache}, **more)


@pytest.mark.parametrize("renamed", [old_name, new_name])
def test_a_model_gets_the_cache_by_its_own_name(renamed):
    """`cache` from transformers 5.24 on."""
    model = tiny_model().eval()
    model.forward = renamed(model.forward)
    with torch.inference_mode(), engine_attention(model):
        assert probe(model, CachedRunner) is None


def test_the_dtype_of_keys_and_values_is_one_setting(monkeypatch):
    monkeypatch.setattr(cache_module, "KV_DTYPE", torch.bfloat16)
    model = tiny_model()
    with torch.inference_mode(), engine_attention(model):
        assert probe(model.eval(), CachedRunner) is None  # its rounding is expected
    engine = LocalEngine(model, max_batch_size=4, max_context_tokens=64)
    assert_exact(model, *play(engine, [prompt(9)], max_tokens=3), atol=0.1)
    buffers = engine._scheduler.rows.runner._cache.rows.buffers
    assert {buffer.dtype for buffer in buffers.values()} == {torch.bfloat16}


def test_buffers_of_another_batch_are_never_taken_for_those_of_the_last():
    """Recorded steps hold the addresses of buffers: each change counts up, also that to none."""
    slots, seen = Slots(4, fixed=True), [0]
    for reuse in (False, True, False):
        for num_slots, num_tokens in ((1, 4), (3, 40)):
            slots.reserve(num_slots, num_tokens)
            slots.buffer((0, 0), states(num_slots, 1, 0.0))
            seen.append(slots.generation)
        slots.clear(reuse=reuse)
        seen.append(slots.generation)
    assert seen == sorted(seen)
    assert len({*seen}) == len(seen) - 3, "with reuse, the same buffers stay"
