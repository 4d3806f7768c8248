"""The training stream with examples left out: by their pass rate, their tags, or once they are solved."""

import random
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from pydantic import PrivateAttr, model_validator

from rlvr.errors import ConfigError, UserError
from rlvr.registry import register
from rlvr.run_view import RunView
from rlvr.samplers.uniform import Uniform
from rlvr.seeding import derive_seed
from rlvr.settings import NonNegativeFloat, Share, Text, setting, wrong
from rlvr.types import Example, Group

MOST_SKIPPED = 100_000
"""Examples left out one after another before the run ends."""
MOST_SEARCHED = 20_000
"""Examples searched for the tags of `by_tag`."""
MEMORY = 0.9
"""Weight of a kind's known pass rate beside that of its next group."""


class Thinned(Uniform):
    """Walks the stream in order and keeps each example with a probability."""

    @abstractmethod
    def chance(self, example: Example) -> float:
        """The probability to keep an example, 0 to 1."""

    def take(self, count: int) -> list[int]:
        """The next `count` examples that are kept. UserError if there are none."""
        chosen: list[int] = []
        last = self._cursor
        while len(chosen) < count:
            chance = self.chance(self.stream.train_example(self._cursor))
            if random.Random(derive_seed(self.seed, "sampler", self._cursor)).random() < chance:
                chosen.append(last := self._cursor)
            self._cursor += 1
            if self._cursor - last > MOST_SKIPPED:
                raise UserError(
                    f"sampler={self.name}: leaves out the next {MOST_SKIPPED:,} examples of the training stream, so "
                    "nothing is left to train on; go on from a checkpoint's model/ in a run with another sampler."
                )
        return chosen


class Rated(Thinned):
    """A sampler that reads from the groups how often an answer is right."""

    part: Text | None = setting(
        None, "part of the reward that says whether an answer is right (1: right, 0: wrong); null: the whole reward"
    )

    def rates(self, groups: Sequence[Group]) -> Iterator[tuple[Group, float]]:
        """Each group with the share of its answers that are right; groups without a score are left out."""
        for group in groups:
            scores = [episode.score for episode in group.episodes if episode.score.status != "error"]
            values = [score.value if self.part is None else score.parts.get(self.part, 0.0) for score in scores]
            if values:
                yield group, fmean(min(max(value, 0.0), 1.0) for value in values)

    def check_run(self, run: RunView) -> None:
        if self.part is not None and self.part not in run.reward.parts:
            raise ConfigError(
                f"sampler.part={self.part}: the reward has no such part; there are {', '.join(run.reward.parts)}."
            )


@register("sampler", "pass_rate")
class PassRate(Rated):
    """Prefers prompts whose kind, the task's tags, is right about half of the time: keeps one with chance 4 p (1 - p).
    Without tags each prompt is its own kind, so only its next passes change."""

    floor: Share = setting(0.1, "least probability to keep a prompt, so that every kind is measured again", gt=0)

    _known: dict[str, float] = PrivateAttr(default_factory=dict)

    def chance(self, example: Example) -> float:
        rate = self._known.get(self._kind(example), 0.5)
        return max(self.floor, 4 * rate * (1 - rate))

    def observe(self, groups: Sequence[Group]) -> None:
        """A moving average for each kind; a new kind starts at 1/2."""
        for group, rate in self.rates(groups):
            kind = self._kind(group.example)
            self._known[kind] = MEMORY * self._known.get(kind, 0.5) + (1 - MEMORY) * rate

    def _kind(self, example: Example) -> str:
        return "/".join(self.stream.tags(example)) or example.id

    def state(self) -> dict[str, Any]:
        return {**super().state(), "rates": self._known}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._known = dict(state["rates"])


@register("sampler", "by_tag")
class ByTag(Thinned):
    """Draws the kinds of prompts, the task's tags, with different weights."""

    weights: Mapping[str, NonNegativeFloat] = setting(
        description="tag -> weight, e.g. {1_operators: 1, 4_operators: 3}: an example of weight 3 is drawn three times "
        "as often as one of weight 1; of several tags the largest weight counts",
        min_length=1,
    )
    other: NonNegativeFloat = setting(1.0, "weight of examples without any of these tags")

    @model_validator(mode="after")
    def _something_is_drawn(self) -> "ByTag":
        if max(self.other, *self.weights.values()) == 0:
            raise wrong("weights", "leaves nothing to draw; give a tag a weight above 0")
        return self

    def started(self, stream, seed):
        """ConfigError for a tag that no example has."""
        missing, seen = set(self.weights), set[str]()
        for index in range(MOST_SEARCHED):
            if not missing:
                break
            tags = {*stream.tags(stream.train_example(index))}
            missing -= tags
            seen |= tags
        if missing:
            known = f"there are {', '.join(sorted(seen))}" if seen else "the task has no tags"
            raise ConfigError(f"sampler.weights: no example has the tag {min(missing)}; {known}.")
        return super().started(stream, seed)

    def chance(self, example: Example) -> float:
        named = [self.weights[tag] for tag in self.stream.tags(example) if tag in self.weights]
        return max(named, default=self.other) / max(self.other, *self.weights.values())


@register("sampler", "unsolved")
class Unsolved(Rated):
    """Leaves out prompts once they are solved: no-positive-resampling of ScaleRL, arXiv:2510.13786."""

    solved_at: Share = setting(0.9, "a prompt is solved if at least this share of a group is right", gt=0)

    _solved: set[str] = PrivateAttr(default_factory=set)

    def chance(self, example: Example) -> float:
        return float(example.id not in self._solved)

    def observe(self, groups: Sequence[Group]) -> None:
        self._solved |= {group.example.id for group, rate in self.rates(groups) if rate >= self.solved_at}

    def state(self) -> dict[str, Any]:
        return {**super().state(), "solved": sorted(self._solved)}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._solved = set(state["solved"])
