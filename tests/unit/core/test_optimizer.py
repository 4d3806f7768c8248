import math
from functools import partial
from typing import Any

import pytest
import torch

from rlvr.core.optimizer import adamw, learning_rate


def rates(schedule: str, *, warmup: int = 0, steps: int = 5, final: float = 0.1, count: int = 0) -> list[float]:
    """The learning rates of the first `count` or of all steps, with a peak of 2."""
    rate = partial(learning_rate, peak=2.0, warmup_steps=warmup, final_share=final, schedule=schedule, max_steps=steps)
    return [rate(step) for step in range(count or steps)]


COSINE = 2.0 * (0.2 + 0.8 * (1 + math.cos(math.pi / 2)) / 2)


@pytest.mark.parametrize(
    ("schedule", "options", "expected"),
    [
        ("constant", {"warmup": 4, "steps": 6}, [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]),  # linear, and reaches the peak
        ("linear", {"final": 0.2}, [2.0, 1.6, 1.2, 0.8, 0.4]),
        ("linear", {"warmup": 2, "final": 0.0}, [1.0, 2.0, 2.0, 1.0, 0.0]),
        ("cosine", {"steps": 3, "final": 0.2}, [2.0, COSINE, 0.4]),
        ("linear", {"steps": 3, "final": 0.25, "count": 5}, [2.0, 1.25, 0.5, 0.5, 0.5]),  # stays at its end
    ],
)
def test_schedules_by_hand(schedule: str, options: dict[str, Any], expected: list[float]) -> None:
    assert rates(schedule, **options) == pytest.approx(expected)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_a_schedule_is_finite_and_positive_for_any_length(schedule: str) -> None:
    for steps, warmup in [(1, 0), (1, 1), (2, 1), (3, 3), (3, 9)]:
        assert all(0 < one <= 2.0 for one in rates(schedule, warmup=warmup, steps=steps))


def test_weight_decay_spares_norms_and_biases() -> None:
    matrix, bias = torch.nn.Parameter(torch.ones(2, 2)), torch.nn.Parameter(torch.ones(2))
    optimizer = adamw([matrix, bias], beta1=0.9, beta2=0.99, weight_decay=0.5)
    matrix.grad, bias.grad = torch.zeros(2, 2), torch.zeros(2)
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    optimizer.step()
    assert torch.allclose(matrix, torch.tensor(0.95))  # 1 - 0.1 x 0.5
    assert torch.equal(bias.detach(), torch.ones(2))


def test_adamw_against_its_formula() -> None:
    weight = torch.nn.Parameter(torch.tensor([[1.0, -2.0]]))
    optimizer = adamw([weight], beta1=0.8, beta2=0.9, weight_decay=0.0)
    gradients = [torch.tensor([[0.5, -1.0]]), torch.tensor([[-0.25, 3.0]])]
    expected, first, second = weight.detach().clone(), torch.zeros(1, 2), torch.zeros(1, 2)
    for step, gradient in enumerate(gradients, start=1):
        weight.grad = gradient.clone()
        optimizer.param_groups[0]["lr"] = 0.1 * step
        optimizer.step()
        first, second = 0.8 * first + 0.2 * gradient, 0.9 * second + 0.1 * gradient**2
        expected -= 0.1 * step * (first / (1 - 0.8**step)) / ((second / (1 - 0.9**step)).sqrt() + 1e-8)
    assert torch.allclose(weight.detach(), expected, atol=1e-6)
