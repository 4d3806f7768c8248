"""Sharding without ranks; tests/system/test_parallel.py has real ones."""

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy

from rlvr.core.world import ALONE
from rlvr.errors import ConfigError
from rlvr.models.devices import move
from rlvr.scale import fsdp
from rlvr.scale.fsdp import FullySharded, decoder_layers, make_parallel
from tests.unit.core.tiny import ARCHITECTURES, tiny_config, tiny_model, tiny_policy, tiny_trainer


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_layers_of_an_architecture_are_found(architecture: str) -> None:
    model = tiny_model(architecture)
    assert len(decoder_layers(model)) == 2
    assert decoder_layers(torch.nn.Linear(2, 2)) == []


def test_a_cpu_has_nowhere_to_offload_to() -> None:
    settings = tiny_config("trainer.strategy=fsdp2", "trainer.cpu_offload=true").trainer
    with pytest.raises(ConfigError, match=r"^trainer\.cpu_offload=true: the model is in the CPU's memory already"):
        make_parallel(settings, ALONE, bf16=False).shard(tiny_policy())


def test_cpu_offload_is_set_for_every_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """The options of FSDP for every part, without a GPU."""
    told: dict[nn.Module, dict[str, object]] = {}
    for name in ("set_gradient_divide_factor", "set_force_sum_reduction_for_comms"):
        monkeypatch.setattr(nn.Module, name, lambda module, value: None, raising=False)
    monkeypatch.setattr(fsdp, "FSDPModule", nn.Module)
    monkeypatch.setattr(fsdp, "init_device_mesh", lambda *shape: None)
    monkeypatch.setattr(fsdp, "fully_shard", lambda module, **options: told.update({module: options}))
    policy = tiny_policy()
    move(policy.model, torch.device("meta"))
    settings = tiny_config("trainer.strategy=fsdp2", "trainer.cpu_offload=true").trainer
    make_parallel(settings, ALONE, bf16=False).shard(policy)
    assert [type(module).__name__ for module in told] == ["LlamaDecoderLayer"] * 2 + ["_Root"]
    assert all(type(options["offload_policy"]) is CPUOffloadPolicy for options in told.values())


def test_precision_that_weights_were_cut_with_stays() -> None:
    trainer = tiny_trainer(tiny_policy(), "trainer.precision=fp32")
    trainer.parallel.set_precision(True)  # of a checkpoint: another machine decides as the first one did
    assert trainer.precision == "bf16 autocast"
    with pytest.raises(ConfigError, match=r"^trainer\.precision: the run was begun in fp32.*=fp32\.$"):
        FullySharded(ALONE, bf16=True).set_precision(False)
