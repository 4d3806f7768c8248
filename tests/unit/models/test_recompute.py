"""Gradient checkpointing: the same gradients from layers that run twice and keep less."""

from pathlib import Path

import pytest
import torch

from rlvr.models.loading import load_policy
from rlvr.models.policy import HubPolicy
from rlvr.models.recompute import recompute_in_backward
from tests.unit.core.tiny import ARCHITECTURES, tiny_batch, tiny_model, tiny_trainer, update
from tests.unit.models.checkpoints import KINDS, adapted, lora, save_model, settings


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"))


def count_attention(policy: HubPolicy) -> list[int]:
    """One entry per forward of an attention module, from now on."""
    calls: list[int] = []
    for module in policy.model.modules():
        if type(module).__name__.endswith("Attention"):
            module.register_forward_hook(lambda *_: calls.append(1))
    return calls


def train_once(policy: HubPolicy) -> tuple[torch.Tensor, int, int]:
    """The gradient of one update, the attention forwards it took, and the numbers that were kept for backward."""
    batch = tiny_batch(policy)
    trainer = tiny_trainer(policy, "trainer.learning_rate=1e-9", "trainer.precision=fp32")
    calls, kept = count_attention(policy), []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        update(trainer, batch)
    gradients = [p.grad.flatten() for p in policy.parameters() if p.grad is not None]
    return torch.cat(gradients), len(calls), sum(kept)


@pytest.mark.parametrize("adapters", [False, True])
def test_the_gradient_is_equal_and_every_layer_runs_twice(adapters: bool, folder: Path) -> None:
    results = [
        train_once(load_policy(settings(folder, gradient_checkpointing=on, lora=lora(enabled=adapters)), seed=0))
        for on in (False, True)
    ]
    assert torch.equal(results[0][0], results[1][0])
    assert results[0][0].any()
    assert results[1][1] == 2 * results[0][1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["4bit", "8bit", "bfloat16"])
def test_it_works_over_frozen_weights_of_every_kind(kind: str, folder: Path) -> None:
    results = [train_once(adapted(folder, shake=0.1, gradient_checkpointing=on, **KINDS[kind])) for on in (False, True)]
    assert torch.equal(results[0][0], results[1][0])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_has_layers_to_recompute(architecture: str) -> None:
    model = tiny_model(architecture)
    recompute_in_backward(model)
    ids = torch.tensor([[1, 5, 3]])
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, tiny_model(architecture)(input_ids=ids).logits)
