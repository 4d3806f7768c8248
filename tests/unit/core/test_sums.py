import math
from dataclasses import replace

import pytest
import torch

from rlvr.algorithms.columns import Logprobs, OfPolicy
from rlvr.algorithms.objective import LossTerms
from rlvr.core.sums import Sums, teacher_metrics
from tests.unit.algorithms.cases import batch_of


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


def test_the_distance_to_a_teacher_is_that_of_known_tokens_in_the_loss() -> None:
    """The second row is not trained on, and the teacher has not seen the third token."""
    batch = batch_of([[1, 1, 1], [1, 1, 1]], [1.0, 0.0], behavior_logprobs=torch.tensor([[-1.0, -1, -1], [-9, -9, -9]]))
    batch = replace(batch, columns={"teacher": torch.tensor([[-2.0, -4.0, math.nan], [0, 0, 0]])})
    trained = torch.tensor([[True] * 3, [False] * 3])
    columns = {"teacher": Logprobs("start"), "entropy": OfPolicy("entropy")}
    assert teacher_metrics(batch, columns, trained) == {"policy/teacher_kl": 2.0}
    assert teacher_metrics(batch, columns, ~trained) == {"policy/teacher_kl": -9.0}
    assert teacher_metrics(batch, columns, trained & batch.columns["teacher"].isnan()) == {}
