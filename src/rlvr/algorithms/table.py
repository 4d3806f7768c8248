"""The algorithms: one row each, made of the functions next door.

A function's keyword-only parameters are settings of the same name: `token_clip(..., *, clip_low, clip_high)` gets
`algorithm.clip_low` and `algorithm.clip_high` of the configuration. A new algorithm is a row here, its section in
`config/schema/algorithms.py`, a YAML file and, at most, one new function.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from inspect import Parameter, signature
from types import MappingProxyType
from typing import Any, TypeVar

from torch import Tensor

from rlvr.algorithms.advantages import (
    Estimate,
    as_given,
    batch_normalized_returns,
    generalized_advantages,
    group_centered,
    group_normalized,
    is_dead_group,
    leave_one_out,
    soft_overlong,
)
from rlvr.algorithms.aggregation import AGGREGATIONS
from rlvr.algorithms.algorithm import Algorithm
from rlvr.algorithms.kl import ESTIMATORS
from rlvr.algorithms.losses import Surrogate, clipped_value_loss, detached_clip, sequence_clip, token_clip
from rlvr.algorithms.objective import (
    Objective,
    Shaping,
    estimate_advantages,
    minibatch_weights,
    rows_with_gradient,
    total_loss,
)
from rlvr.algorithms.ratios import CORRECTIONS
from rlvr.config.schema import AlgorithmConfig

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Row:
    """`Row(advantage=group_normalized, surrogate=token_clip)` is GRPO."""

    advantage: Callable[..., Estimate]
    surrogate: Callable[..., Surrogate]
    reward: Callable[..., Tensor] = as_given
    critic: Callable[..., Tensor] | None = None


TABLE: Mapping[str, Row] = MappingProxyType(
    {
        "grpo": Row(advantage=group_normalized, surrogate=token_clip),
        "dr_grpo": Row(advantage=group_centered, surrogate=token_clip),
        "dapo": Row(advantage=group_normalized, surrogate=token_clip, reward=soft_overlong),
        "rloo": Row(advantage=leave_one_out, surrogate=token_clip),
        "reinforce_pp": Row(advantage=batch_normalized_returns, surrogate=token_clip),
        "gspo": Row(advantage=group_normalized, surrogate=sequence_clip),
        "cispo": Row(advantage=group_normalized, surrogate=detached_clip),
        "ppo": Row(advantage=generalized_advantages, surrogate=token_clip, critic=clipped_value_loss),
    }
)


def make_algorithm(settings: AlgorithmConfig, *, max_completion_tokens: int) -> Algorithm:
    """The row `settings.name` with its numbers filled in."""
    row, needs = TABLE[settings.name], needed_tensors(settings)
    numbers: dict[str, Any] = settings.model_dump() | {"max_completion_tokens": max_completion_tokens}
    shaping, objective = make_shaping(settings, row, numbers), make_objective(settings, row, numbers, needs)
    other_terms = objective.kl_coef > 0 or objective.entropy_coef > 0 or objective.value_coef > 0
    aggregation = bind(AGGREGATIONS[settings.aggregation], numbers)
    return Algorithm(
        name=settings.name,
        needs=needs,
        num_epochs=settings.num_epochs,
        num_minibatches=settings.num_minibatches,
        target_kl=numbers.get("target_kl"),
        entropy_coef=settings.entropy_coef,
        dynamic_sampling=numbers.get("dynamic_sampling", False),
        max_refills=numbers.get("max_refills", 0),
        is_dead_group=is_dead_group,
        advantages=partial(estimate_advantages, shaping=shaping),
        weights=partial(minibatch_weights, aggregation=aggregation, truncated=settings.truncated),
        trainable=partial(rows_with_gradient, always=other_terms, truncated=settings.truncated),
        loss=partial(total_loss, objective=objective),
    )


def make_shaping(settings: AlgorithmConfig, row: Row, numbers: Mapping[str, Any]) -> Shaping:
    """How this row turns rewards into advantages."""
    return Shaping(
        reward=bind(row.reward, numbers),
        kl_estimator=ESTIMATORS[settings.kl_estimator],
        kl_coef=settings.kl_coef if settings.kl_placement == "reward" else 0.0,
        advantage=bind(row.advantage, numbers),
        truncated=settings.truncated,
    )


def make_objective(settings: AlgorithmConfig, row: Row, numbers: Mapping[str, Any], needs: frozenset[str]) -> Objective:
    """The terms of this row's loss."""
    mismatch = CORRECTIONS[settings.mismatch_correction]
    return Objective(
        old_is_given="old_logprobs" in needs,
        surrogate=bind(row.surrogate, numbers),
        mismatch=replace(mismatch, factor=bind(mismatch.factor, numbers)),
        mismatch_cap=settings.mismatch_cap,
        kl_estimator=ESTIMATORS[settings.kl_estimator],
        kl_coef=settings.kl_coef if settings.kl_placement == "loss" else 0.0,
        entropy_coef=settings.entropy_coef,
        critic=bind(row.critic, numbers) if row.critic else None,
        value_coef=numbers.get("value_coef", 0.0),
    )


def needed_tensors(settings: AlgorithmConfig) -> frozenset[str]:
    """What the trainer has to compute before `advantages`.

    With one update per batch the old policy is the current one, and recomputing it would be a wasted forward pass:
    the update's own pass gives the ratio (1) and the mismatch weights. A KL in the reward is needed before it.
    """
    kl_in_reward = settings.kl_coef > 0 and settings.kl_placement == "reward"
    several_updates = settings.num_epochs * settings.num_minibatches > 1
    wanted = {
        "old_logprobs": several_updates or kl_in_reward,
        "reference_logprobs": settings.kl_coef > 0,
        "values": TABLE[settings.name].critic is not None,
    }
    return frozenset(name for name, needed in wanted.items() if needed)


def bind(function: Callable[..., Result], numbers: Mapping[str, Any]) -> Callable[..., Result]:
    """`function` with each keyword-only parameter set to the number of that name; KeyError if there is none."""
    parameters = signature(function).parameters.values()
    return partial(function, **{p.name: numbers[p.name] for p in parameters if p.kind is Parameter.KEYWORD_ONLY})
