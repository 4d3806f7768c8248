from copy import deepcopy

import pytest
import torch

from rlvr.core.muon import Muon, orthogonal
from rlvr.core.optimizer import make_optimizer
from tests.unit.core.tiny import tiny_config, tiny_policy

MUON = ("trainer.optimizer=muon", "trainer.learning_rate=0.01", "trainer.weight_decay=0.1")


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


def test_embeddings_heads_and_norms_take_adamw() -> None:
    policy = tiny_policy(critic=True)
    optimizer = make_optimizer(policy, tiny_config(*MUON).trainer)
    names = {id(parameter): name for name, parameter in policy.named_parameters()}
    of = {is_muon: list[str]() for is_muon in (True, False)}
    for group in optimizer.param_groups:
        of[group["momentum"] is not None] += [names[id(parameter)] for parameter in group["params"]]
        assert group["weight_decay"] == (0.1 if group["momentum"] else 0.0)
    assert all("_proj." in name for name in of[True])
    assert {"model.embed_tokens.weight", "lm_head.weight", "value_head.weight"} <= set(of[False])
    assert sorted(of[True] + of[False]) == sorted(names.values())


def test_the_others_are_stepped_as_by_adamw() -> None:
    vector, alone = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
    both = Muon([torch.nn.Parameter(torch.ones(2, 2))], [{"params": [vector], "weight_decay": 0.5}], betas=(0.8, 0.9))
    adamw = torch.optim.AdamW([alone], lr=0.1, betas=(0.8, 0.9), weight_decay=0.5, fused=True)
    for group in both.param_groups:
        group["lr"] = 0.1
    for gradient in ([1.0, -2.0, 0.5], [0.1, 3.0, -1.0]):
        vector.grad, alone.grad = torch.tensor(gradient), torch.tensor(gradient)
        both.step()
        adamw.step()
    assert torch.equal(vector, alone)
    assert len(both.param_groups) == 2, "all groups are there again"


def test_it_goes_on_from_its_saved_state() -> None:
    """And a matrix without a gradient stays as it is."""

    def made() -> tuple[list[torch.nn.Parameter], Muon]:
        parameters = [
            torch.nn.Parameter(torch.eye(3)),
            torch.nn.Parameter(torch.eye(3)),
            torch.nn.Parameter(torch.ones(2)),
        ]
        return parameters, Muon(parameters[:2], [{"params": parameters[2:], "weight_decay": 0.0}])

    def step(parameters: list[torch.nn.Parameter], optimizer: Muon, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for parameter in (parameters[0], parameters[2]):
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        for group in optimizer.param_groups:
            group["lr"] = 0.1
        optimizer.step()

    (parameters, optimizer), (others, other) = made(), made()
    step(parameters, optimizer, 1)
    state = deepcopy(optimizer.state_dict()["state"])
    with torch.no_grad():
        for mine, theirs in zip(others, parameters, strict=True):
            mine.copy_(theirs)
    other.load_state_dict({"state": state, "param_groups": other.state_dict()["param_groups"]})
    step(parameters, optimizer, 2)
    step(others, other, 2)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(others, parameters, strict=True))
    assert torch.equal(parameters[1], torch.eye(3))
