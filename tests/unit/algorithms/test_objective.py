"""The whole loss: identity at the first update, extreme values, masked tokens, metrics."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rlvr.algorithms.advantages import Estimate
from rlvr.algorithms.grpo import Grpo
from rlvr.algorithms.losses import Surrogate
from rlvr.algorithms.objective import AlgorithmError, LossTerms, Objective
from rlvr.types import Predictions
from tests.unit.algorithms.cases import (
    CORRECTIONS,
    MODES,
    NAMES,
    algorithm,
    batch_of,
    changed,
    current,
    loss_of,
    noisy,
    ragged_batch,
    without,
)

EVERY_TERM = {"kl_coef": 0.1, "entropy_coef": 0.01, "mismatch_correction": "truncate"}


def cap_of(correction: str) -> float:
    """A `mismatch_cap` that the correction allows."""
    return 1.2 if correction.startswith("geometric") else 2.0


def means(terms: LossTerms) -> dict[str, float]:
    """Sums divided by the number of tokens, as the trainer does."""
    return {name: (x / terms.sums["tokens"]).item() for name, x in terms.sums.items()}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_epochs", [1, 2])
def test_pitfall_21_nothing_differs_before_the_first_update(name: str, num_epochs: int):
    batch = ragged_batch()
    batch = changed(batch, behavior_logprobs=current(batch).detach(), reference_logprobs=batch.columns["old_logprobs"])
    chosen = algorithm(name, **EVERY_TERM | {"mismatch_correction": "none"}, num_epochs=num_epochs)
    found = means(loss_of(chosen, chosen.advantages(batch)))
    assert found["ratio"] == found["mismatch_weight"] == 1
    for key in ("clip_fraction", "clip_low", "clip_high", "approx_kl", "reference_kl", "mismatch_kl"):
        assert found[key] == 0, key
    assert found["clamped_tokens"] == found["mismatch_capped"] == 0


@pytest.mark.parametrize("name", NAMES)
def test_pitfall_22_after_an_update_the_ratio_is_not_one(name: str):
    batch, chosen = ragged_batch(), algorithm(name)
    assert "old_logprobs" in chosen.algorithm.columns()
    batch = replace(batch, behavior_logprobs=batch.behavior_logprobs - 5.0)  # must not be taken for the old policy
    found = means(loss_of(chosen, chosen.advantages(batch), current(batch) + 0.1))
    assert found["ratio"] == pytest.approx(1.105170918)
    assert found["approx_kl"] == pytest.approx(1.105170918 - 1.1)


def test_pitfall_22_old_logprobs_are_demanded_not_guessed():
    batch, chosen = ragged_batch(), algorithm("grpo")
    scored = without(chosen.advantages(batch), "old_logprobs")
    with pytest.raises(ValueError, match="no old_logprobs"):
        loss_of(chosen, scored, current(batch))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("extreme", [-torch.inf, -1e30, -200.0, 0.0])
def test_pitfall_16_extreme_logprobs_stay_finite_and_are_counted(name: str, estimator: str, extreme: float):
    names = ("logprobs", "old_logprobs", "behavior_logprobs", "reference_logprobs")
    for which in names:
        batch = batch_of([[0, 1, 1], [0, 1, 1]], [1.0, 0.0])
        tensors = {name: torch.full((2, 3), -60.0) for name in names}
        tensors[which][:, 1] = extreme
        logprobs = tensors.pop("logprobs").requires_grad_()
        chosen = algorithm(name, **EVERY_TERM | {"kl_estimator": estimator})
        scored = chosen.advantages(changed(batch, rewards=batch.rewards.float(), **tensors))
        predicted = Predictions(logprobs, torch.ones(2, 3), torch.zeros(2, 3, requires_grad=True))
        terms = loss_of(chosen, scored, predicted)
        terms.loss.backward()
        assert terms.loss.isfinite()
        assert logprobs.grad.isfinite().all()
        assert all(x.isfinite() for x in terms.sums.values())
        assert terms.sums["clamped_tokens"] == 2


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_pitfall_16_missing_behavior_logprobs_have_weight_one(correction: str):
    batch = ragged_batch()
    chosen = algorithm("grpo", mismatch_correction=correction, mismatch_cap=cap_of(correction))
    missing = torch.zeros_like(batch.loss_mask)
    missing[0, 3] = missing[1, 4] = True
    one, other = (
        loss_of(
            chosen,
            chosen.advantages(replace(batch, behavior_logprobs=torch.where(missing, value, batch.behavior_logprobs))),
            noisy(batch),
        )
        for value in (float("nan"), batch.columns["old_logprobs"])
    )
    assert one.loss.isfinite()
    assert torch.equal(one.loss, other.loss)
    assert one.sums["clamped_tokens"] == 2
    assert other.sums["clamped_tokens"] == 0


def test_pitfall_16_clamped_tokens_are_counted_once() -> None:
    """Of seven tokens one has an extreme ratio, two a strange sampler, one a far reference, one all three at once."""
    old, behavior, reference = (torch.full((1, 7), -1.0).double() for _ in range(3))
    old[0, [0, 4]] = -60.0  # current / old: tokens 0 and 4
    behavior[0, 0] = -60.0  # old / behavior of token 0 is sound
    behavior[0, 1], behavior[0, 2] = -60.0, float("nan")  # old / behavior: tokens 1, 2 and 4
    reference[0, [3, 4]] = -60.0
    tensors = {"old_logprobs": old, "behavior_logprobs": behavior, "reference_logprobs": reference}
    batch = changed(batch_of([[1] * 7], [1.0]), advantages=torch.ones(1, 7).double(), **tensors)
    for kl_coef, count in ((0.1, 5), (0.0, 4)):
        terms = loss_of(algorithm("grpo", kl_coef=kl_coef), batch, torch.full((1, 7), -1.0).double())
        assert terms.sums["clamped_tokens"] == count


def test_pitfall_15_the_logged_kl_has_the_policy_on_top() -> None:
    """k3 of log r = log pi - log pi_ref, with pi = 2 pi_ref: 1/2 - 1 + log 2. The other sign gives 2 - 1 - log 2."""
    batch = changed(ragged_batch(), reference_logprobs=current(ragged_batch()).detach() - math.log(2))
    for estimator in ("k1", "k2", "k3"):
        chosen = algorithm("grpo", kl_coef=0.1, kl_estimator=estimator)
        assert means(loss_of(chosen, chosen.advantages(batch)))["reference_kl"] == pytest.approx(-0.5 + math.log(2))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("junk", [float("nan"), float("inf"), -float("inf"), 3.0])
def test_pitfall_05_masked_positions_change_no_term(name: str, junk: float):
    batch, chosen = ragged_batch(), algorithm(name, **EVERY_TERM)
    scored = chosen.advantages(batch)
    weights = chosen.loss_weights(scored)
    predicted = noisy(batch)

    def spoil(x: Tensor) -> Tensor:
        return torch.where(weights > 0, x, junk)

    arrays = {n: x for n in ("advantages", "behavior_logprobs", "returns") if (x := getattr(scored, n)) is not None}
    spoiled = changed(scored, **{n: spoil(x) for n, x in {**arrays, **scored.columns}.items()})
    clean = chosen.loss(scored, weights, predicted)
    clean.loss.backward()
    expected, predicted.logprobs.grad = predicted.logprobs.grad, None
    dirty = chosen.loss(spoiled, weights, predicted.map(spoil))
    dirty.loss.backward()
    assert torch.equal(clean.loss, dirty.loss)
    assert torch.equal(expected, predicted.logprobs.grad)
    assert all(torch.equal(clean.sums[key], dirty.sums[key]) for key in clean.sums)


@pytest.mark.parametrize(("cap", "capped"), [(2.0, 1), (25.0, 0)])
def test_pitfall_23_metrics_report_weights_before_the_cap(cap: float, capped: int):
    batch = batch_of([[1, 1]], [1.0], behavior_logprobs=torch.tensor([[-1.0, -4.0]]).double())  # weights 1 and e^3
    for correction in ("none", "truncate", "mask"):
        chosen = algorithm("grpo", mismatch_correction=correction, mismatch_cap=cap)
        terms = loss_of(chosen, chosen.advantages(batch))
        assert terms.sums["mismatch_weight"].item() == pytest.approx(21.0855369)
        assert terms.sums["mismatch_capped"].item() == capped
        assert terms.sums["mismatch_kl"].item() == pytest.approx(20.0855369 - 1 - 3)


@pytest.mark.parametrize(
    ("correction", "weight"),
    [("sequence_truncate", 20.0855369), ("sequence_mask", 20.0855369), ("geometric_mask", 4.4816891)],
)
def test_pitfall_23_sequence_weights_are_logged_before_the_cap(correction: str, weight: float):
    for sign in (1, -1):
        behavior = torch.tensor([[-1.0, -1.0 - 3 * sign]]).double()
        batch = batch_of([[1, 1]], [1.0], behavior_logprobs=behavior)
        chosen = algorithm("grpo", mismatch_correction=correction, mismatch_cap=cap_of(correction))
        terms = loss_of(chosen, chosen.advantages(batch))
        assert terms.sums["mismatch_weight"].item() == pytest.approx(2 * weight**sign)
        # a small product takes itself out of the loss; a mean is near 1 anyway, and its rows are left out on both sides
        assert terms.sums["mismatch_capped"].item() == (2 if sign == 1 or correction == "geometric_mask" else 0)


def test_pitfall_22_with_one_update_the_correction_acts_alone():
    behavior = torch.tensor([[-1.0, -1.5]]).double()
    batch = replace(batch_of([[1, 1]], [1.0], behavior_logprobs=behavior), advantages=torch.ones(1, 2).double())
    found = []
    for num_epochs in (1, 2):
        chosen = algorithm("grpo", num_epochs=num_epochs, mismatch_correction="truncate")
        assert ("old_logprobs" in chosen.algorithm.columns()) == (num_epochs == 2)
        scored = batch if num_epochs == 2 else without(batch, "old_logprobs")
        logprobs = current(batch)
        terms = loss_of(chosen, scored, logprobs)
        terms.loss.backward()
        assert terms.sums["ratio"].item() == 2  # of two tokens
        torch.testing.assert_close(logprobs.grad, -0.5 * torch.tensor([[1.0, math.exp(0.5)]]).double())
        found.append(terms)
    assert found[0].loss == found[1].loss


@pytest.mark.parametrize(
    ("correction", "factors"),
    [
        ("none", [1, 1]),
        ("truncate", [1, 2]),
        ("mask", [1, 0]),
        ("sequence_truncate", [2, 2]),
        ("sequence_mask", [0, 0]),
        ("geometric_mask", [0, 0]),
        ("geometric_mask_tokens", [0, 0]),
    ],
)
def test_the_mismatch_weight_multiplies_the_policy_term_alone(correction: str, factors: list[float]):
    behavior = torch.tensor([[-1.0, -4.0]]).double()
    batch = replace(batch_of([[1, 1]], [1.0], behavior_logprobs=behavior), advantages=torch.ones(1, 2).double())
    terms = {"kl_coef": 0.5, "kl_estimator": "k1", "entropy_coef": 0.25}
    chosen = algorithm("grpo", mismatch_correction=correction, mismatch_cap=cap_of(correction), **terms)
    logprobs, entropy = current(batch), torch.ones(1, 2, dtype=torch.float64, requires_grad=True)
    chosen.loss(batch, chosen.loss_weights(batch), Predictions(logprobs, entropy)).loss.backward()
    torch.testing.assert_close(logprobs.grad, 0.5 * (0.5 - torch.tensor([factors]).double()))
    torch.testing.assert_close(entropy.grad, torch.full((1, 2), -0.125).double())


@pytest.mark.parametrize("mode", MODES)
def test_the_value_loss_has_the_weights_of_the_policy_loss(mode: str):
    batch, chosen = ragged_batch(), algorithm("ppo", aggregation=mode, value_clip=None, value_coef=0.3)
    scored, predicted = chosen.advantages(batch), noisy(batch)
    loss_of(chosen, scored, predicted).loss.backward()
    values = predicted.values
    torch.testing.assert_close(values.grad, chosen.loss_weights(scored) * 0.3 * (values.detach() - scored.returns))


def test_sums_are_over_trained_tokens_and_carry_no_gradient():
    batch, chosen = ragged_batch(), algorithm("ppo", **EVERY_TERM, truncated="mask")
    predicted = noisy(batch)
    sums = loss_of(chosen, chosen.advantages(batch), predicted).sums
    trained = batch.loss_mask & batch.valid[:, None] & ~batch.truncated[:, None]
    assert sums["tokens"] == trained.sum()
    torch.testing.assert_close(sums["entropy"], predicted.entropy.detach()[trained].sum())
    torch.testing.assert_close(sums["clip_fraction"], sums["clip_low"] + sums["clip_high"])
    assert not any(x.requires_grad for x in sums.values())


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({}, [True, True, False, False]),
        ({"kl_coef": 0.1}, [True, True, True, False]),
        ({"kl_coef": 0.1, "kl_placement": "reward"}, [True, True, False, False]),
        ({"entropy_coef": 0.1}, [True, True, True, False]),
    ],
)
def test_rows_that_can_move_the_gradient(overrides: dict[str, object], expected: list[bool]):
    groups, valid = torch.tensor([0, 0, 1, 1]), torch.tensor([True, True, True, False])
    batch = batch_of([[0, 1]] * 4, [1.0, 0.0, 1.0, 0.0], groups=groups, valid=valid)
    chosen = algorithm("grpo", **overrides)
    scored = chosen.advantages(batch)
    assert chosen.has_gradient(scored).tolist() == expected
    if not expected[2]:
        logprobs = current(batch)
        loss_of(chosen, scored, logprobs).loss.backward()
        assert (logprobs.grad[2:] == 0).all()


def own(method: str, returned: object = None, error: Exception | None = None) -> Objective:
    """An algorithm of the user's, one of whose methods returns or raises something else."""

    def changed(*_: object) -> object:
        if error is not None:
            raise error
        return returned

    mine = type("Mine", (Grpo,), {"__module__": "mine", method: changed})
    return Objective(algorithm=mine(), max_completion_tokens=8, temperature=1.0)


