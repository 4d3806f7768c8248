"""The whole loss: identity at the first update, extreme values, masked tokens, metrics."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rlvr.core.algorithms.advantages import Estimate
from rlvr.core.algorithms.grpo import Grpo
from rlvr.core.algorithms.losses import Surrogate
from rlvr.core.algorithms.objective import LossTerms, Objective
from rlvr.core.policy import Predictions
from rlvr.errors import UserError
from rlvr.types import TokenBatch
from tests.unit.core.algorithms.cases import CORRECTIONS, MODES, NAMES, algorithm, batch_of, noisy, ragged_batch

EVERY_TERM = {"kl_coef": 0.1, "entropy_coef": 0.01, "mismatch_correction": "truncate"}


def cap_of(correction: str) -> float:
    """A `mismatch_cap` that the correction allows."""
    return 1.2 if correction == "geometric_mask" else 2.0


def means(terms: LossTerms) -> dict[str, float]:
    """Sums divided by the number of tokens, as the trainer does."""
    return {name: (x / terms.sums["tokens"]).item() for name, x in terms.sums.items()}


def loss_of(chosen: Objective, scored: TokenBatch, logprobs: Tensor | None = None) -> LossTerms:
    """The loss of a batch that has advantages, without a critic, at its old logprobs unless others are given."""
    now = current(scored) if logprobs is None else logprobs
    return chosen.loss(scored, chosen.loss_weights(scored), Predictions(now, torch.ones_like(now)))


def current(batch: TokenBatch) -> Tensor:
    """The old logprobs as the current policy's."""
    assert batch.old_logprobs is not None
    return batch.old_logprobs.clone().requires_grad_()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_epochs", [1, 2])
def test_pitfall_21_nothing_differs_before_the_first_update(name: str, num_epochs: int):
    batch = ragged_batch()
    batch = replace(batch, behavior_logprobs=current(batch).detach(), reference_logprobs=batch.old_logprobs)
    chosen = algorithm(name, **EVERY_TERM | {"mismatch_correction": "none"}, num_epochs=num_epochs)
    scored = chosen.advantages(batch)
    terms = chosen.loss(
        scored, chosen.loss_weights(scored), Predictions(current(batch), torch.ones_like(current(batch)), batch.values)
    )
    found = means(terms)
    assert found["ratio"] == found["mismatch_weight"] == 1
    for key in ("clip_fraction", "clip_low", "clip_high", "approx_kl", "reference_kl", "mismatch_kl"):
        assert found[key] == 0, key
    assert found["clamped_tokens"] == found["mismatch_capped"] == 0


@pytest.mark.parametrize("name", NAMES)
def test_pitfall_22_after_an_update_the_ratio_is_not_one(name: str):
    batch, chosen = ragged_batch(), algorithm(name)
    assert "old_logprobs" in chosen.algorithm.needs
    batch = replace(batch, behavior_logprobs=batch.behavior_logprobs - 5.0)  # must not be taken for the old policy
    scored = chosen.advantages(batch)
    moved = current(batch).detach() + 0.1
    terms = chosen.loss(scored, chosen.loss_weights(scored), Predictions(moved, torch.ones_like(moved), batch.values))
    assert means(terms)["ratio"] == pytest.approx(1.105170918)
    assert means(terms)["approx_kl"] == pytest.approx(1.105170918 - 1.1)


def test_pitfall_22_old_logprobs_are_demanded_not_guessed():
    batch, chosen = ragged_batch(), algorithm("grpo")
    scored = replace(chosen.advantages(batch), old_logprobs=None)
    with pytest.raises(ValueError, match="needs"):
        loss_of(chosen, scored, current(batch))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("extreme", [-torch.inf, -1e30, -200.0, 0.0])
