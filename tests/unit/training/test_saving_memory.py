"""Saving and loading take memory for one tensor more, however many there are: measured as the process's peak."""

import gc
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rlvr.core.trainer import Trainer
from rlvr.models.policy import HubPolicy
from rlvr.models.weight_cache import keep, restore
from rlvr.training.checkpoint import list_checkpoints, load_checkpoint
from tests.unit.core.tiny import tiny_batch, tiny_policy, tiny_trainer, update
from tests.unit.models.checkpoints import adapted, lora, save_model
from tests.unit.training.test_state import assert_alike, save, schedule

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the peak since a moment is Linux's"),
]

SIZES: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
}
SIZES |= {"num_key_value_heads": 8, "head_dim": 64}
TENSOR = 4 * 512 * 2048  # bytes of the largest one; the model has 100 MB
ROOM = TENSOR + (12 << 20)  # buffers of safetensors, code that is loaded


def grown(function: Callable[[], object]) -> int:
    """By how much the peak of the resident memory during the call is over what was resident before."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins again
    before = resident("VmRSS")
    function()
    return resident("VmHWM") - before


def resident(name: str) -> int:
    (kilobytes,) = re.findall(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return 1024 * int(kilobytes)


def trained() -> Trainer:
    """A trainer with moments."""
    trainer = tiny_trainer(tiny_policy(**SIZES))
    update(trainer, tiny_batch(tiny_policy()))
    return trainer


def test_a_checkpoint_takes_memory_for_one_tensor_more(tmp_path: Path) -> None:
    first = trained()
    weights = sum(parameter.nbytes for parameter in first.policy.parameters())
    assert weights > 3 * ROOM
    save(schedule(tmp_path / "before", first), {1: None}, last=1)  # imports, buffers
    assert grown(lambda: save(schedule(tmp_path, first), {1: None}, last=1)) < ROOM
    second = trained()
    second.optimizer.state.clear()
    (checkpoint,) = list_checkpoints(tmp_path).values()
    taken = grown(lambda: schedule(tmp_path, second).restore(load_checkpoint(checkpoint)))
    assert taken - 2 * weights < ROOM  # the moments themselves are there now
    for trainer in (first, second):
        update(trainer, tiny_batch(tiny_policy()))
    assert_alike(first, second)


@pytest.mark.parametrize("kind", ["model", "cache", "adapter"])
def test_weights_take_memory_for_one_tensor_more(kind: str, tmp_path: Path) -> None:
    """Of `warm_start/`, `final/` and a checkpoint's model, of the cache of warm starts, and of adapters."""

    def made() -> HubPolicy:
        if kind == "adapter":
            return adapted(base, lora=lora(r=512, target_modules=("all-linear",)))
        return tiny_policy(**SIZES)

    base = save_model(tmp_path / "base", **SIZES) if kind == "adapter" else tmp_path
    first, second = made(), made()
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.add_(1.0)
    assert sum(parameter.nbytes for parameter in first.parameters()) > ROOM
    write, read = {"cache": (lambda: keep(first, "k"), lambda: restore(second, "k"))}.get(
        kind, (lambda: first.save(tmp_path / "saved"), lambda: second.load_weights(tmp_path / "saved"))
    )
    tiny_policy().save(tmp_path / "small")  # imports
    assert grown(write) < ROOM
    assert grown(read) < ROOM
    assert_alike(first, second)
