"""4 and 8 bits: the weights are small, and the numbers depend neither on the batch nor on gradients."""

import builtins
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from bitsandbytes.nn.modules import Linear4bit, Linear8bitLt
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlvr.errors import UserError
from rlvr.models.loading import load_policy
from rlvr.models.quantization import is_quantized, settings_for
from tests.unit.core.tiny import tiny_policy
from tests.unit.models.checkpoints import adapted, lora, num_trained, save_model, settings

WIDE = {"hidden_size": 64, "intermediate_size": 128}
"""Multiples of 64, which bitsandbytes would repack on a CPU with bf16 instructions."""
BITS = {"load_in_4bit": Linear4bit, "load_in_8bit": Linear8bitLt}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"), **WIDE)


@pytest.mark.parametrize("bits", BITS)
def test_the_layers_are_quantized_and_the_rest_is_not(bits: str, folder: Path) -> None:
    policy = adapted(folder, **{bits: True})
    layers = [module for module in policy.model.modules() if isinstance(module, BITS[bits])]
    assert len(layers) == 14
    assert all(is_quantized(layer.weight) and layer.weight.element_size() == 1 for layer in layers)
    assert policy.model.get_output_embeddings().weight.dtype == torch.float32
    whole = tiny_policy(**WIDE).num_weights
    assert policy.num_weights == whole + num_trained(policy)
    if bits == "load_in_4bit":  # a kernel without a backward would have its weights repacked
        assert not any(layer.support_avx512bf16_for_cpu for layer in layers)


@pytest.mark.parametrize("bits", BITS)
def test_gradients_and_neighbors_do_not_change_the_numbers(bits: str, folder: Path) -> None:
    model = adapted(folder, shake=0.3, **{bits: True}).model
    ids = torch.tensor([[1, 5, 3, 6, 2, 9, 4], [1, 7, 7, 2, 8, 5, 9]])
    with torch.inference_mode():
        sampling = model(ids, use_cache=False).logits
    training = model(ids, use_cache=False).logits
    with torch.no_grad():
        alone = model(ids[:1], use_cache=False).logits
    assert torch.equal(training, sampling)
    assert torch.allclose(alone, sampling[:1], atol=1e-5)
    training.sum().backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
    assert all(g is not None and g.any() for g in gradients.values())


@pytest.mark.parametrize("bits", [4, 8])
def test_a_checkpoint_saved_in_few_bits_is_loaded_as_it_is(bits: int, folder: Path, tmp_path: Path) -> None:
    config = settings_for(4 if bits == 4 else 8, torch.float32)
    options = {"quantization_config": config, "device_map": {"": "cpu"}, "dtype": torch.float32}
    AutoModelForCausalLM.from_pretrained(folder, **options).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
    ids = torch.tensor([[1, 5, 3, 6]])
    chosen = {f"load_in_{bits}bit": True}
    policies = [adapted(path, shake=0.3, **chosen) for path in (folder, tmp_path)]
    with torch.no_grad():
        assert torch.equal(*(policy.model(ids).logits for policy in policies))
    for wrong in ({}, {f"load_in_{12 - bits}bit": True}):
        with pytest.raises(UserError, match=f"was saved in {bits} bits by bitsandbytes: "):
            load_policy(settings(tmp_path, lora=lora(enabled=bool(wrong)), **wrong), seed=0)


def test_a_missing_package_is_a_sentence_with_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def no_bitsandbytes(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "bitsandbytes":
            raise ImportError("No module named 'bitsandbytes'")
        return real(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "bitsandbytes")
    monkeypatch.setattr(builtins, "__import__", no_bitsandbytes)
    with pytest.raises(UserError, match=r"pip install -e '\.\[quantization\]'"):
        settings_for(4, torch.float32)


@pytest.mark.parametrize("bits", BITS)
def test_dequantized_numbers_are_those_of_transformers(bits: str, folder: Path) -> None:
    adapters = adapted(folder, **{bits: True}).adapters
    ours = dict(adapters.fresh_base().named_parameters())
    quantization = settings_for(4 if bits == "load_in_4bit" else 8, torch.float32)
    theirs: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, quantization_config=quantization)
    for name, weight in theirs.dequantize(dtype=torch.float32).named_parameters():
        assert torch.equal(ours.pop(name), weight)
    assert not ours
