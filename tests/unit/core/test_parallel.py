"""Gradients and weights of one process; real ranks are in tests/system/test_parallel.py."""

import pytest
import torch

from rlvr.core.parallel import DataParallel, Float16
from rlvr.core.world import World
from tests.unit.core.tiny import tiny_policy


def test_the_gradient_of_one_process_is_clipped_as_torch_does_it() -> None:
    policy = tiny_policy()
    for index, parameter in enumerate(policy.parameters()):
        parameter.grad = torch.full_like(parameter, 0.1 * index)
    expected = torch.cat([p.grad.flatten() for p in policy.parameters()]).norm()
    parallel = DataParallel()
    assert parallel.clip(policy, 1.0) == pytest.approx(expected.item(), rel=1e-5)
    assert parallel.clip(policy, 1.0) == pytest.approx(1.0, rel=1e-5)


def test_changed_weights_are_counted_in_every_tensor() -> None:
    policy = tiny_policy()
    parallel = DataParallel()
    before = parallel.weight_sample(policy, per_tensor=10)
    assert len(before) == 10 * len(list(policy.parameters()))
    with torch.no_grad():
        next(policy.parameters()).view(-1)[:5] += 1
    after = parallel.weight_sample(policy, per_tensor=10)
    assert parallel.changed_share(before, after) == pytest.approx(5 / len(before))
    assert len(DataParallel(World(rank=1, size=2)).weight_sample(policy)) == 0


@pytest.mark.parametrize(
    ("weights", "first"), [([0.01, 0.5], 2.0), ([1.0], 1.0), ([0.3], 4.0), ([3.0], 0.5), ([0.0], 2.0**24)]
)
def test_pitfall_33_half_precision_is_scaled_by_powers_of_two(weights: list[float], first: float) -> None:
    """Until the largest weight is between 1 and 2, then 16 times less at each overflow, down to where all is lost."""
    scales = list(Float16().loss_scales(torch.tensor(weights)))
    assert scales == [first / 16**k for k in range(7)]
