"""The yardstick of comparisons: what rounding moves is equal in any model, what a wrong context moves is not."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from rlvr.core.engine.engine import LocalEngine
from rlvr.core.noise import LOOKS, Noise, Prompts, confirmed, embeddings_moved, measure, probe_rows
from rlvr.models.layout import choose_layout
from tests.unit.core.tiny import tiny_policy
from tests.unit.engines.tiny import tiny_model


def test_rows_are_text_behind_the_first_token_as_in_the_docstring() -> None:
    assert probe_rows([[1, 5, 6], [1, 7]], 100, (3, 4)) == [[1, 5, 6], [1, 7, 5, 6]]
    assert probe_rows([[], [3]], 100, (3,)) == probe_rows([], 100, (3,)), "one token is no text"
    assert all(0 <= token < 2 for row in probe_rows([], 2, (9, 9)) for token in row)


def test_looks_are_at_other_text() -> None:
    text = [list(range(50)), list(range(50, 90))]
    looks = [probe_rows(text, 100, (6, 8), look) for look in range(LOOKS)]
    assert all(row[0] == 0 for rows in looks for row in rows)
    tokens = [token for rows in looks for row in rows for token in row[1:]]
    assert len(set(tokens)) == len(tokens)


@pytest.mark.parametrize(("differs_on", "differs"), [("", 0), ("0", 0), ("12", 0), ("01", 1), ("02", 1), ("012", 1)])
def test_a_difference_is_seen_on_the_first_text_and_another(differs_on: str, differs: bool) -> None:
    looks = list[int]()

    def compare(look: int) -> str | None:
        looks.append(look)
        return f"text {look} differs" if str(look) in differs_on else None

    assert (confirmed(compare) is not None) == differs
    assert looks == ([0] if "0" not in differs_on else [0, 1] if "1" in differs_on else [0, 1, 2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_each_number_of_the_embeddings_moves_by_one_unit_in_the_last_place(dtype: torch.dtype) -> None:
    model = tiny_model().to(dtype)
    embeddings = model.get_input_embeddings()
    with torch.no_grad():
        embeddings.weight[0] = 0
    ids = torch.arange(40)
    before = embeddings(ids)
    with embeddings_moved(model, dtype, seed=0):
        moved = embeddings(ids)
    assert torch.equal(embeddings(ids), before)
    assert torch.equal(moved[0], before[0]), "zeros have no last place"
    mantissa, _ = torch.frexp(before[1:].float())
    units = ((moved[1:] - before[1:]).float() / torch.finfo(dtype).eps / (before[1:].float() / mantissa / 2)).abs()
    below_a_power_of_two = mantissa.abs() == 0.5  # the unit there is half as large
    assert set(units[~below_a_power_of_two].tolist()) == {1.0}


def test_a_row_is_measured_by_its_own_noise() -> None:
    zero = torch.zeros(4)
    noise = Noise(plain=(zero, zero), rows=(1.0, 3.0), allowed=3.0)
    assert noise.times((zero + 1, zero + 6)) == 2
    assert noise.times((zero + 2.5, zero)) == 2.5
    assert noise.excess((zero + 2.5, zero)) is None
    assert noise.excess((zero, zero + 10)) == "3.33 times its rounding noise"
    assert noise.times((zero + math.nan, zero)) == math.inf
    assert noise.excess((zero, zero + math.nan)) is not None


@pytest.mark.parametrize(("dtype", "right", "wrong"), [(torch.float32, 5, 50), (torch.bfloat16, 1.5, 2.3)])
def test_right_and_wrong_ways_as_far_apart_as_measured(dtype: torch.dtype, right: float, wrong: float) -> None:
    model = tiny_model().eval().to(dtype)
    ids = torch.tensor([[3, 9, 4, 30, 12]])
    noise = measure(model, dtype, lambda: [torch.log_softmax(model(input_ids=ids).logits[0].float(), -1)])
    one = noise.plain[0].double()
    assert noise.excess([one + right * noise.rows[0]]) is None
    assert noise.excess([one + wrong * noise.rows[0]]) is not None


def test_both_probes_ask_the_policys_own_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def spy(prompts: Prompts, *more: Any) -> list[list[int]]:
        asked.append(prompts)
        return probe_rows(prompts, *more)

    for module in ("rlvr.core.engine.select", "rlvr.models.layout"):
        monkeypatch.setattr(f"{module}.probe_rows", spy)
    policy = replace(tiny_policy(), prompts=((1, 5, 6, 7), (1, 8, 9)))
    LocalEngine(policy.model, max_batch_size=2, max_context_tokens=16, prompts=policy.prompts).close()
    choose_layout(policy)
    assert asked == [policy.prompts, policy.prompts]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_noise_of_a_pass_is_that_of_its_dtype(dtype: torch.dtype) -> None:
    model = tiny_model().eval().to(dtype)
    ids = torch.tensor([[3, 9, 4, 30, 12]])

    def plain() -> list[torch.Tensor]:
        return [torch.log_softmax(model(input_ids=ids).logits[0].float(), -1)]

    size = measure(model, dtype, plain).rows[0]
    assert torch.finfo(dtype).eps / 20 < size < torch.finfo(dtype).eps * 20
    coarse = measure(model, torch.bfloat16, partial(plain)).rows[0]
    assert coarse >= size
