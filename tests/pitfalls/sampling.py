"""Pitfalls 19 to 25 and 30 to 36: the sampler and the trainer are one policy."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from rlvr.algorithms.objective import LossTerms
from rlvr.core.engine.sampler import Draw
from rlvr.types import TokenBatch
from tests.pitfalls.planting import (
    Planted,
    around,
    constant,
    edit,
    first_operand,
    renamed,
    without_call,
)

ALGORITHMS, LOCAL, VLLM = "tests/unit/algorithms/", "tests/unit/core/engine/", "tests/unit/engines/vllm/"
TRAINER = "tests/unit/core/test_trainer.py::test_pitfall_"
OBJECTIVE, LOSSES = ALGORITHMS + "test_objective.py::test_pitfall_", ALGORITHMS + "test_losses.py::test_pitfall_"
ENGINE, SAMPLER = LOCAL + "test_engine.py::test_pitfall_", LOCAL + "test_sampler.py::test_pitfall_"
VERSIONS, PUSH = LOCAL + "test_versions.py::test_pitfall_", VLLM + "test_push.py::test_pitfall_"
STALENESS = "tests/unit/core/test_staleness.py::test_pitfall_"
SCHEDULE = "tests/unit/core/test_rollout.py::test_pitfall_"
ADAPTERS = "tests/unit/models/test_adapters.py::test_pitfall_"
NEW_WEIGHTS = VERSIONS + "30_a_copy_samples_with_its_last_load"


def at_temperature_1(original: Callable[..., Draw], logits: Tensor, *rest: Any, **more: Any) -> Draw:
    draw = original(logits, *rest, **more)
    logprobs = torch.log_softmax(logits.float(), dim=-1).gather(1, draw.ids[:, None])
    return draw._replace(behavior_logprobs=logprobs[:, 0])


def of_the_truncated(original: Callable[..., Draw], *rest: Any, **more: Any) -> Draw:
    draw = original(*rest, **more)
    return draw._replace(behavior_logprobs=draw.sampling_logprobs)


def old_is_current(
    original: Callable[..., LossTerms], objective: Any, rows: TokenBatch, weights: Tensor, predicted: Any
) -> LossTerms:
    return original(objective, rows.with_columns(old_logprobs=predicted.logprobs.detach()), weights, predicted)


def old_is_behavior(original: Callable[..., TokenBatch], trainer: Any, batch: TokenBatch) -> TokenBatch:
    return original(trainer, batch).with_columns(old_logprobs=batch.behavior_logprobs - 0.1)


def clipped_upwards(original: Callable[..., Tensor], values: Tensor, old: Tensor, *rest: Any, **more: Any) -> Tensor:
    return torch.where(
        values < old, original(values, old, *rest, value_clip=None), original(values, old, *rest, **more)
    )


async def first_come(original: Any, source: Any, indices: Any, *, step: int) -> list[Any]:
    groups = [original(source, [index], step=step) for index in indices]
    return [(await done)[0] for done in asyncio.as_completed(groups)]


def last_in(original: Any, scheduler: Any, request: Any) -> None:
    original(scheduler, request)
    scheduler.waiting.remove(request)
    scheduler.waiting.append(request)


def merged_and_unmerged(original: Callable[..., AbstractContextManager[None]], model: Any) -> Iterator[None]:
    for layer in model.modules():
        if hasattr(layer, "get_delta_weight"):
            layer.merge()
            layer.unmerge()
    return iter(original(model))


def in_bf16(original: Callable[..., None], trainer: Any, *, policy: Any, **settings: Any) -> None:
    policy.model.bfloat16()
    original(trainer, policy=policy, **settings)


def training_mode(original: Callable[..., Any], trainer: Any, *arguments: Any) -> Any:
    trainer.policy.model.train()
    return original(trainer, *arguments)


BUGS = [
    Planted(
        pitfall=19,
        name="the trainer scores at temperature 1",
        plant=around(
            "rlvr.core.policy:Policy.predict",
            lambda original, self, hidden, targets, temperature, **more: original(self, hidden, targets, 1.0, **more),
        ),
        caught_by=TRAINER + "19_the_trainer_scores_at_the_temperature",
    ),
    Planted(
        pitfall=19,
        name="the engine reports logprobs at temperature 1",
        plant=around("rlvr.core.engine.sampler:sample", at_temperature_1),
        caught_by=ENGINE + "19_logprobs_are_at_the_sampling_temperature",
    ),
    Planted(
        pitfall=20,
        name="behavior logprobs are those of the truncated distribution",
        plant=around("rlvr.core.engine.sampler:sample", of_the_truncated),
        caught_by=ENGINE + "20_truncated_requests_get_both_logprobs",
    ),
    Planted(
        pitfall=20,
        name="the token that crosses top_p is dropped",
        plant=edit("rlvr.core.engine.sampler:kept_tokens", first_operand(ast.Sub)),
        caught_by=SAMPLER + "20_the_token_that_crosses_top_p_stays",
    ),
    Planted(
        pitfall=21,
        name="the reference learns with the policy",
        plant=around("rlvr.core.policy:Policy.freeze", lambda original, self, moves: lambda: nullcontext(self)),
        caught_by=TRAINER + "21_the_reference_stays_the_start_policy",
    ),
    Planted(
        pitfall=21,
        name="numerator and denominator have different temperatures",
        plant=around("rlvr.algorithms.losses:bounded_log_ratio", lambda original, p, q: original(p / 0.9, q)),
        caught_by=OBJECTIVE + "21_nothing_differs_before_the_first_update",
    ),
    Planted(
        pitfall=22,
        name="the old policy is the current one",
        plant=around("rlvr.algorithms.objective:Objective.loss", old_is_current),
        caught_by=OBJECTIVE + "22_after_an_update_the_ratio_is_not_one",
    ),
    Planted(
        pitfall=22,
        name="the old policy is the sampler's",
        plant=around("rlvr.core.trainer:Trainer.score", old_is_behavior),
        caught_by=TRAINER + "22_old_logprobs_stay_for_all_updates",
    ),
    Planted(
        pitfall=22,
        name="values are clipped on one side",
        plant=around("rlvr.algorithms.losses:clipped_value_loss", clipped_upwards),
        caught_by=LOSSES + "22_clipped_value_loss_by_hand",
    ),
    Planted(
        pitfall=22,
        name="the optimistic side of the clip",
        plant=edit("rlvr.algorithms.losses:clip", renamed("maximum", "minimum")),
        caught_by=LOSSES + "22_table_of_ratio_and_advantage",
    ),
    Planted(
        pitfall=23,
        name="the ratio of a sequence is exp(sum)",
        plant=around(
            "rlvr.algorithms.losses:sequence_log_ratio",
            lambda original, x, mask: original(x, mask) * mask.sum(1, keepdim=True),
        ),
        caught_by=LOSSES + "23_the_sequence_ratio_is_the_exp_of_the_mean",
    ),
    Planted(
        pitfall=23,
        name="weights are logged after the cap",
        plant=around(
            "rlvr.algorithms.losses:mismatch_weight",
            lambda original, *arguments: original(*arguments).clamp(max=2.0),
        ),
        caught_by=OBJECTIVE + "23_metrics_report_weights_before_the_cap",
    ),
    Planted(
        pitfall=24,
        name="the age of tokens is not checked",
        plant=around("rlvr.core.batch:check_staleness", lambda original, *arguments: {}),
        caught_by="tests/unit/core/test_loop.py::test_pitfall_24_tokens_that_are_too_old_are_not_trained_on",
    ),
    Planted(
        pitfall=24,
        name="the newest batch is delivered first",
        plant=edit("rlvr.core.rollout:RolloutSchedule.next_batch", renamed("popleft", "pop")),
        caught_by=STALENESS + "24_delivery_in_issue_order_keeps_the_bound",
    ),
    Planted(
        pitfall=30,
        name="a completion keeps the version of its first token",
        plant=around("rlvr.core.engine.request:Request.note_version", lambda original, *arguments: None),
        caught_by=NEW_WEIGHTS,
    ),
    Planted(
        pitfall=25,
        name="the shortest rollouts fill the batch first",
        plant=around("rlvr.core.rollout:RolloutSource.sample", first_come),
        caught_by=STALENESS + "25_trained_episodes_are_as_long_as_sampled",
    ),
    Planted(
        pitfall=25,
        name="requests are not admitted by priority",
        plant=around("rlvr.core.engine.scheduler:Scheduler.submit", last_in),
        caught_by=ENGINE + "25_smaller_priorities_start_first",
    ),
    Planted(
        pitfall=30,
        name="the sampler keeps its first weights",
        plant=around(
            "rlvr.core.engine.engine:LocalEngine.load_weights",
            lambda original, self, version: self._scheduler.new_weights(version),
        ),
        caught_by=NEW_WEIGHTS,
    ),
    Planted(
        pitfall=30,
        name="a vLLM server's logprobs are not compared after a push",
        plant=around("rlvr.engines.vllm.push:_check_gap", lambda original, *arguments: None),
        caught_by=PUSH + "30_the_probe_finds_a_head_with_old_weights",
    ),
    Planted(
        pitfall=31,
        name="sessions keep keys and values of old weights",
        plant=edit("rlvr.core.engine.scheduler:Scheduler.new_weights", without_call("clear")),
        caught_by=ENGINE + "31_new_weights_drop_every_cached_key_and_value",
    ),
    Planted(
        pitfall=31,
        name="vLLM's prefix cache survives a push",
        plant=around("rlvr.engines.vllm.server:Server.forget_prefixes", lambda original, self: None),
        caught_by=PUSH + "31_a_kept_prefix_cache_is_an_error",
    ),
    Planted(
        pitfall=32,
        name="the adapters stay on in the reference pass",
        plant=around("rlvr.models.adapters:without_adapters", lambda original, model: iter([None])),
        caught_by=ADAPTERS + "32_the_reference_is_the_model_without_adapters",
    ),
    Planted(
        pitfall=32,
        name="each reference pass merges and unmerges the adapters",
        plant=around("rlvr.models.adapters:without_adapters", merged_and_unmerged),
        caught_by=ADAPTERS + "32_only_adapters_move",
    ),
    Planted(
        pitfall=33,
        name="the trained weights are bf16",
        plant=around("rlvr.core.trainer:Trainer.__init__", in_bf16),
        caught_by=TRAINER + "33_a_tiny_update_is_not_rounded_away",
    ),
    Planted(
        pitfall=33,
        name="gradients of chunks are accumulated in bf16",
        plant=around("rlvr.core.policy:_without_cast_cache", lambda original: iter([None])),
        caught_by="tests/unit/core/test_policy.py::test_pitfall_33_gradients_of_chunks_are_summed_in_float32",
    ),
    Planted(
        pitfall=34,
        name="dropout is on in the update",
        plant=around("rlvr.core.trainer:Trainer.update", training_mode),
        caught_by=TRAINER + "34_dropout_in_the_model_config_stays_off",
    ),
    Planted(
        pitfall=35,
        name="router noise is on while sampling",
        plant=edit("rlvr.core.engine.engine:LocalEngine._serving", constant(False, True)),
        caught_by=ENGINE + "35_engine_and_trainer_use_the_same_experts",
    ),
    Planted(
        pitfall=36,
        name="the run seed reaches no draw",
        plant=around("rlvr.seeding:derive_seed", lambda original, seed, *path: original(0, *path)),
        caught_by=SCHEDULE + "36_every_completion_has_its_own_seed",
    ),
    Planted(
        pitfall=36,
        name="the members of a group share a stream",
        plant=around(
            "rlvr.core.engine.sampler:streams", lambda original, seeds: original(seeds[:1]).expand(len(seeds))
        ),
        caught_by=ENGINE + "36_members_of_a_group_share_no_stream",
    ),
]
