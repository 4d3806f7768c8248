"""Grades the parts of a reward that need the policy, once episodes are sampled."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlvr.chat.rendering import Chat
from rlvr.core.packing import Layout
from rlvr.core.policy import Policy
from rlvr.core.value import Branch, branch_logprobs
from rlvr.errors import UserError
from rlvr.tasks.base import Task
from rlvr.tasks.gold import gold_branch
from rlvr.types import Episode, Example, Group, LateGrade, Score, ToolSchema


@dataclass(frozen=True, kw_only=True)
class _LatePart:
    """A part of an episode's reward that is not graded yet, and the branches whose probabilities it reads."""

    group: int  # its index
    episode: int  # its index in the group
    name: str
    branches: list[Branch]


@dataclass(frozen=True, kw_only=True)
class LateGrader:
    """Completes scores with the policy as it is; for a whole step in a few forward passes. Not for sharded weights."""

    policy: Policy
    chat: Chat
    task: Task
    layout: Layout
    max_context_tokens: int

    def groups(self, groups: Sequence[Group]) -> list[Group]:
        """The groups with complete scores. UserError if the task does not know the format of its answers."""
        parts = [part for number, group in enumerate(groups) for part in self._parts(number, group)]
        known = self._read([branch for part in parts for branch in part.branches])
        episodes = [list(group.episodes) for group in groups]
        for part in parts:
            graded = _graded(episodes[part.group][part.episode], part.name, [known[branch] for branch in part.branches])
            episodes[part.group][part.episode] = graded
        return [replace(group, episodes=tuple(made)) for group, made in zip(groups, episodes, strict=True)]

    def episode(self, example: Example, episode: Episode) -> Episode:
        (group,) = self.groups([Group(example=example, episodes=(episode,))])
        return group.episodes[0]

    def probabilities(self, example: Example, late: LateGrade) -> list[float]:
        """The probability of the example's answer after each prompt of `late`."""
        branches = self._branches(example, late, self.task.env(example).tools)
        known = self._read(branches)
        return [known[branch] for branch in branches]

    def _parts(self, number: int, group: Group) -> list[_LatePart]:
        """What the late parts of the group's episodes read."""
        if not any(episode.score.late for episode in group.episodes):
            return []
        tools = self.task.env(group.example).tools  # once a group: an environment may be costly
        return [
            _LatePart(group=number, episode=place, name=name, branches=self._branches(group.example, late, tools))
            for place, episode in enumerate(group.episodes)
            for name, late in episode.score.late.items()
        ]

    def _read(self, branches: Sequence[Branch]) -> dict[Branch, float]:
        """The probability of the gold after each prompt, computed once for equal prompts; NaN after too long ones."""
        known = dict.fromkeys(branches, math.nan)
        fitting = [branch for branch in known if len(branch.prompt_ids) + len(branch.ids) <= self.max_context_tokens]
        logprobs = branch_logprobs(self.policy, fitting, layout=self.layout)
        for branch, logprob in zip(fitting, logprobs, strict=True):
            known[branch] = math.exp(logprob / len(branch.counted))
        return known

    def _branches(self, example: Example, late: LateGrade, tools: Sequence[ToolSchema]) -> list[Branch]:
        gold = gold_branch(self.task, self.chat, example.answer, tools=tools)
        if gold is None:
            raise UserError(
                f"reward: example {example.id} has no answer whose format task={self.task.name} knows, so that a part "
                "that needs the policy cannot grade; choose another part."
            )
        return [replace(gold, prompt_ids=self.chat.encode_prompt(prompt, tools)) for prompt in late.prompts]


class NoLateGrades:
    """Leaves scores as they are: no part of the reward needs the policy."""

    def groups(self, groups: Sequence[Group]) -> list[Group]:
        return list(groups)

    def episode(self, example: Example, episode: Episode) -> Episode:
        return episode


def _graded(episode: Episode, name: str, probabilities: Sequence[float]) -> Episode:
    """The episode with its late part `name`, from the probabilities that the part reads."""
    late = dict(episode.score.late)
    part = late.pop(name)
    value = part.value(probabilities) if all(map(math.isfinite, probabilities)) else math.nan
    return replace(episode, score=_with_part(replace(episode.score, late=late), name, part.weight, value))


def _with_part(score: Score, name: str, weight: float, value: float) -> Score:
    """The score with one more part; an error if its value is no finite number."""
    if math.isfinite(value):
        facts = {**score.diagnostics, name: value}
        parts = {**score.parts, name: value}
        return replace(score, value=score.value + weight * value, parts=parts, diagnostics=facts)
    error = f"{name}: a prompt to read is longer than the model's context, or the policy's probabilities are not finite"
    if earlier := score.diagnostics.get("error"):
        error = f"{earlier}; {error}"
    return replace(score, value=math.nan, status="error", diagnostics={**score.diagnostics, "error": error})