def test_pitfall_16_extreme_logprobs_stay_finite_and_are_counted(name: str, estimator: str, extreme: float):
    for which in ("logprobs", "old_logprobs", "behavior_logprobs", "reference_logprobs"):
        batch = batch_of([[0, 1, 1], [0, 1, 1]], [1.0, 0.0])
        tensors = {"logprobs": torch.full((2, 3), -60.0)} | {
            key: torch.full((2, 3), -60.0) for key in ("old_logprobs", "behavior_logprobs", "reference_logprobs")
        }
        tensors[which][:, 1] = extreme
        logprobs = tensors.pop("logprobs").requires_grad_()
        chosen = algorithm(name, **EVERY_TERM | {"kl_estimator": estimator})
        scored = chosen.advantages(replace(batch, rewards=batch.rewards.float(), **tensors))
        values = torch.zeros(2, 3, requires_grad=True)
        terms = chosen.loss(scored, chosen.loss_weights(scored), Predictions(logprobs, torch.ones(2, 3), values))
        terms.loss.backward()
        assert terms.loss.isfinite()
        assert logprobs.grad is not None
        assert logprobs.grad.isfinite().all()
        assert all(x.isfinite() for x in terms.sums.values())
        assert terms.sums["clamped_tokens"] == 2


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_pitfall_16_missing_behavior_logprobs_have_weight_one(correction: str):
    batch = ragged_batch()
    assert batch.old_logprobs is not None
    chosen = algorithm("grpo", mismatch_correction=correction, mismatch_cap=cap_of(correction))
    missing = torch.zeros_like(batch.loss_mask)
    missing[0, 3] = missing[1, 4] = True
    gone = chosen.advantages(
        replace(batch, behavior_logprobs=torch.where(missing, float("nan"), batch.behavior_logprobs))
    )
    same = chosen.advantages(
        replace(batch, behavior_logprobs=torch.where(missing, batch.old_logprobs, batch.behavior_logprobs))
    )
    logprobs, entropy, _ = noisy(batch)
    one = chosen.loss(gone, chosen.loss_weights(gone), Predictions(logprobs, entropy))
    other = chosen.loss(same, chosen.loss_weights(same), Predictions(logprobs, entropy))
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
    batch = replace(batch_of([[1] * 7], [1.0]), advantages=torch.ones(1, 7).double(), **tensors)
    chosen = algorithm("grpo", kl_coef=0.1)
    logprobs = torch.full((1, 7), -1.0).double()

    def clamped(chosen: Objective) -> float:
        return loss_of(chosen, batch, logprobs).sums["clamped_tokens"].item()

    assert clamped(chosen) == 5
    assert clamped(algorithm("grpo")) == 4


def test_pitfall_15_the_logged_kl_has_the_policy_on_top() -> None:
    """k3 of log r = log pi - log pi_ref, with pi = 2 pi_ref: 1/2 - 1 + log 2. The other sign gives 2 - 1 - log 2."""
    batch = replace(ragged_batch(), reference_logprobs=current(ragged_batch()).detach() - math.log(2))
    for estimator in ("k1", "k2", "k3"):
        chosen = algorithm("grpo", kl_coef=0.1, kl_estimator=estimator)
        scored = chosen.advantages(batch)
        terms = loss_of(chosen, scored)
        assert means(terms)["reference_kl"] == pytest.approx(-0.5 + math.log(2))


def test_a_nan_of_the_policy_reaches_the_loss():
    batch, chosen = ragged_batch(), algorithm("grpo")
    scored = chosen.advantages(batch)
    logprobs = current(batch).detach()
    logprobs[0, 3] = float("nan")
    terms = loss_of(chosen, scored, logprobs)
    assert terms.loss.isnan()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("junk", [float("nan"), float("inf"), -float("inf"), 3.0])
def test_pitfall_05_masked_positions_change_no_term(name: str, junk: float):
    batch, chosen = ragged_batch(), algorithm(name, **EVERY_TERM)
    scored = chosen.advantages(batch)
    weights = chosen.loss_weights(scored)
    logprobs, entropy, values = noisy(batch)

    def spoil(x: Tensor | None) -> Tensor:
        assert x is not None
        return torch.where(weights > 0, x, junk)

    spoiled = replace(
        scored,
        advantages=spoil(scored.advantages),
        old_logprobs=spoil(scored.old_logprobs),
        reference_logprobs=spoil(scored.reference_logprobs),
        behavior_logprobs=spoil(scored.behavior_logprobs),
        values=spoil(scored.values),
        returns=None if scored.returns is None else spoil(scored.returns),
    )
    clean = chosen.loss(scored, weights, Predictions(logprobs, entropy, values))
    clean.loss.backward()
    expected, logprobs.grad = logprobs.grad, None
    dirty = chosen.loss(spoiled, weights, Predictions(spoil(logprobs), spoil(entropy), spoil(values)))
    dirty.loss.backward()
    assert torch.equal(clean.loss, dirty.loss)
    assert expected is not None
    assert logprobs.grad is not None
    assert torch.equal(expected, logprobs.grad)
    assert all(torch.equal(clean.sums[key], dirty.sums[key]) for key in clean.sums)


