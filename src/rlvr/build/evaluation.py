"""All evaluation sets of a configuration, one after another."""

from __future__ import annotations

from collections.abc import Sequence

from rlvr.build.chats import make_chat
from rlvr.config.schema import Config
from rlvr.engines.local import LocalEngine
from rlvr.evaluation.evaluate import EvalTask, Progress, evaluate
from rlvr.evaluation.summary import EvaluationResult
from rlvr.models.policy import Policy


async def evaluate_all(
    config: Config,
    tasks: Sequence[EvalTask],
    policy: Policy,
    engine: LocalEngine,
    context: int,
    on_progress: Progress | None = None,
) -> dict[str, EvaluationResult]:
    """The result of each task by its name."""
    found = {}
    for task in tasks:
        found[task.name] = await evaluate(
            engine,
            make_chat(config, policy, task),
            task,
            num_examples=config.evaluation.num_examples,
            samples_per_example=config.evaluation.samples_per_example,
            max_completion_tokens=config.rollout.max_completion_tokens,
            max_context_tokens=context,
            temperature=config.rollout.temperature,
            top_p=config.rollout.top_p,
            top_k=config.rollout.top_k,
            min_p=config.rollout.min_p,
            on_progress=on_progress,
        )
    return found
