"""Optimizer and random generators come back bit for bit."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rlvr.training.checkpoint import load_checkpoint, save_checkpoint
from rlvr.training.checkpoint_state import flatten, random_state, set_random_state, unflatten


def write_model(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"weights")


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def trained(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    """Steps whose input is drawn from torch's global generator."""
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()


def new_training() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.95))


def test_pitfall_37_training_goes_on_bit_for_bit_from_a_checkpoint(tmp_path: Path) -> None:
    whole, optimizer = new_training()
    trained(whole, optimizer, 8)

    first, optimizer = new_training()
    trained(first, optimizer, 4)
    tree = {"optimizer": optimizer.state_dict(), "random": random_state(), "model": first.state_dict()}
    structure, tensors = flatten(tree, "state")
    path = save_checkpoint(tmp_path, 4, model_saver=write_model, tensors=tensors, state={"tree": structure})

    resumed, optimizer = new_training()
    torch.manual_seed(99)  # a new process has other random numbers
    loaded = load_checkpoint(path)
    state = unflatten(loaded.state["tree"], loaded.tensors)
    resumed.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    set_random_state(state["random"])
    trained(resumed, optimizer, 4)
    for name, parameter in whole.state_dict().items():
        assert torch.equal(bits(parameter), bits(resumed.state_dict()[name]))


def test_a_tree_comes_back_as_it_was() -> None:
    tree = {"a": (1, [2.5, None, True]), 3: {"x": float("inf")}, "t": (), "e": {}, "s": "text"}
    structure, tensors = flatten(tree, "n")
    assert tensors == {}
    assert unflatten(json.loads(json.dumps(structure, allow_nan=False)), {}) == tree


def test_tensors_are_named_by_their_place() -> None:
    structure, tensors = flatten({"lr": 0.1, 0: [torch.ones(2)]}, "optimizer")
    assert list(tensors) == ["optimizer/0/0"]
    assert torch.equal(unflatten(structure, tensors)[0][0], torch.ones(2))


def test_what_json_cannot_hold_is_refused() -> None:
    with pytest.raises(TypeError, match="n/a holds a set"):
        flatten({"a": {1}}, "n")