@pytest.mark.parametrize(("cap", "capped"), [(2.0, 1), (25.0, 0)])
def test_pitfall_23_metrics_report_weights_before_the_cap(cap: float, capped: int):
    batch = batch_of([[1, 1]], [1.0], behavior_logprobs=torch.tensor([[-1.0, -4.0]]).double())  # weights 1 and e^3
    for correction in ("none", "truncate", "mask"):
        chosen = algorithm("grpo", mismatch_correction=correction, mismatch_cap=cap)
        scored = chosen.advantages(batch)
        terms = loss_of(chosen, scored)
        assert terms.sums["mismatch_weight"].item() == pytest.approx(21.0855369)
        assert terms.sums["mismatch_capped"].item() == capped
        assert terms.sums["mismatch_kl"].item() == pytest.approx(20.0855369 - 1 - 3)


@pytest.mark.parametrize(
    ("correction", "weight", "capped"),
    [("sequence_truncate", 20.0855369, 2), ("sequence_mask", 20.0855369, 2), ("geometric_mask", 4.4816891, 2)],
)
def test_pitfall_23_sequence_weights_are_logged_before_the_cap(correction: str, weight: float, capped: int):
    for sign in (1, -1):
        behavior = torch.tensor([[-1.0, -1.0 - 3 * sign]]).double()
        batch = batch_of([[1, 1]], [1.0], behavior_logprobs=behavior)
        chosen = algorithm("grpo", mismatch_correction=correction, mismatch_cap=cap_of(correction))
        scored = chosen.advantages(batch)
        terms = loss_of(chosen, scored)
        assert terms.sums["mismatch_weight"].item() == pytest.approx(2 * weight**sign)
        # a small product takes itself out of the loss; a mean is near 1 anyway, and its rows are left out on both sides
        assert terms.sums["mismatch_capped"].item() == (capped if sign == 1 or correction == "geometric_mask" else 0)


def test_pitfall_22_with_one_update_the_correction_acts_alone():
    behavior = torch.tensor([[-1.0, -1.5]]).double()
    batch = replace(batch_of([[1, 1]], [1.0], behavior_logprobs=behavior), advantages=torch.ones(1, 2).double())
    found = []
    for num_epochs in (1, 2):
        chosen = algorithm("grpo", num_epochs=num_epochs, mismatch_correction="truncate")
        assert ("old_logprobs" in chosen.algorithm.needs) == (num_epochs == 2)
        scored = batch if num_epochs == 2 else replace(batch, old_logprobs=None)
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
    scored = chosen.advantages(batch)
    logprobs, entropy, values = noisy(batch)
    chosen.loss(scored, chosen.loss_weights(scored), Predictions(logprobs, entropy, values)).loss.backward()
    assert scored.returns is not None
    torch.testing.assert_close(values.grad, chosen.loss_weights(scored) * 0.3 * (values.detach() - scored.returns))


def test_sums_are_over_trained_tokens_and_carry_no_gradient():
    batch, chosen = ragged_batch(), algorithm("ppo", **EVERY_TERM, truncated="mask")
    scored = chosen.advantages(batch)
    logprobs, entropy, values = noisy(batch)
    terms = chosen.loss(scored, chosen.loss_weights(scored), Predictions(logprobs, entropy, values))
    trained = batch.loss_mask & batch.valid[:, None] & ~batch.truncated[:, None]
    assert terms.sums["tokens"] == trained.sum()
    torch.testing.assert_close(terms.sums["entropy"], entropy.detach()[trained].sum())
    torch.testing.assert_close(terms.sums["clip_fraction"], terms.sums["clip_low"] + terms.sums["clip_high"])
    assert not any(x.requires_grad for x in terms.sums.values())


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
    assert chosen.has_gradient(chosen.advantages(batch)).tolist() == expected
    if expected[2]:
        return
    logprobs = current(batch)
    scored = chosen.advantages(batch)
    chosen.loss(scored, chosen.loss_weights(scored), Predictions(logprobs, torch.ones(4, 2))).loss.backward()
    assert logprobs.grad is not None
    assert (logprobs.grad[2:] == 0).all()


