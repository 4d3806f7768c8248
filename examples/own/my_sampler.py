"""A prompt sampler of your own: a curriculum, easy kinds first.

In the folder of this file:

    rlvr train sampler=my_sampler:Stairs task.complexity_weights=null
    rlvr train sampler=my_sampler:Stairs 'sampler.levels=[2_operators,3_operators]' sampler.rise_at=0.7

The kinds are the task's tags, by which `rlvr eval` also reports accuracy. The fields of the class are its settings;
what it remembers is a private attribute, and goes into the checkpoint by `state`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.samplers.thinned import Rated
from rlvr.settings import Share, Text, setting
from rlvr.types import Example, Group


class Stairs(Rated):
    """Draws the kinds up to the current level; rises when a step's groups of that level are right often enough."""

    levels: tuple[Text, ...] = setting(
        ("1_operators", "2_operators", "3_operators"), "tags, the easiest first; others are not drawn", min_length=1
    )
    rise_at: Share = setting(0.8, "share of right answers that opens the next level")

    _level: int = 0

    def chance(self, example: Example) -> float:
        """The probability to keep an example of the training stream."""
        return float(any(tag in self.levels[: self._level + 1] for tag in self.stream.tags(example)))

    def observe(self, groups: Sequence[Group]) -> None:
        """Looks at the rewards of a step, before it is trained on."""
        top = self.levels[self._level]
        rates = [rate for group, rate in self.rates(groups) if top in self.stream.tags(group.example)]
        if rates and sum(rates) / len(rates) >= self.rise_at and self._level + 1 < len(self.levels):
            self._level += 1

    def state(self) -> dict[str, Any]:
        return {**super().state(), "level": self._level}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._level = state["level"]
