"""What an algorithm wants beside its batch: columns, computed once a step, before its `advantages`.

    def columns(self):
        return super().columns() | {"teacher": Logprobs("runs/teacher/final"), "brief": PerEpisode(brief)}

    def advantages(self, batch, penalties, mask):
        batch.columns["teacher"]      # [B, T]
        batch.columns["brief"]        # [B]

old_logprobs, reference_logprobs and values are columns too. The trainer computes them in packed passes, each rank its
share; models that they name are loaded at the start, counted in the memory plan and sharded as the policy is. A column
of one's own subclasses `Column`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Literal, Protocol

from rlvr.errors import ConfigError
from rlvr.types import Episode, Group, Predictions, TokenBatch

if TYPE_CHECKING:
    from torch import Tensor

START = "start"
"""The policy as it was before the first update."""


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """A frozen model that scores tokens: a folder, a Hub id, `openai:URL`, or START.

    `refresh_every`, for START alone: the copy becomes the current policy after every that many updates.
    """

    name: str
    refresh_every: int | None = None


class Passes(Protocol):
    """What a column is computed from: one step's batch and episodes, and passes over its tokens."""

    @property
    def batch(self) -> TokenBatch: ...

    @property
    def groups(self) -> Sequence[Group]:
        """The groups of the batch; its `episodes` number their episodes from 0."""
        ...

    @property
    def own(self) -> Predictions:
        """[B, T] by the policy before the update; one pass for all columns."""
        ...

    def rows(self, groups: Sequence[Group]) -> TokenBatch:
        """The token rows of other episodes."""
        ...

    def at_turns(self, numbers: Sequence[Sequence[float]]) -> Tensor:
        """[B, T]: `numbers[i][k]` at the sampled tokens of turn k of episode i of the groups, 0 elsewhere."""
        ...

    def logprobs(self, teacher: Teacher, batch: TokenBatch) -> Tensor:
        """[B, T] of the sampled tokens of any batch; the teacher is one that a column names."""
        ...

    def gold(self) -> list[list[float]]:
        """For each episode of the groups the log-probability of its example's answer before each turn, by the policy
        before the update (`rlvr.core.value`). UserError if the task does not know how an answer is written."""
        ...


class Column(ABC):
    """A number for each row, or for each token, of a batch."""

    teacher: Teacher | None = None  # the model that it needs beside the policy

    @abstractmethod
    def compute(self, passes: Passes) -> Tensor:
        """[B, ...], the same on every rank."""


@dataclass(frozen=True)
class OfPolicy(Column):
    """[B, T] by the policy before the update; the entropy is that of the distribution that drew the token, in nats."""

    what: Literal["logprobs", "entropy", "values"]

    def compute(self, passes: Passes) -> Tensor:
        predicted = getattr(passes.own, self.what)
        assert predicted is not None, f"the policy predicts no {self.what}"
        return predicted


@dataclass(frozen=True)
class Logprobs(Column):
    """[B, T] logprobs of the sampled tokens under another model, at the sampling temperature.

    `Logprobs("start")`, `Logprobs("runs/teacher/final")`. `prompt(group, episode)` gives the token ids of another first
    prompt, such as one with a hint, under which the model sees the same completions; None: NaN at the episode's tokens.
    """

    model: str
    prompt: Callable[[Group, Episode], Sequence[int] | None] | None = None
    refresh_every: int | None = None

    def __post_init__(self) -> None:
        if self.refresh_every is not None and self.model != START:
            raise ConfigError(f"Logprobs({self.model!r}, refresh_every={self.refresh_every}): only {START!r} follows.")

    @property
    def teacher(self) -> Teacher:  # type: ignore[override]
        return Teacher(name=self.model, refresh_every=self.refresh_every)

    def compute(self, passes: Passes) -> Tensor:
        batch, moved, unknown = passes.batch, [], []
        if self.prompt is None:
            return passes.logprobs(self.teacher, batch)
        for group in passes.groups:
            prompts = [self.prompt(group, episode) for episode in group.episodes]
            episodes = map(_with_prompt, group.episodes, prompts)
            moved.append(replace(group, episodes=tuple(episodes)))
            unknown += [prompt is None for prompt in prompts]
        seen = passes.rows(moved)
        # the same rows with the same sampled tokens, behind longer or shorter prompts
        of_teacher = passes.logprobs(self.teacher, seen)[seen.loss_mask]
        logprobs = batch.behavior_logprobs.masked_scatter(batch.loss_mask, of_teacher)
        rows = batch.ids.new_tensor(unknown).bool()[batch.episodes]
        return logprobs.masked_fill(rows[:, None] & batch.loss_mask, float("nan"))


@dataclass(frozen=True)
class PerEpisode(Column):
    """[B] or [B, K]: a number, or K of them, for each episode.

    The parts of a reward: `PerEpisode(lambda group, episode: [episode.score.parts[name] for name in names])`.
    """

    value: Callable[[Group, Episode], float | Sequence[float]]

    def compute(self, passes: Passes) -> Tensor:
        numbers = [self.value(group, episode) for group in passes.groups for episode in group.episodes]
        return passes.batch.rewards.new_tensor(numbers)[passes.batch.episodes]


@dataclass(frozen=True)
class PerTurn(Column):
    """[B, T]: a number for each turn of an episode, at the tokens that were sampled in it; 0 elsewhere."""

    value: Callable[[Group, Episode], Sequence[float]]

    def compute(self, passes: Passes) -> Tensor:
        return passes.at_turns([self.value(group, episode) for group in passes.groups for episode in group.episodes])


@dataclass(frozen=True)
class FromGold(Column):
    """[B, T]: a number for each turn, as `PerTurn`, from how likely the answer was before the turns of a group.

    `FromGold(lambda group, gold: ...)`: `gold[i][k]` is the log-probability of the example's answer before turn k of
    episode i, in nats; the numbers are returned alike.
    """

    value: Callable[[Group, Sequence[Sequence[float]]], Sequence[Sequence[float]]]

    def compute(self, passes: Passes) -> Tensor:
        gold, numbers = iter(passes.gold()), list[Sequence[float]]()
        for group in passes.groups:
            numbers += self.value(group, list(islice(gold, len(group.episodes))))
        return passes.at_turns(numbers)


def teachers_of(columns: Iterable[Column]) -> list[Teacher]:
    """The models that the columns need, each once."""
    return list(dict.fromkeys(column.teacher for column in columns if column.teacher is not None))


def _with_prompt(episode: Episode, prompt: Sequence[int] | None) -> Episode:
    """The episode behind another first prompt. ValueError if a chat template rewrote it in a later turn."""
    if prompt is None:
        return episode
    first = episode.turns[0].prompt_ids
    for turn in episode.turns:
        if turn.prompt_ids[: len(first)] != first:
            raise ValueError("a later turn does not begin with the first prompt, so that it cannot be replaced")
    turns = (replace(turn, prompt_ids=(*prompt, *turn.prompt_ids[len(first) :])) for turn in episode.turns)
    return replace(episode, turns=tuple(turns))
