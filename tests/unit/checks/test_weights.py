"""Checks of weights on models of a thousand of them; tests/unit/commands/test_doctor.py plants faults in whole ones."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlvr.chat.coding import Coder
from rlvr.chat.rendering import Chat
from rlvr.checks.numbers import weights_finite
from rlvr.checks.weights import rows_are_sized, template_is_trained, weights_alive, weights_loaded
from rlvr.models.policy import HubPolicy
from tests.unit.chat.tokenizers import CHATML, END, START, byte_tokenizer
from tests.unit.core.tiny import tiny_policy


def of(policy: HubPolicy) -> Any:
    return SimpleNamespace(policy=policy, model=policy.model)


UNITS = "model.layers.{}.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("report", "wrong"),
    [
        ({}, None),
        ({"missing_keys": ["lm_head.weight"]}, "1 are not in its files, and random; first lm_head.weight"),
        (
            {"mismatched_keys": [(UNITS.format(0), (2, 2), (3, 3))]},
            f"1 have another shape there; first {UNITS.format(0)}",
        ),
        ({"unexpected_keys": [UNITS.format(7)]}, f"1 of its files have no place in it; first {UNITS.format(7)}"),
        ({"unexpected_keys": [f"transformer.layers.7.mlp.{n}" for n in "ab"]}, None),  # another model's part
        (
            {"missing_keys": ["b", "a"], "unexpected_keys": [UNITS.format(2), "v_head.bias"]},
            "2 are not in its files, and random, 1 of its files have no place in it; first a",
        ),
    ],
)
def test_weights_are_all_from_the_files(report: dict[str, Any], wrong: str | None) -> None:
    found = weights_loaded(of(replace(tiny_policy(), load_report=report)))
    more = len(report.get("unexpected_keys", ()))
    right = "the model's files hold each of 21 weight tensors" + (f", and {more} more" if more else "")
    assert (found.status, found.says) == (("ok", right) if wrong is None else ("fail", f"of 21 weight tensors {wrong}"))
    assert found.evidence == {
        key: sorted(str(k[0]) if isinstance(k, tuple) else k for k in keys) for key, keys in report.items()
    }


def test_a_head_that_is_to_be_the_embedding_is_it() -> None:
    assert weights_loaded(of(tiny_policy("qwen2"))).status == "ok"
    policy = tiny_policy()
    policy.model.config.tie_word_embeddings = True
    found = weights_loaded(of(policy))
    assert found.says == "of 21 weight tensors the head is not the embedding, though config.json ties them"


@pytest.mark.parametrize(
    ("matrix", "alike", "dies"), [("embedding", 3, False), ("embedding", 4, True), ("head", 4, True)]
)
def test_a_fifth_of_the_tokens_may_share_a_row(matrix: str, alike: int, dies: bool) -> None:
    """Of seventeen."""
    policy = tiny_policy()
    table: Any = getattr(policy.model, "get_input_embeddings" if matrix == "embedding" else "get_output_embeddings")()
    with torch.no_grad():
        table.weight[5 : 5 + alike] = 0.25
    found = weights_alive(of(policy))
    assert found.status == ("fail" if dies else "ok")
    if dies:
        assert found.says == f"4 tokens (24% of the tokenizer) have one row of the {matrix}: nothing tells them apart"
    with torch.no_grad():
        policy.model.model.layers[1].mlp.up_proj.weight.fill_(2.0)
    assert weights_alive(of(policy)).evidence["matrices"] == [UNITS.format(1)]


def test_rows_with_a_number_that_is_none_are_named() -> None:
    policy = tiny_policy()
    assert weights_finite(of(policy)).status == "ok"
    with torch.no_grad():
        policy.model.lm_head.weight[3, 7] = math.nan
        policy.model.lm_head.weight[5:9, 1] = math.inf
        policy.model.model.norm.weight[2] = -math.inf
    found = weights_finite(of(policy))
    assert found.says == "2 weights or buffers hold NaN or infinity, first model.norm.weight"
    assert found.evidence["rows"] == {"model.norm.weight": [2], "lm_head.weight": [3, 5, 6]}


@pytest.mark.parametrize(("times", "status"), [(1.0, "ok"), (15.0, "ok"), (60.0, "fail")])
@pytest.mark.parametrize("matrix", ["embed_tokens", "lm_head"])
def test_no_row_of_a_token_is_far_larger(matrix: str, times: float, status: str) -> None:
    policy = tiny_policy()
    table = next(weight for name, weight in policy.model.named_parameters() if matrix in name)
    with torch.no_grad():
        table[5:7] = times * table[3]
        table[0] = 0.0  # a padding row counts for nothing
    found = rows_are_sized(of(policy))
    assert (found.status, found.evidence["tokens"]) == (status, 2 * (status == "fail"))


def taught(start: float, end: float) -> Any:
    """A model whose embedding has these numbers in the rows of the template's two tokens, and 1 elsewhere."""
    tokenizer = byte_tokenizer(template=CHATML)
    table = torch.ones(len(tokenizer), 4)
    for token, value in ((START, start), (END, end)):
        table[tokenizer.convert_tokens_to_ids(token)] *= value
    embedding = torch.nn.Embedding.from_pretrained(table)
    model = SimpleNamespace(get_input_embeddings=lambda: embedding, get_output_embeddings=lambda: None)
    policy = SimpleNamespace(tokenizer=tokenizer)
    return SimpleNamespace(policy=policy, model=model, chat=Chat(tokenizer), coder=Coder(tokenizer))


@pytest.mark.parametrize(
    ("start", "end", "fails"),
    [
        (0.5, 0.6, False),
        (0.5, 0.5, True),
        (0.5, 0.511, False),
        (0.5, 0.509, True),
        (0.009, 1.0, True),
        (0.1, 1.0, False),
    ],
)
def test_tokens_of_a_template_have_rows_of_their_own(start: float, end: float, fails: bool) -> None:
    found = template_is_trained(taught(start, end))
    assert (found.status == "fail") is fails
    if fails:
        assert START in found.says
    bare = taught(0.5, 0.5)
    bare.chat = SimpleNamespace(template=None)
    assert template_is_trained(bare).status == "skipped"


@pytest.mark.parametrize(
    ("name", "weight", "dies"),
    [
        ("gate.weight", torch.ones(2, 3), True),
        ("gate.weight", torch.ones(1, 3), False),  # one row is no sign
        ("gate.weight", torch.tensor([[1.0, 2.0], [1.0, 2.0], [1.0, 3.0], [1.0, 2.0]]), False),
        ("gate.weight", torch.tensor([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]]), True),
        ("gate.weight", torch.ones(4), False),  # a norm
        ("gate.weight", torch.ones(2, 3, 3), False),
        ("gate.weight", torch.ones(2, 3, dtype=torch.int8), False),  # quantized
        ("gate.bias", torch.ones(2, 3), False),
    ],
)
def test_a_matrix_of_one_row_again_and_again_is_dead(name: str, weight: torch.Tensor, dies: bool) -> None:
    policy = tiny_policy()
    model: Any = policy.model
    own = [(name, weight), *model.named_parameters()]
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    made = SimpleNamespace(
        named_parameters=lambda: iter(own),
        get_input_embeddings=lambda: embedding,
        get_output_embeddings=lambda: head,
    )
    found = weights_alive(SimpleNamespace(policy=policy, model=made))  # type: ignore[arg-type]
    assert found.evidence["matrices"] == ([name] if dies else [])
    assert (found.status == "fail") == dies
