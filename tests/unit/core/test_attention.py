"""Ready masks against what transformers builds itself."""

import pytest
import torch

from rlvr.core.attention import attention_mask
from tests.unit.engines.tiny import ARCHITECTURES, prompt, tiny_model


def causal(length: int) -> tuple[torch.Tensor, torch.Tensor]:
    positions = torch.arange(length)[None]
    return positions[:, None, None, :] <= positions[:, None, :, None], positions


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_ready_causal_mask_gives_the_models_own_logits(name):
    model = tiny_model(name).eval()
    ids = torch.tensor([prompt(17)])
    allowed, positions = causal(17)
    mask = attention_mask(model.config, allowed, positions, positions, torch.float32)
    with torch.no_grad():
        own = model(input_ids=ids, use_cache=False).logits
        ours = model(input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False).logits
    torch.testing.assert_close(ours, own, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_packed_segments_get_the_logits_they_have_alone(name):
    model = tiny_model(name).eval()
    first, second = prompt(11), prompt(9)
    positions = torch.tensor([[*range(11), *range(9)]])
    segments = torch.tensor([[0] * 11 + [1] * 9])
    same = segments[:, None, None, :] == segments[:, None, :, None]
    allowed = same & (positions[:, None, None, :] <= positions[:, None, :, None])
    mask = attention_mask(model.config, allowed, positions, positions, torch.float32)
    with torch.no_grad():
        packed = model(
            input_ids=torch.tensor([first + second]), position_ids=positions, attention_mask=mask, use_cache=False
        ).logits
        alone = [model(input_ids=torch.tensor([ids]), use_cache=False).logits for ids in (first, second)]
    torch.testing.assert_close(packed, torch.cat(alone, 1), atol=1e-5, rtol=0)


def test_the_form_follows_the_layers():
    allowed, positions = causal(4)
    forms = {}
    for name in ("llama", "gemma3", "mistral", "qwen2", "qwen2_sliding"):
        forms[name] = attention_mask(tiny_model(name).config, allowed, positions, positions, torch.float32)
    assert isinstance(forms["llama"], torch.Tensor)
    assert isinstance(forms["mistral"], torch.Tensor)
    assert isinstance(forms["qwen2"], torch.Tensor)
    assert set(forms["gemma3"]) == set(forms["qwen2_sliding"]) == {"full_attention", "sliding_attention"}


def test_the_example_of_the_docstring():
    config = tiny_model("mistral").config
    config.sliding_window = 2
    positions = torch.tensor([[0, 1, 0, 1]])
    allowed = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]).bool()[None, None]
    mask = attention_mask(config, allowed, positions, positions, torch.float32)
    assert ((mask == 0) == allowed).all()
    config.sliding_window = 1
    mask = attention_mask(config, allowed, positions, positions, torch.float32)
    assert ((mask == 0)[0, 0] == torch.eye(4).bool()).all()


def test_a_query_that_may_look_nowhere_gives_no_nan():
    config = tiny_model().config
    positions = torch.zeros(1, 1, dtype=torch.int64)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        mask = attention_mask(config, torch.zeros(1, 1, 1, 5).bool(), positions, positions, dtype)
        assert mask.dtype == dtype
        assert torch.isfinite(torch.softmax(mask - 1, -1)).all()


@pytest.mark.parametrize("columns", [5, 8, 13])
def test_mask_rows_on_a_gpu_are_aligned(columns):
    config = tiny_model("llama").config
    allowed = torch.ones(2, 1, 3, columns, dtype=torch.bool, device="meta")
    positions = torch.zeros(2, columns, dtype=torch.int64, device="meta")
    mask = attention_mask(config, allowed, positions[:, :3], positions, torch.bfloat16)
    assert isinstance(mask, torch.Tensor)
    assert mask.shape == (2, 1, 3, columns)
    assert mask.stride(-1) == 1
    assert all(mask.stride(dim) % 8 == 0 for dim in range(3))
