"""Where models go; a GPU is only said to be there."""

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import rlvr.core.engine.engine
import rlvr.models.loading
from rlvr.core.devices import current, exact_products, has_flash_attention
from rlvr.core.engine import LocalEngine
from rlvr.core.engine.runner import CachedRunner
from rlvr.errors import ConfigError
from rlvr.models.devices import bf16_pays, choose_device, choose_products
from rlvr.models.loading import load_policy
from tests.unit.engines.tiny import generate, plain_logprobs, prompt, sampling, tiny_model
from tests.unit.models.checkpoints import lora, save_model, settings


@pytest.fixture
def two_gpus(monkeypatch):
    """torch says that there are two; returns the numbers of those that were made the current one."""
    made: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", made.append)
    return made


def test_without_a_gpu_auto_is_the_cpu_and_asking_for_one_is_an_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == choose_device("cpu") == torch.device("cpu")
    with pytest.raises(ConfigError, match=r"^trainer\.device=cuda: .* sees 0 GPU\(s\) here; .* trainer\.device=cpu\.$"):
        choose_device("cuda")


@pytest.mark.parametrize("wanted", ["auto", "cuda"])
def test_every_process_of_a_machine_gets_its_own_gpu(monkeypatch, two_gpus, wanted):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert choose_device(wanted) == torch.device("cuda", 0)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert choose_device(wanted) == torch.device("cuda", 1)
    assert two_gpus == [torch.device("cuda", 0), torch.device("cuda", 1)]
    assert choose_device("cpu") == torch.device("cpu")
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ConfigError, match=r"this is process 3, and torch .* sees 2 GPU\(s\) here"):
        choose_device(wanted)


def test_every_thread_that_samples_makes_its_gpu_the_current_one(monkeypatch):
    """Else steps would be recorded on GPU 0 and computed on another: a replay would then compute nothing."""
    made: list[torch.device] = []

    @contextmanager
    def enter(device):
        made.append(device)
        yield

    monkeypatch.setattr(torch.cuda, "device", enter)
    with current(torch.device("cpu")):
        pass
    assert made == []
    with current(torch.device("cuda", 1)):
        assert made == [torch.device("cuda", 1)]
    model, inside = tiny_model("llama"), []
    monkeypatch.setattr(rlvr.core.engine.engine, "current", lambda device: _noting(inside, device))
    engine = LocalEngine(model, max_batch_size=2, max_context_tokens=64)
    generate(engine, [(prompt(5), sampling(3, max_tokens=3, stop_ids=frozenset()))])
    assert len(inside) == 4  # to choose the runner, to make it, and for each step
    assert set(inside) == {model.device}


@contextmanager
def _noting(inside, device):
    inside.append(device)
    yield


def test_a_gpu_that_only_emulates_bfloat16_computes_in_float32(monkeypatch, two_gpus):
    asked = []
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: asked.append(including_emulation)
    )
    model: Any = SimpleNamespace(device=torch.device("cuda", 0))
    assert not bf16_pays(model)
    assert asked == [False]


def test_products_are_exact_where_they_are_compared():
    before = torch.get_float32_matmul_precision()
    choose_products(torch.device("cpu"), "auto")
    assert torch.get_float32_matmul_precision() == before
    try:
        choose_products(torch.device("cuda"), "auto")
        assert torch.get_float32_matmul_precision() == "high"
        with exact_products():
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "high"
        choose_products(torch.device("cuda"), "fp32")
        assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("bits", ["load_in_4bit", "load_in_8bit"])
def test_quantized_weights_are_rounded_on_the_device_that_was_chosen(monkeypatch, tmp_path, bits):
    asked, load = [], rlvr.models.loading._from_pretrained

    def note(kind, *args, **options):
        asked.append(options.pop("device_map", None))
        return load(kind, *args, **options)

    monkeypatch.setattr(rlvr.models.loading, "_from_pretrained", note)
    chosen = settings(save_model(tmp_path), **{bits: True}, lora=lora())
    load_policy(chosen, seed=0, device=torch.device("cuda", 1))
    assert [found for found in asked if found is not None] == [{"": "cuda:1"}]


def test_the_engine_samples_with_torchs_attention_in_the_place_of_flash_attention():
    model = tiny_model("llama")
    model.config._attn_implementation_internal = "flash_attention_2"
    assert has_flash_attention(model)
    engine = LocalEngine(model, max_batch_size=4, max_context_tokens=64)
    assert type(engine._scheduler._runner) is CachedRunner
    request = (prompt(5), sampling(3, max_tokens=9))
    (completion,) = generate(engine, [request])
    assert has_flash_attention(model)
    model.config._attn_implementation_internal = "sdpa"
    expected = plain_logprobs(model, request[0], completion, 1.0)
    torch.testing.assert_close(torch.tensor(completion.behavior_logprobs), expected, atol=1e-5, rtol=0)
