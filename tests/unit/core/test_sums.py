import pytest
import torch

from rlvr.algorithms.objective import LossTerms
from rlvr.core.sums import Sums


def test_a_step_of_two_updates_is_their_mean() -> None:
    sums = Sums()
    for loss, ratio, tokens, norm in ((1.0, 6.0, 4.0, 3.0), (2.0, 2.0, 4.0, 1.0)):
        terms = {"ratio": torch.tensor(ratio), "tokens": torch.tensor(tokens)}
        part = Sums()
        part.add_terms(LossTerms(loss=torch.tensor(loss), sums=terms), rows=torch.arange(2))
        part.add_update(norm, num_sampled=8)
        sums.add(part)
    found = sums.metrics()
    expected = {"loss/total": 1.5, "policy/ratio": 1.0, "policy/grad_norm": 2.0, "policy/updates": 2.0}
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert found["policy/trained_tokens"] == 8.0
    assert found["policy/trained_token_share"] == 0.5
