"""The chat layer of a task: the words that end its completions, and how its prompt has tools called."""

from __future__ import annotations

from typing import Protocol

from rlvr.chat.rendering import Chat
from rlvr.config import Config
from rlvr.models.policy import Policy


class ChatTask(Protocol):
    """What the chat layer needs of a task."""

    @property
    def name(self) -> str:
        """The task's name in the configuration."""
        ...

    @property
    def stop_words(self) -> tuple[str, ...]:
        """Words that end a completion, beside the tokenizer's own end."""
        ...


def make_chat(config: Config, policy: Policy, task: ChatTask) -> Chat:
    """How the policy speaks with a task of the configuration: its own, a part of a mix, or one of `evaluation.also`."""
    bundle = config.bundles.get(task.name)
    tool_format = own_tool_format(config) if bundle is None else bundle.prompt.tool_format
    return Chat(policy.tokenizer, task.stop_words, model=policy.model, tool_format=tool_format)


def own_tool_format(config: Config) -> str:
    """`prompt.tool_format` of the tasks with tools that are trained on, which share one."""
    return next((bundle.prompt.tool_format for bundle in config.trained.values() if bundle.task.has_tools), "auto")