def own(method: str, returned: object) -> Objective:
    """An algorithm of the user's, one of whose methods returns something else."""
    mine = type("Mine", (Grpo,), {"__module__": "mine", method: lambda *arguments: returned})
    return Objective(algorithm=mine(), max_completion_tokens=8, temperature=1.0)


def wrong_estimates(shape: torch.Size) -> dict[str, object]:
    return {
        "None": None,
        "a Tensor": torch.ones(shape),
        r"advantages of shape \[2\]": Estimate(advantages=torch.ones(2)),
        "advantages of type NoneType": Estimate(advantages=None),  # type: ignore[arg-type]
        "advantages with NaN or infinity": Estimate(advantages=torch.full(shape, math.inf)),
        "returns with NaN or infinity": Estimate(advantages=torch.ones(shape), returns=torch.full(shape, math.nan)),
    }


@pytest.mark.parametrize("came", wrong_estimates(torch.Size([1])))
def test_own_advantages_that_are_wrong_are_a_sentence(came: str):
    batch = ragged_batch()
    shape = batch.loss_mask.shape
    wanted = rf"must return an Estimate with finite advantages \[B, T\] = \[{shape[0]}, {shape[1]}\]"
    with pytest.raises(UserError, match=rf"^algorithm=mine:Mine: its method advantages {wanted}.*, not {came}"):
        own("advantages", wrong_estimates(shape)[came]).advantages(batch)


def test_an_own_algorithm_that_raises_is_a_sentence():
    def advantages(*_: object) -> None:
        raise KeyError("rewards")

    mine = type("Mine", (Grpo,), {"__module__": "mine", "advantages": advantages})
    wanted = r"^algorithm=mine:Mine: its method advantages raised KeyError: 'rewards' \(.*test_objective.py, line \d+\)"
    with pytest.raises(UserError, match=wanted):
        Objective(algorithm=mine(), max_completion_tokens=8, temperature=1.0).advantages(ragged_batch())


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory")])
def test_an_own_algorithm_may_run_out_of_memory_like_ours(error: Exception):
    def advantages(*_: object) -> None:
        raise error

    mine = type("Mine", (Grpo,), {"__module__": "mine", "advantages": advantages})
    with pytest.raises(type(error)) as raised:
        Objective(algorithm=mine(), max_completion_tokens=8, temperature=1.0).advantages(ragged_batch())
    assert raised.value is error


def test_an_own_algorithm_may_leave_anything_outside_the_loss():
    batch = ragged_batch()
    made = torch.ones(batch.loss_mask.shape).masked_fill(~batch.loss_mask, math.nan)
    scored = own("advantages", Estimate(advantages=made)).advantages(batch)
    assert scored.advantages is not None
    assert torch.isfinite(scored.advantages).all()


@pytest.mark.parametrize(
    "came",
    ["None", "a loss without gradient", r"loss of shape \[\]", "loss with NaN or infinity", "ratio of type float"],
)
def test_an_own_surrogate_that_is_wrong_is_a_sentence(came: str):
    batch = algorithm("grpo").advantages(ragged_batch())
    logprobs = current(batch)
    none, one = torch.zeros_like(batch.loss_mask), torch.ones_like(logprobs)
    found = {
        "None": None,
        r"loss of shape \[\]": Surrogate(loss=logprobs.sum(), ratio=one, clipped_low=none, clipped_high=none),
        "a loss without gradient": Surrogate(loss=logprobs.detach(), ratio=one, clipped_low=none, clipped_high=none),
        "loss with NaN or infinity": Surrogate(loss=logprobs / 0, ratio=one, clipped_low=none, clipped_high=none),
        "ratio of type float": Surrogate(loss=logprobs, ratio=1.0, clipped_low=none, clipped_high=none),  # type: ignore[arg-type]
    }
    mine = own("surrogate", found[came])
    with pytest.raises(
        UserError, match=rf"^algorithm=mine:Mine: its method surrogate must return a Surro.*, not {came}"
    ):
        mine.loss(batch, mine.loss_weights(batch), Predictions(logprobs, one))


def test_a_policy_that_is_not_finite_is_not_the_surrogates_fault():
    batch, chosen = algorithm("grpo").advantages(ragged_batch()), algorithm("grpo")
    broken = current(batch).detach() * math.nan
    assert not loss_of(chosen, batch, broken).loss.isfinite()
