"""Two models have one fingerprint exactly if the same is sampled from them."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rlvr.config.compose import load_config
from rlvr.models.fingerprint import SAMPLED_NUMBERS, fingerprint
from rlvr.models.loading import load_for_inference
from rlvr.models.policy import HubPolicy
from rlvr.models.scratch import build_model, build_tokenizer
from rlvr.models.settings import ScratchModel


@pytest.fixture
def policy() -> HubPolicy:
    settings = load_config([], config_name="rpn_test").model
    assert isinstance(settings, ScratchModel)
    tokenizer = build_tokenizer(("<pad>", "<boe>", "<eoe>", "=", "+", "1", "2"))
    return HubPolicy(model=build_model(settings, tokenizer, seed=0).eval(), tokenizer=tokenizer)


def test_where_a_model_lies_is_no_part_of_it(policy: HubPolicy, tmp_path: Path) -> None:
    for name in ("a", "b"):
        policy.save(tmp_path / name)
    loaded = [fingerprint(load_for_inference(str(tmp_path / name))) for name in ("a", "b")]
    assert loaded[0] == loaded[1]
    assert len(loaded[0]) == 16


def test_pitfall_38_a_change_of_any_one_weight_is_another_model(policy: HubPolicy) -> None:
    before = fingerprint(policy)
    weight = max(policy.model.parameters(), key=torch.Tensor.numel)
    flat = weight.detach().view(-1)
    step = len(flat) // SAMPLED_NUMBERS
    assert step > 1
    for place in (0, 1, step, len(flat) - 1):  # among the numbers that are looked at one by one, and not
        number = flat[place].clone()
        flat[place] = torch.nextafter(number, torch.tensor(1e9))
        assert fingerprint(policy) != before, place
        flat[place] = number
    first, second = flat[0].clone(), flat[step].clone()
    flat[0], flat[step] = second, first  # the same numbers in another order
    assert fingerprint(policy) != before
    flat[0], flat[step] = first, second
    assert fingerprint(policy) == before


def test_pitfall_38_another_tokenizer_or_end_is_another_model(policy: HubPolicy) -> None:
    before = fingerprint(policy)
    other = build_tokenizer(("<pad>", "<boe>", "<eoe>", "=", "+", "2", "1"))
    assert fingerprint(replace(policy, tokenizer=other)) != before
    templated = copy.deepcopy(policy.tokenizer)
    templated.chat_template = "{{ messages }}"
    assert fingerprint(replace(policy, tokenizer=templated)) != before
    policy.model.generation_config.eos_token_id = [2, 3]
    assert fingerprint(policy) != before
