"""How checks compare: the largest difference, where it counts."""

import math

import torch

from rlvr.checks.patient import difference, skip, verdict
from tests.unit.core.tiny import tiny_batch, tiny_policy


def test_the_largest_difference_is_that_of_a_sampled_token() -> None:
    batch = tiny_batch(tiny_policy())
    (row, column), other = batch.loss_mask.nonzero()[3].tolist(), batch.loss_mask.nonzero()[5].tolist()
    first, second = torch.zeros(batch.ids.shape), torch.zeros(batch.ids.shape)
    second[row, column], second[tuple(other)] = -0.5, 0.25
    second[~batch.loss_mask] = 9.0  # not sampled
    where = {"token_id": int(batch.ids[row, column]), "position": column, "logprobs": [0.0, -0.5]}
    assert difference(batch, first, second) == (0.5, where)
    second[tuple(other)] = math.nan
    gap, where = difference(batch, first, second)
    assert (gap, where["position"]) == (math.inf, other[1])


def test_a_check_that_fails_has_a_remedy() -> None:
    bad, good = (verdict(wrong, "bad", "good", "do this", count=3) for wrong in (True, False))
    assert (bad.status, bad.says, bad.remedy, bad.evidence) == ("fail", "bad", "do this", {"count": 3})
    assert (good.status, good.says, good.remedy, good.evidence) == ("ok", "good", "", {"count": 3})
    assert (skip("why").status, skip("why").says) == ("skipped", "why")
