"""Pitfalls 8 to 18: advantages, losses and their normalization."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rlvr.algorithms.advantages import Estimate
from rlvr.algorithms.objective import LossTerms, Objective
from rlvr.types import TokenBatch
from tests.pitfalls.planting import Planted, around, edit, without_method

TESTS = "tests/unit/algorithms/"
TRAINER = "tests/unit/core/test_trainer.py::test_pitfall_"
ADVANTAGES, WEIGHTS = TESTS + "test_advantages.py::test_pitfall_", TESTS + "test_weights.py::test_pitfall_"
OBJECTIVE, LEARNING = TESTS + "test_objective.py::test_pitfall_", TESTS + "test_learning.py::test_pitfall_"
LOSSES = TESTS + "test_losses.py::test_pitfall_"


def own_denominator(
    original: Callable[..., LossTerms], objective: Objective, rows: TokenBatch, weights: Tensor, *rest: Any
) -> LossTerms:
    terms = original(objective, rows, weights, *rest)
    return replace(terms, loss=terms.loss / weights.sum().clamp(min=1e-9))


def kl_rewarded(original: Callable[..., LossTerms], objective: Objective, *arguments: Any) -> LossTerms:
    algorithm = objective.algorithm.model_copy(update={"kl_coef": -objective.algorithm.kl_coef})
    return original(replace(objective, algorithm=algorithm), *arguments)


def noisy_mean(original: Callable[..., Any], rewards: Tensor, groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    _, counts, group = original(rewards, groups)
    mean = torch.zeros_like(counts).index_add(0, group, rewards) / counts
    return rewards - mean[group], counts, group


def by_length(original: Callable[..., Tensor], batch: TokenBatch, *, truncated: str) -> Tensor:
    mask = original(batch, truncated="keep")
    return mask & (mask.sum(1, keepdim=True) < 16) if truncated == "mask" else mask


def unbounded(original: Callable[..., Any], numerator: Tensor, denominator: Tensor) -> tuple[Tensor, Tensor]:
    return numerator - denominator, torch.zeros_like(numerator, dtype=torch.bool)


def one_ddof(original: Callable[..., Estimate], *arguments: Any) -> Estimate:
    return original(*arguments[:-1], "none" if arguments[-1] == "none" else "sample")


def over_tokens(aggregation: str, denominator: Callable[[Tensor], Any]) -> Callable[..., Tensor]:
    """Weights of one aggregation: 1 / `denominator(mask)`."""

    def weights(original: Callable[..., Tensor], mask: Tensor, *sets_and_mode: Any) -> Tensor:
        _, _, chosen, _ = sets_and_mode
        return mask / denominator(mask) if chosen == aggregation else original(mask, *sets_and_mode)

    return weights


def k3_upside_down(original: Callable[..., Tensor], log_ratio: Tensor, estimator: str) -> Tensor:
    return original(-log_ratio if estimator == "k3" else log_ratio, estimator)


BUGS = [
    Planted(
        pitfall=8,
        name="tool tokens are steps of the episode",
        plant=around(
            "rlvr.algorithms.advantages:squeeze_order",
            lambda original, mask: torch.arange(mask.shape[1]).expand(mask.shape),
        ),
        caught_by=ADVANTAGES + "08_tool_tokens_are_no_steps",
    ),
    Planted(
        pitfall=8,
        name="the critic's values at tool tokens are read",
        plant=around("rlvr.algorithms.advantages:squeeze", lambda original, x, mask, order: x.gather(1, order)),
        caught_by=ADVANTAGES + "08_tool_tokens_are_no_steps",
    ),
    Planted(
        pitfall=9,
        name="each microbatch has its own denominator",
        plant=around("rlvr.algorithms.objective:Objective.loss", own_denominator),
        caught_by=TRAINER + "09_the_gradient_ignores_how_the_batch_is_cut",
    ),
    Planted(
        pitfall=9,
        name="every rank samples all prompts",
        plant=around("rlvr.core.world:World.share", lambda original, self, items: items),
        caught_by="tests/unit/core/test_rollout.py::test_pitfall_09_each_rank_samples_its_share",
    ),
    Planted(
        pitfall=10,
        name="episodes outside the loss are counted",
        plant=around(
            "rlvr.algorithms.weights:num_within",
            lambda original, mask, sets: torch.tensor(len(sets.unique())),
        ),
        caught_by=WEIGHTS + "10_rows_outside_the_loss_count_nowhere",
    ),
    Planted(
        pitfall=10,
        name="tokens outside the loss are counted",
        plant=around("rlvr.algorithms.weights:loss_weights", over_tokens("token_mean", Tensor.numel)),
        caught_by=WEIGHTS + "10_rows_outside_the_loss_count_nowhere",
    ),
    Planted(
        pitfall=11,
        name="the mean over sequences is a mean over tokens",
        plant=around("rlvr.algorithms.weights:loss_weights", over_tokens("sequence_mean", Tensor.sum)),
        caught_by=WEIGHTS + "11_weight_of_a_token_of_10_and_of_100",
    ),
    Planted(
        pitfall=12,
        name="both choices of ddof are one",
        plant=around("rlvr.algorithms.advantages:group_normalized", one_ddof),
        caught_by=ADVANTAGES + "12_both_choices_of_ddof_by_hand",
    ),
    Planted(
        pitfall=12,
        name="a group of one is divided by zero",
        plant=edit("rlvr.algorithms.advantages:group_normalized", without_method("clamp")),
        caught_by=ADVANTAGES + "12_a_group_of_one_is_finite",
    ),
    Planted(
        pitfall=13,
        name="equal rewards keep the rounding noise of their mean",
        plant=around("rlvr.algorithms.advantages:center_within_groups", noisy_mean),
        caught_by=ADVANTAGES + "13_equal_rewards_give_exactly_zero_advantage",
    ),
    Planted(
        pitfall=13,
        name="only rewards of 0 and 1 make a dead group",
        plant=around(
            "rlvr.algorithms.advantages:is_dead_group", lambda original, rewards: sum(rewards) in (0, len(rewards))
        ),
        caught_by=ADVANTAGES + "13_dead_groups_are_recognized",
    ),
    Planted(
        pitfall=14,
        name="truncation is inferred from the length in the loss",
        plant=around("rlvr.algorithms.weights:trained_tokens", by_length),
        caught_by=ADVANTAGES + "14_truncation_is_the_flag_not_the_length",
    ),
    Planted(
        pitfall=14,
        name="the longest row of a batch counts as truncated",
        plant=around(
            "rlvr.core.batch:to_batch",
            lambda original, *a, **k: replace(b := original(*a, **k), truncated=b.lengths == b.lengths.max()),
        ),
        caught_by="tests/unit/core/test_batch.py::test_pitfall_14_an_end_on_the_last_token_is_no_truncation",
    ),
    Planted(
        pitfall=15,
        name="k3 with the ratio upside down",
        plant=around("rlvr.algorithms.losses:kl_estimate", k3_upside_down),
        caught_by=LOSSES + "15_the_enumerated_gradient_is_as_documented",
    ),
    Planted(
        pitfall=15,
        name="the KL is maximized",
        plant=around("rlvr.algorithms.objective:Objective.loss", kl_rewarded),
        caught_by=LOSSES + "15_descending_the_loss_lowers_the_exact_kl",
    ),
    Planted(
        pitfall=16,
        name="extreme ratios overflow",
        plant=around("rlvr.algorithms.losses:bounded_log_ratio", unbounded),
        caught_by=OBJECTIVE + "16_extreme_logprobs_stay_finite_and_are_counted",
    ),
    Planted(
        pitfall=16,
        name="a missing behavior logprob is NaN in the loss",
        plant=around("rlvr.algorithms.losses:mismatch_log_weight", unbounded),
        caught_by=OBJECTIVE + "16_missing_behavior_logprobs_have_weight_one",
    ),
    Planted(
        pitfall=17,
        name="a gradient flows through CISPO's weight",
        plant=edit("rlvr.algorithms.losses:detached_clip", without_method("detach")),
        caught_by=LEARNING + "17_the_loss_gradient_is_the_finite_difference",
    ),
    Planted(
        pitfall=17,
        name="half of the gradient is lost",
        plant=around(
            "rlvr.core.trainer:scatter", lambda original, flat, *rest: original((flat + flat.detach()) / 2, *rest)
        ),
        caught_by=TRAINER + "17_the_gradient_is_that_of_the_formula",
    ),
    Planted(
        pitfall=18,
        name="the loss has the wrong sign",
        plant=around(
            "rlvr.algorithms.losses:clip",
            lambda original, ratio, advantages, *rest: original(ratio, -advantages, *rest),
        ),
        caught_by=LEARNING + "18_a_bandit_is_learned",
    ),
]
