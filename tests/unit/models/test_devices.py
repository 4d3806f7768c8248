"""Where models go; a GPU is only said to be there, or a pretend one."""

from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import pytest
import torch

import rlvr.core.engine.engine
import rlvr.models.loading
from rlvr.core.devices import (
    current,
    drawing_device,
    exact_products,
    free,
    has_flash_attention,
)
from rlvr.core.engine import LocalEngine
from rlvr.core.engine.runner import CachedRunner
from rlvr.errors import ConfigError
from rlvr.models.devices import bf16_pays, choose_device, choose_products, device_name, frozen_copy
from rlvr.models.loading import load_policy
from rlvr.training.memory import available_memory
from rlvr.training.state import random_state, set_random_state
from tests.pretend_device import AVAILABLE, NAME, on_device
from tests.unit.engines.tiny import assert_exact, generate, prompt, sampling, tiny_model
from tests.unit.models.checkpoints import lora, save_model, settings


@pytest.fixture
def two_gpus(monkeypatch):
    """torch says that there are two; returns the numbers of those that were made the current one."""
    made: list[int] = []
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.accelerator, "set_device_index", made.append)
    return made


def test_without_a_gpu_auto_is_the_cpu_and_cuda_an_error(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: None)
    assert choose_device("auto") == choose_device("cpu") == torch.device("cpu")
    with pytest.raises(ConfigError, match=r"^trainer\.device=cuda: .* sees no such device here; set .*device=cpu"):
        choose_device("cuda")


def test_auto_leaves_apples_gpu_alone_where_nothing_was_measured(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("mps"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda number: None)
    assert choose_device("auto") == torch.device("cpu")
    assert choose_device("mps") == torch.device("mps", 0)


@pytest.mark.parametrize("wanted", ["auto", "cuda"])
def test_every_process_of_a_machine_gets_its_own_gpu(monkeypatch, two_gpus, wanted):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert choose_device(wanted) == torch.device("cuda", 0)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert choose_device(wanted) == torch.device("cuda", 1)
    assert two_gpus == [0, 1]
    assert choose_device("cpu") == torch.device("cpu")
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ConfigError, match=r"this is process 3, and torch .* sees 2 GPU\(s\) here"):
        choose_device(wanted)
    with pytest.raises(ConfigError, match=r"^trainer\.device=mps: .* sees no such device"):
        choose_device("mps")


def everything_about_the_device() -> dict[str, object]:
    device = choose_device("auto")
    with pytest.raises(ConfigError, match=r"^trainer\.device=cuda: .* sees no such device"):
        choose_device("cuda")
    module = torch.get_device_module(device)
    before = random_state()
    module.random_state = torch.ones(1, dtype=torch.uint8)
    set_random_state(before)
    with current(device):
        free()
    return {
        "devices": [str(device), str(choose_device("cpu")), device_name(device)],
        "random state": module.random_state.tolist(),
        "memory": available_memory(device) == int(0.9 * module.free_memory),
        "bf16": bf16_pays(SimpleNamespace(device=device)),
        "drawing": str(drawing_device(device)),
    }


@pytest.mark.slow
@pytest.mark.skipif(not AVAILABLE, reason="this torch has no devices made in Python")
def test_a_device_that_is_not_named_anywhere_is_used_as_any_other():
    assert on_device(everything_about_the_device) == {
        "devices": ["pretend:0", "cpu", "pretend:0"],
        "random state": [0],
        "memory": True,
        "bf16": True,
        "drawing": "pretend:0",
    }


def a_layer_that_stays() -> str:
    layers = torch.nn.Sequential(torch.nn.Linear(2, 2).to(NAME), torch.nn.Linear(2, 2))
    with pytest.raises(RuntimeError) as caught:
        layers(torch.ones(1, 2, device=NAME))
    return str(caught.value)


def test_a_layer_that_stays_on_the_cpu_fails_on_the_pretend_device():
    assert on_device(a_layer_that_stays) == "Linear computes on the CPU: weight, bias"


def test_a_device_that_says_less_is_planned_and_computes_as_a_cpu():
    """What MPS does not tell, torch's own modules do not have; it is one device, and no number says how much of it."""
    mps = torch.device("mps", 0)
    assert available_memory(mps) is None
    assert not bf16_pays(SimpleNamespace(device=mps))
    assert device_name(mps) == "mps:0"
    with current(mps):
        pass


def test_every_thread_that_samples_makes_its_gpu_the_current_one(monkeypatch):
    """Else steps would be recorded on GPU 0 and computed on another: a replay would then compute nothing."""
    made, inside = [], []

    @contextmanager
    def noting(devices, device):
        devices.append(device)
        yield

    monkeypatch.setattr(torch.cuda, "device", partial(noting, made))
    with current(torch.device("cpu")):
        assert made == []
    with current(torch.device("cuda", 1)):
        assert made == [torch.device("cuda", 1)]
    monkeypatch.setattr(rlvr.core.engine.engine, "current", partial(noting, inside))
    model = tiny_model()
    engine = LocalEngine(model, max_batch_size=2, max_context_tokens=64)
    generate(engine, [(prompt(5), sampling(3, max_tokens=3))])
    assert inside == [model.device] * 4  # to choose the runner, to make it, and for each step


def test_a_gpu_that_only_emulates_bfloat16_computes_in_float32(monkeypatch, two_gpus):
    asked = []
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: asked.append(including_emulation)
    )
    assert not bf16_pays(SimpleNamespace(device=torch.device("cuda", 0)))
    assert asked == [False]


def test_products_are_exact_where_they_are_compared():
    precision = torch.get_float32_matmul_precision
    before = precision()
    choose_products(torch.device("cpu"), "auto")
    assert precision() == before
    try:
        choose_products(torch.device("cuda"), "auto")
        assert precision() == "high"
        with exact_products():
            assert precision() == "highest"
        assert precision() == "high"
        choose_products(torch.device("cuda"), "fp32")
        assert precision() == "highest"
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("bits", ["load_in_4bit", "load_in_8bit"])
def test_weights_are_quantized_on_the_chosen_device(monkeypatch, tmp_path, bits):
    asked, load = [], rlvr.models.loading.from_pretrained

    def note(kind, *args, **options):
        asked.append(options.pop("device_map", None))
        return load(kind, *args, **options)

    monkeypatch.setattr(rlvr.models.loading, "from_pretrained", note)
    chosen = settings(save_model(tmp_path), **{bits: True}, lora=lora())
    load_policy(chosen, seed=0, device=torch.device("cuda", 1))
    assert [found for found in asked if found is not None] == [{"": "cuda:1"}]


def test_the_engine_samples_without_flash_attention():
    model, requests = tiny_model(), [(prompt(5), sampling(3, max_tokens=9))]
    model.config._attn_implementation_internal = "flash_attention_2"
    assert has_flash_attention(model)
    engine = LocalEngine(model, max_batch_size=4, max_context_tokens=64)
    assert type(engine._scheduler.rows.runner) is CachedRunner
    completions = generate(engine, requests)
    assert has_flash_attention(model)
    model.config._attn_implementation_internal = "sdpa"
    assert_exact(model, requests, completions)


def test_a_float16_copy_is_nearer_than_a_bfloat16_one() -> None:
    model = tiny_model().eval()
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    with torch.no_grad():
        exact = model(ids).logits
        gaps = [
            (frozen_copy(model, dtype)(ids).logits.float() - exact).abs().max()
            for dtype in (torch.float16, torch.bfloat16)
        ]
    assert 0 < 3 * gaps[0] < gaps[1]