BATCH = ragged_batch()
SHAPE = BATCH.loss_mask.shape


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, "None"),
        (torch.ones(SHAPE), "a Tensor"),
        (Estimate(advantages=torch.ones(2)), r"advantages of shape \[2\]"),
        (Estimate(advantages=None), "advantages of type NoneType"),
        (Estimate(advantages=torch.full(SHAPE, math.inf)), "advantages with NaN or infinity"),
        (Estimate(advantages=torch.ones(SHAPE), returns=torch.full(SHAPE, math.nan)), "returns with NaN or infinity"),
    ],
)
def test_own_advantages_that_are_wrong_are_a_sentence(returned: object, said: str):
    wanted = rf"must return an Estimate with finite advantages \[B, T\] = \[{SHAPE[0]}, {SHAPE[1]}\]"
    with pytest.raises(AlgorithmError, match=rf"^algorithm mine:Mine: its method advantages {wanted}.*, not {said}"):
        own("advantages", returned).advantages(BATCH)


def test_an_own_algorithm_that_raises_is_a_sentence():
    wanted = r"^algorithm mine:Mine: its method advantages raised KeyError$"
    error = KeyError("rewards")
    with pytest.raises(AlgorithmError, match=wanted) as raised:
        own("advantages", error=error).advantages(BATCH)
    assert raised.value.__cause__ is error


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory")])
def test_an_own_algorithm_may_run_out_of_memory_like_ours(error: Exception):
    with pytest.raises(type(error)) as raised:
        own("advantages", error=error).advantages(BATCH)
    assert raised.value is error


