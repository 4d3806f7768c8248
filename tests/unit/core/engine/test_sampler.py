"""Truncation against hand-worked distributions, draws against frequencies."""

import pytest
import torch

from rlvr.core.engine.sampler import Draw, RowSampling, kept_tokens, sample, streams, uniform
from tests.unit.engines.tiny import sampling as params

HAND = torch.tensor([0.15, 0.5, 0.05, 0.3])  # not in order, so that sorting matters


def rows(seeds, **settings) -> RowSampling:
    return RowSampling.of([params(seed, max_tokens=1, **settings) for seed in seeds], torch.device("cpu"))


def draw(count: int = 20_000, probs: torch.Tensor = HAND, **settings) -> Draw:
    logits = probs.log().expand(count, -1)
    return sample(logits, torch.zeros(count, dtype=torch.int64), rows(range(count), **settings), truncates=True)


def kept(**settings) -> list[int]:
    return kept_tokens(HAND.double()[None], rows([0], **settings))[0].nonzero()[:, 0].tolist()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"top_p": 0.45}, [1]),
        ({"top_p": 0.6}, [1, 3]),
        ({"top_p": 0.9}, [0, 1, 3]),
        ({"top_p": 1e-9}, [1]),
        ({"top_p": 1.0}, [0, 1, 2, 3]),
        ({"top_k": 1}, [1]),
        ({"top_k": 3}, [0, 1, 3]),
        ({"top_k": 9}, [0, 1, 2, 3]),
        ({"min_p": 0.2}, [0, 1, 3]),
        ({"min_p": 0.5}, [1, 3]),
        ({"min_p": 1.0}, [1]),
        ({"top_k": 3, "top_p": 0.9}, [0, 1, 3]),
        ({"top_k": 2, "top_p": 0.62}, [1]),  # .5 / (.5 + .3) = .625 crosses already: renormalized after top_k
        ({"min_p": 0.5, "top_p": 0.63}, [1, 3]),
    ],
)
def test_which_tokens_truncation_keeps(settings, expected):
    assert kept(**settings) == expected


def test_pitfall_20_the_token_that_crosses_top_p_stays():
    drawn = draw(top_p=0.6)  # .5 < .6, so .3 is needed to cross and stays
    counts = torch.bincount(drawn.ids, minlength=4) / len(drawn.ids)
    expected = torch.tensor([0, 0.5, 0, 0.3]) / 0.8
    torch.testing.assert_close(counts, expected, atol=0.015, rtol=0)
    torch.testing.assert_close(drawn.sampling_logprobs, expected.log()[drawn.ids])
    torch.testing.assert_close(drawn.behavior_logprobs, HAND.log()[drawn.ids])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, HAND),
        ({"temperature": 0.5}, HAND**2 / (HAND**2).sum()),
        ({"top_k": 2}, torch.tensor([0, 0.5, 0, 0.3]) / 0.8),
        ({"min_p": 0.2}, torch.tensor([0.15, 0.5, 0, 0.3]) / 0.95),
        # p^2 = .0225 .25 .0025 .09: a min_p of .3 of the largest leaves two, of the untempered one it would leave three
        ({"temperature": 0.5, "min_p": 0.3}, torch.tensor([0, 0.25, 0, 0.09]) / 0.34),
    ],
)
def test_frequencies_and_logprobs_match_the_distribution(settings, expected):
    drawn = draw(**settings)
    counts = torch.bincount(drawn.ids, minlength=4) / len(drawn.ids)
    torch.testing.assert_close(counts, expected, atol=0.015, rtol=0)
    torch.testing.assert_close(drawn.sampling_logprobs, expected.log()[drawn.ids], atol=1e-5, rtol=0)


@pytest.mark.parametrize(("temperature", "probs"), [(0.5, HAND**2 / (HAND**2).sum()), (0.0, HAND)])
def test_pitfall_19_behavior_logprobs_are_at_the_temperature(temperature, probs):
    drawn = draw(50, temperature=temperature)
    torch.testing.assert_close(drawn.behavior_logprobs, probs.log()[drawn.ids])
    torch.testing.assert_close(drawn.sampling_logprobs, probs.log()[drawn.ids])
    assert temperature or (drawn.ids == 1).all()  # greedy takes the most likely token


def test_truncated_rows_do_not_change_the_others():
    logits = torch.randn(200, 50, generator=torch.Generator().manual_seed(0))
    mixed = rows(range(200), top_p=0.5)
    mixed.top_p[::2] = 1.0
    first = sample(logits, torch.arange(200), rows(range(200)), truncates=False)
    second = sample(logits, torch.arange(200), mixed, truncates=True)
    assert torch.equal(first.ids[::2], second.ids[::2])
    assert not torch.equal(first.ids, second.ids)
    torch.testing.assert_close(first.sampling_logprobs[::2], second.sampling_logprobs[::2])


def test_cutting_rows_into_chunks_changes_nothing(monkeypatch):
    logits = torch.randn(20, 50, generator=torch.Generator().manual_seed(0))
    arguments = (logits, torch.arange(20), rows(range(20), top_k=7))
    whole = sample(*arguments, truncates=True)
    monkeypatch.setattr("rlvr.core.engine.sampler.MAX_CHUNK_ELEMENTS", 150)
    parts = sample(*arguments, truncates=True)
    assert torch.equal(whole.ids, parts.ids)
    assert torch.equal(whole.sampling_logprobs, parts.sampling_logprobs)


def test_tokens_of_probability_zero_are_never_drawn():
    probs = torch.tensor([0.0, 0.4, 0.0, 0.6, 0.0])
    assert set(draw(5000, probs).ids.tolist()) == {1, 3}


def test_uniform_numbers_are_uniform_and_independent():
    numbers = uniform(streams(list(range(300))).repeat_interleave(300), torch.arange(300).repeat(300)).view(300, 300)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert numbers.unique().numel() == numbers.numel()
    shares = torch.histc(numbers.float(), 10, 0, 1) / numbers.numel()
    torch.testing.assert_close(shares, torch.full((10,), 0.1), atol=0.005, rtol=0)
    for by in (numbers, numbers.T):  # neighboring seeds, neighboring positions
        assert abs(torch.corrcoef(torch.stack([by[:-1].flatten(), by[1:].flatten()]))[0, 1]) < 0.01


def test_seeds_of_any_size_are_accepted():
    assert streams([0, 1, 2**63 - 1, 2**64 + 5, -1]).unique().numel() == 5


def test_logits_that_are_not_finite_are_noticed():
    logits = torch.tensor([[0.0, 1.0], [float("nan"), 0.0]])
    totals = sample(logits, torch.zeros(2, dtype=torch.int64), rows([0, 1]), truncates=False).totals
    assert totals.isfinite().tolist() == [True, False]


def test_pitfall_36_draws_are_those_of_splitmix64():
    """Its first outputs for the seed 0, https://prng.di.unimi.it/splitmix64.c: a seed gives the same tokens forever."""
    outputs = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    drawn = uniform(torch.zeros(3, dtype=torch.int64), torch.arange(3))
    assert drawn.tolist() == [(output >> 12) / 2**52 for output in outputs]
    (stream,) = streams([0]).tolist()
    assert stream % 2**64 == 0x5692161D100B05E5  # of 1
