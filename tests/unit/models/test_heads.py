"""A float32 head: exact logits under autocast and in a bfloat16 copy."""

import pytest
import torch
from torch import nn

from rlvr.errors import ConfigError
from rlvr.models.devices import frozen_copy
from rlvr.models.heads import use_float32_head
from tests.unit.core.tiny import tiny_policy


def test_logits_are_exact_products_of_the_hidden_states() -> None:
    policy = tiny_policy()
    ids = torch.tensor([[1, 2, 3, 4]])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = policy.hidden(ids).detach()
        rounded = policy.logits(hidden)
        for _ in range(2):
            use_float32_head(policy.model)
        found = policy.logits(hidden)
    exact = hidden.float() @ policy.model.get_output_embeddings().weight.T
    torch.testing.assert_close(found, exact, rtol=0, atol=0)
    assert (rounded - exact).abs().max() > 0
    found.sum().backward()
    assert policy.model.get_output_embeddings().weight.grad.dtype == torch.float32


def test_a_bfloat16_copy_keeps_the_head() -> None:
    policy = tiny_policy()
    use_float32_head(policy.model)
    copy = frozen_copy(policy.model, torch.bfloat16)
    out = copy(torch.tensor([[1, 2, 3]]), use_cache=False)
    assert (out.logits.dtype, copy.dtype) == (torch.float32, torch.bfloat16)


def test_a_bias_is_added_in_float32() -> None:
    model = tiny_policy().model
    head = nn.Linear(4, 3, dtype=torch.bfloat16)
    model.set_output_embeddings(head)
    use_float32_head(model)
    hidden = torch.ones(2, 4, dtype=torch.bfloat16)
    expected = nn.functional.linear(hidden.float(), head.weight.float(), head.bias.float())
    assert torch.equal(head(hidden), expected)


class Quantized(nn.Linear):
    """A matrix with a product of its own, which would be lost."""


@pytest.mark.parametrize("head", [nn.Sequential(nn.Linear(4, 3)), Quantized(4, 3)])
def test_a_head_that_is_no_matrix_is_refused(head: nn.Module) -> None:
    policy = tiny_policy()
    policy.model.set_output_embeddings(head)
    with pytest.raises(ConfigError, match=f"this model's head is a {type(head).__name__}; set it to auto"):
        use_float32_head(policy.model)
