"""The chat layer of a task: the words that end its completions, and how its prompt has tools called."""

from __future__ import annotations

from typing import Protocol

from rlvr.chat.rendering import Chat
from rlvr.config.schema import Config, MixTask
from rlvr.config.tool_rules import tool_formats
from rlvr.models.policy import Policy


class Speaker(Protocol):
    """What the chat layer needs of a task."""

    @property
    def name(self) -> str:
        """The task's name in the configuration."""
        ...

    @property
    def stop_words(self) -> tuple[str, ...]:
        """Words that end a completion, beside the tokenizer's own end."""
        ...


def make_chat(config: Config, policy: Policy, task: Speaker) -> Chat:
    """How the policy speaks with a task of the configuration: its own, a part of a mix, or one of `evaluation.also`."""
    return Chat(policy.tokenizer, task.stop_words, model=policy.model, tool_format=_tool_format(config, task.name))


def _tool_format(config: Config, name: str) -> str:
    """The task's own `prompt.tool_format`; of a whole mix the one that its parts with tools share."""
    bundles = dict(config.evaluation.also)
    if isinstance(config.task, MixTask):
        bundles |= config.task.parts
    if name in bundles:
        return bundles[name].prompt.tool_format
    return next(iter(tool_formats(config)), "auto")
