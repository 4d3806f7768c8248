"""The memory plan of a run."""

from dataclasses import replace
from functools import partial
from statistics import fmean

import torch

from rlvr.algorithms.columns import START, teachers_of
from rlvr.chat.rendering import Chat
from rlvr.config import Config
from rlvr.core.packing import Layout
from rlvr.core.world import World
from rlvr.models.devices import half_dtype
from rlvr.models.policy import HubPolicy
from rlvr.run import teachers
from rlvr.run.tasks import context_tokens, first_prompt
from rlvr.tasks.base import Task
from rlvr.training.memory import (
    Demand,
    MemoryPlan,
    available_memory,
    keys_values_bytes,
    library_bytes,
    measure_activations,
    plan_memory,
    weight_bytes,
)

EXAMPLES = 16
"""Number of examples whose prompts are measured."""


def plan_run(
    config: Config, policy: HubPolicy, chat: Chat, task: Task, *, layout: Layout, world: World, longest_row: int = 0
) -> MemoryPlan:
    """Memory use of each process of the run, with rows of up to `longest_row` tokens where sampled ones are shorter.
    ConfigError if it cannot fit the GPU."""
    rollout, trainer, engine = config.rollout, config.trainer, config.engine
    lengths = [len(first_prompt(chat, task, task.train_example(index))) for index in range(EXAMPLES)]
    sampled = config.task.num_turns * rollout.max_completion_tokens
    line_tokens = min(context_tokens(policy), max(longest_row, max(lengths) + sampled))
    num_rows = rollout.prompts_per_step * rollout.group_size
    together = max(num_rows, config.evaluation.limit)
    sharded = trainer.strategy == "fsdp2"
    local, is_stale = engine if engine.in_process else None, rollout.max_staleness > 0
    half = half_dtype(trainer.precision, policy.model)
    autocast = partial(torch.autocast, policy.model.device.type, half or torch.bfloat16, enabled=half is not None)
    dtype = engine.sampling_dtype(policy, config) if local else None
    one_turn = config.task.num_turns == 1
    shared = layout == "shared" and one_turn  # later turns are rows of their own, with what was said before
    num_prompts = rollout.prompts_per_step if shared else num_rows
    batch_tokens = num_prompts * fmean(lengths) + num_rows * min(sampled, line_tokens)
    updates = config.algorithm.num_minibatches
    on_cpu = policy.model.device.type == "cpu"
    kept = {"prompt_tokens": min(max(lengths), line_tokens - 1) if on_cpu and one_turn else 0}
    demand = Demand(
        line_tokens=line_tokens,
        num_rows=num_rows,
        batch_tokens=None if longest_row else -(-int(batch_tokens) // updates),
        predicted_tokens=None if longest_row else -(-num_rows * min(sampled, line_tokens) // updates),
        library_bytes=library_bytes(weight_bytes(policy)) if on_cpu else 0,
        activations=measure_activations(policy, layout, autocast),
        keys_values_per_row=keys_values_bytes(policy, line_tokens, dtype=dtype, recomputed=is_stale, **kept)
        if local
        else 0,
        max_batch_size=min(local.max_batch_size, together) if local else 0,
        num_references=sum(one.name == START for one in teachers_of(config.algorithm.columns().values())),
        teacher_bytes=teachers.weights(config, policy),
        copy_dtype=dtype if local and (is_stale or sharded or dtype != policy.dtype) else None,
        num_shards=world.size if sharded else 1,
    )
    # with cpu_offload the GPU's memory is not compared
    available = None if trainer.cpu_offload else available_memory(policy.model.device)
    return plan_memory(policy, demand, setting=trainer.microbatch_tokens, available=available)


def agreed(plan: MemoryPlan, world: World) -> MemoryPlan:
    """The plan with microbatches that fit on every rank; collective."""
    return replace(plan, microbatch_tokens=min(world.gather(plan.microbatch_tokens)))
