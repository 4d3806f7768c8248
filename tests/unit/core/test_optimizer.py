import math

import pytest
import torch

from rlvr.core.optimizer import adamw, learning_rate


def rate(step: int, schedule: str, *, warmup: int = 0, steps: int = 5, final: float = 0.1) -> float:
    return learning_rate(step, peak=2.0, warmup_steps=warmup, final_share=final, schedule=schedule, max_steps=steps)


def rates(schedule: str, *, warmup: int = 0, steps: int = 5, final: float = 0.1) -> list[float]:
    return [rate(step, schedule, warmup=warmup, steps=steps, final=final) for step in range(steps)]


def test_the_warm_up_is_linear_and_reaches_the_peak() -> None:
    assert rates("constant", warmup=4, steps=6) == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]


def test_schedules_end_at_their_share_of_the_peak_and_stay_there() -> None:
    assert rates("linear", steps=5, final=0.2) == pytest.approx([2.0, 1.6, 1.2, 0.8, 0.4])
    assert rates("linear", warmup=2, steps=5, final=0.0) == pytest.approx([1.0, 2.0, 2.0, 1.0, 0.0])
    middle = 2.0 * (0.2 + 0.8 * (1 + math.cos(math.pi / 2)) / 2)
    assert rates("cosine", steps=3, final=0.2) == pytest.approx([2.0, middle, 0.4])
    assert rate(99, "linear", steps=5, final=0.25) == pytest.approx(0.5)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_a_schedule_is_finite_and_positive_whatever_its_length(schedule: str) -> None:
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
