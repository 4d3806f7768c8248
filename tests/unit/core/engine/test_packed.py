"""Weights copied into the CPU's order once per update: the same numbers, never those of an older update."""

import platform

import pytest
import torch
from torch import nn

from rlvr.core.engine import LocalEngine, packed
from rlvr.core.engine.packed import PackedLinears
from tests.unit.engines.tiny import generate, prompt, sampling, tiny_model

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64") or not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
    reason="this processor has no bfloat16 products",
)


def products(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of every packed product from now on."""
    seen: list[int] = []
    product = packed._product

    def counted(weight: torch.Tensor, bias: torch.Tensor | None, inputs: torch.Tensor) -> torch.Tensor:
        seen.append(inputs.shape[0])
        return product(weight, bias, inputs)

    monkeypatch.setattr(packed, "_product", counted)
    return seen


def sample(engine: LocalEngine) -> list:
    return generate(engine, [(prompt(5 + i), sampling(i)) for i in range(3)])


def test_completions_are_equal_bit_by_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(seed=0).bfloat16()
    own = sample(LocalEngine(model, max_batch_size=2, max_context_tokens=64))
    seen = products(monkeypatch)
    assert sample(LocalEngine(model, max_batch_size=2, max_context_tokens=64)) == own
    assert seen
    seen.clear()
    monkeypatch.setattr(packed, "MEMORY_SHARE", 0)
    assert sample(LocalEngine(model, max_batch_size=2, max_context_tokens=64)) == own
    assert not seen, "they would take more than their share of the memory"


def test_new_weights_are_packed_at_their_load() -> None:
    old, new = tiny_model(seed=0).bfloat16(), tiny_model(seed=1).bfloat16()
    engine = LocalEngine(old, max_batch_size=2, max_context_tokens=64)
    before = sample(engine)
    old.load_state_dict(new.state_dict())
    engine.load_weights(0)
    after = sample(engine)
    assert after != before
    assert after == sample(LocalEngine(new, max_batch_size=2, max_context_tokens=64))


@pytest.mark.parametrize("bias", [False, True])
def test_the_layer_is_as_before_outside(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(40, 24, bias=bias).bfloat16()
    inputs = torch.randn(3, 40).bfloat16()
    expected = layer(inputs)
    seen = products(monkeypatch)
    linears = PackedLinears(layer)
    with torch.inference_mode(), linears.active():
        assert torch.equal(layer(inputs), expected)
    assert seen == [3]
    layer(inputs).sum().backward()
    assert layer.weight.grad is not None
    assert seen == [3]


@pytest.mark.parametrize("kind", ["float32", "float16", "another forward", "a subclass"])
def test_other_layers_stay_as_they_are(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Doubled(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(input)

    dtype = getattr(torch, kind, torch.bfloat16)
    layer = (Doubled if kind == "a subclass" else nn.Linear)(8, 8).to(dtype)
    if kind == "another forward":
        layer.__dict__["forward"] = torch.relu  # as libraries that move or quantize weights do
    inputs = torch.randn(3, 8).to(dtype)
    expected, seen = layer(inputs), products(monkeypatch)
    with torch.inference_mode(), PackedLinears(layer).active():
        assert torch.equal(layer(inputs), expected)
    assert not seen
    assert torch.equal(layer(inputs), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_plan_counts_what_is_packed(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    packed_sizes, pack = list[int](), packed._packed

    def counted(weight: torch.Tensor) -> torch.Tensor:
        packed_sizes.append(weight.nbytes)
        return pack(weight)

    monkeypatch.setattr(packed, "_packed", counted)
    model = tiny_model(seed=0).to(dtype)
    sample(LocalEngine(model, max_batch_size=2, max_context_tokens=64))
    assert sum(packed_sizes) == packed.packed_bytes(model, dtype)
    assert bool(packed_sizes) == (dtype == torch.bfloat16)
