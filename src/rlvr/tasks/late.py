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
class LateGrader:
    """Completes scores with the policy as it is; for a whole step in a few forward passes. Not for sharded weights."""

    policy: Policy
    chat: Chat
    task: Task
    layout: Layout
    max_context_tokens: int

    def groups(self, groups: Sequence[Group]) -> list[Group]:
        """The groups with complete scores. UserError if the task does not know the format of its answers."""
        branches = [self._of_group(group) for group in groups]
        known = self._read([one for of_group in branches for parts in of_group for part in parts for one in part])
        return [
            replace(
                group,
                episodes=tuple(
                    _graded(episode, [[known[one] for one in part] for part in parts])
                    for episode, parts in zip(group.episodes, of_group, strict=True)
                ),
            )
            for group, of_group in zip(groups, branches, strict=True)
        ]

    def episode(self, example: Example, episode: Episode) -> Episode:
        (group,) = self.groups([Group(example=example, episodes=(episode,))])
        return group.episodes[0]

    def probabilities(self, example: Example, late: LateGrade) -> list[float]:
        """Of the example's answer after each prompt of `late`."""
        branches = self._branches(example, late, self.task.env(example).tools)
        known = self._read(branches)
        return [known[branch] for branch in branches]

    def _of_group(self, group: Group) -> list[list[list[Branch]]]:
        """For each episode what its late parts read, in order."""
        if not any(episode.score.late for episode in group.episodes):
            return [[] for _ in group.episodes]
        tools = self.task.env(group.example).tools  # once a group: an environment may be costly
        return [
            [self._branches(group.example, late, tools) for late in episode.score.late.values()]
            for episode in group.episodes
        ]

    def _read(self, branches: Sequence[Branch]) -> dict[Branch, float]:
        """The probability of the gold after each prompt, computed once for equal prompts."""
        different = dict.fromkeys(branches, math.nan)
        fitting = [one for one in different if len(one.prompt_ids) + len(one.ids) <= self.max_context_tokens]
        found = branch_logprobs(self.policy, fitting, layout=self.layout)
        means = {one: math.exp(value / len(one.counted)) for one, value in zip(fitting, found, strict=True)}
        return different | means

    def _branches(self, example: Example, late: LateGrade, tools: Sequence[ToolSchema]) -> list[Branch]:
        gold = gold_branch(self.task, self.chat, example.answer, tools=tools)
        if gold is None:
            raise UserError(
                f"reward: example {example.id} has no answer whose format task={self.task.name} knows, so that a part "
                "that needs the policy cannot grade; choose another part."
            )
        return [replace(gold, prompt_ids=self.chat.encode_prompt(prompt, tools)) for prompt in late.prompts]


def _graded(episode: Episode, probabilities: Sequence[Sequence[float]]) -> Episode:
    """The episode with its late parts, from the probabilities that each of them reads."""
    score = replace(episode.score, late={})
    for (name, late), found in zip(episode.score.late.items(), probabilities, strict=True):
        value = late.value(found) if all(map(math.isfinite, found)) else math.nan
        score = _with_part(score, name, late.weight, value)
    return replace(episode, score=score)


def _with_part(score: Score, name: str, weight: float, value: float) -> Score:
    """The score with one more part; an error if its value is no finite number."""
    if math.isfinite(value):
        facts = {**score.diagnostics, name: value}
        parts = {**score.parts, name: value}
        return replace(score, value=score.value + weight * value, parts=parts, diagnostics=facts)
    said = f"{name}: a prompt to read is longer than the model's context, or the policy's probabilities are not finite"
    before = score.diagnostics.get("error")
    diagnostics = {**score.diagnostics, "error": f"{before}; {said}" if before else said}
    return replace(score, value=math.nan, status="error", diagnostics=diagnostics)