def test_an_own_algorithm_may_leave_anything_outside_the_loss():
    made = torch.ones(SHAPE).masked_fill(~BATCH.loss_mask, math.nan)
    assert torch.isfinite(own("advantages", Estimate(advantages=made)).advantages(BATCH).advantages).all()


LOGPROBS = current(BATCH)
NONE = torch.zeros(SHAPE, dtype=torch.bool)
RIGHT = {"loss": LOGPROBS, "ratio": torch.ones(SHAPE), "clipped_low": NONE, "clipped_high": NONE}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (None, "None"),
        ({"loss": LOGPROBS.sum()}, r"loss of shape \[\]"),
        ({"loss": LOGPROBS.detach()}, "a loss without gradient"),
        ({"loss": LOGPROBS / 0}, "loss with NaN or infinity"),
        ({"ratio": 1.0}, "ratio of type float"),
    ],
)
def test_an_own_surrogate_that_is_wrong_is_a_sentence(changes: dict[str, Any] | None, said: str):
    mine = own("surrogate", None if changes is None else Surrogate(**(RIGHT | changes)))
    wanted = rf"^algorithm mine:Mine: its method surrogate must return a Surro.*, not {said}"
    with pytest.raises(AlgorithmError, match=wanted):
        loss_of(mine, algorithm("grpo").advantages(BATCH), LOGPROBS)


@pytest.mark.parametrize("broken", [slice(None), 3], ids=["everywhere", "one token"])
def test_a_nan_of_the_policy_reaches_the_loss(broken: slice | int):
    logprobs = current(BATCH).detach()
    logprobs[0, broken] = math.nan
    chosen = algorithm("grpo")
    assert loss_of(chosen, chosen.advantages(BATCH), logprobs).loss.isnan()
