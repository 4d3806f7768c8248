"""The tasks of a run: its own, and those that are evaluated beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from rlvr.app.chats import make_chat
from rlvr.chat.rendering import Chat
from rlvr.config.schema import Config, PartsReward, PretrainedModel, TaskBundle
from rlvr.errors import ConfigError
from rlvr.models.policy import Policy
from rlvr.rewards.pool import VerifierPool
from rlvr.tasks.base import Task
from rlvr.tasks.catalog import make_task
from rlvr.tasks.dataset import DatasetTask
from rlvr.types import Message, ToolSchema

Functions = Mapping[str, Callable[..., Any]]
"""Import path -> the function itself, for functions of a script or notebook that no other process could import."""


@dataclass(frozen=True, kw_only=True)
class Tasks:
    """What is trained on, and everything that is evaluated."""

    own: Task
    also: tuple[Task, ...]

    @property
    def eval_sets(self) -> tuple[Task, ...]:
        """Each is evaluated by itself."""
        return (*self.own.eval_sets(), *self.also)

    @property
    def notes(self) -> list[str]:
        """What loading found: sizes, overlap, examples left out."""
        return [*self.own.notes, *(f"{task.name}: {note}" for task in self.also for note in task.notes)]

    def check_training(self) -> None:
        """UserError if a task that is trained on has nothing to train on."""
        for part in self.own.eval_sets():
            part.train_example(0)

    def fit(self, config: Config, policy: Policy, context: int) -> None:
        """Leave out examples whose prompt would leave too little room for a whole completion.

        ConfigError if there is no room for any prompt.
        """
        max_completion_tokens = config.rollout.max_completion_tokens
        if max_completion_tokens >= context:
            raise ConfigError(
                f"rollout.max_completion_tokens={max_completion_tokens}: leaves no room for a prompt in the model's "
                f"context of {context} tokens; lower it."
            )
        for task in (self.own, *self.also):
            chat = make_chat(config, policy, task)
            task.limit_prompts(partial(_count_tokens, chat), context - max_completion_tokens)


def _count_tokens(chat: Chat, messages: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> int:
    return len(chat.encode_prompt(messages, tools))


@contextmanager
def open_tasks(config: Config, family: str | None, functions: Functions) -> Iterator[Tasks]:
    """The tasks of a configuration; the processes of their verifiers end with the block.

    `family` is the model's, for `prompt.markers=auto`.
    """
    with ExitStack() as stack:

        def open_pool(reward: PartsReward) -> VerifierPool:
            pool = VerifierPool(
                num_workers=reward.num_workers, timeout_s=reward.timeout_s, max_memory_mb=reward.max_memory_mb
            )
            return stack.enter_context(pool)

        def make(name: str, bundle: Config | TaskBundle) -> Task:
            return make_task(
                bundle,
                name=name,
                seed=config.seed,
                markers=config.markers,
                family=family,
                open_pool=open_pool,
                functions=functions,
            )

        also = tuple(make(name, bundle) for name, bundle in config.evaluation.also.items())
        own = make(config.task.name, config)
        for part in own.eval_sets():
            for other in also:
                if isinstance(part, DatasetTask) and isinstance(other, DatasetTask):
                    part.hold_out_for(other)
        yield Tasks(own=own, also=also)


def family_of(config: Config) -> str | None:
    """`model_type` of the model to come: `qwen2`, or `llama` for models made from scratch."""
    if not isinstance(config.model, PretrainedModel):
        return "llama"
    from rlvr.models.loading import model_family

    return model_family(config.model)
