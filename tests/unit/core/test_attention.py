"""Ready masks against what transformers builds itself."""

import pytest
import torch

from rlvr.core.attention import attention_mask
from tests.unit.engines.tiny import ARCHITECTURES, prompt, tiny_model


def packed(*lengths: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Each token of a segment sees itself and the earlier ones; the positions of all."""
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    segments = torch.repeat_interleave(torch.tensor(lengths))[None]
    same = segments[:, None, None, :] == segments[:, None, :, None]
    return same & (positions[:, None, None, :] <= positions[:, None, :, None]), positions


@pytest.mark.parametrize("lengths", [(17,), (11, 9)])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_packed_segments_get_the_logits_they_have_alone(name, lengths):
    model = tiny_model(name).eval()
    segments = [prompt(length) for length in lengths]
    allowed, positions = packed(*lengths)
    mask = attention_mask(model.config, allowed, positions, positions, torch.float32)
    ids = torch.tensor([[token for segment in segments for token in segment]])
    with torch.no_grad():
        ours = model(input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False).logits
        alone = [model(input_ids=torch.tensor([ids]), use_cache=False).logits for ids in segments]
    torch.testing.assert_close(ours, torch.cat(alone, 1), atol=1e-5, rtol=0)


def test_the_form_follows_the_layers():
    allowed, positions = packed(4)
    for name in ("llama", "mistral", "qwen2", "gemma3", "qwen2_sliding"):
        mask = attention_mask(tiny_model(name).config, allowed, positions, positions, torch.float32)
        if name in ("gemma3", "qwen2_sliding"):
            assert set(mask) == {"full_attention", "sliding_attention"}
        else:
            assert isinstance(mask, torch.Tensor)


def test_the_example_of_the_docstring():
    config = tiny_model("mistral").config
    positions = torch.tensor([[0, 1, 0, 1]])
    allowed = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]).bool()[None, None]
    for window, expected in ((2, allowed[0, 0]), (1, torch.eye(4).bool())):
        config.sliding_window = window
        mask = attention_mask(config, allowed, positions, positions, torch.float32)
        assert ((mask == 0)[0, 0] == expected).all()


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
