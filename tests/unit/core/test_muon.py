import pytest
import torch

from rlvr.core.muon import Muon, muon, orthogonal
from tests.unit.core.tiny import tiny_policy


@pytest.mark.parametrize("shape", [(2, 8, 8), (1, 4, 12), (3, 12, 4)])
def test_singular_values_become_alike_and_directions_stay(shape: tuple[int, ...]) -> None:
    stack = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    left, _, right = torch.linalg.svd(stack, full_matrices=False)
    turned = left.mT @ orthogonal(stack) @ right.mT  # [N, k, k], diagonal
    values = turned.diagonal(dim1=1, dim2=2)
    assert (values > 0.3).all()
    assert (values < 1.3).all()
    assert torch.allclose(turned, torch.diag_embed(values), atol=1e-4)
    assert not orthogonal(torch.zeros(shape)).any()


@pytest.mark.parametrize(("shape", "factor"), [((8, 2), 2.0), ((2, 8), 1.0)])  # the root of rows / columns, at least 1
def test_two_steps_by_hand(shape: tuple[int, int], factor: float) -> None:
    matrix = torch.nn.Parameter(torch.ones(shape))
    optimizer = Muon([matrix], momentum=0.8, weight_decay=0.5)
    optimizer.param_groups[0]["lr"] = 0.1
    expected, buffer = torch.ones(shape), torch.zeros(shape)
    for seed in (1, 2):
        gradient = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        matrix.grad = gradient.clone()
        optimizer.step()
        buffer = 0.8 * buffer + 0.2 * gradient
        ahead = 0.8 * buffer + 0.2 * gradient
        expected = 0.95 * expected - 0.1 * factor * orthogonal(ahead[None])[0]
    assert torch.allclose(matrix, expected, atol=1e-5)


def test_embeddings_head_and_norms_take_adamw() -> None:
    policy = tiny_policy()
    matrices, others = muon(policy.model, beta2=0.95, weight_decay=0.1)
    names = {id(parameter): name for name, parameter in policy.named_parameters()}

    def of(optimizer: torch.optim.Optimizer) -> list[str]:
        return [names[id(parameter)] for group in optimizer.param_groups for parameter in group["params"]]

    assert all("_proj." in name for name in of(matrices))
    assert any("embed_tokens" in name for name in of(others))
    assert sorted(of(matrices) + of(others)) == sorted(names.values())
