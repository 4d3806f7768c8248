"""Several tasks at once, weighted, each with its own reward, prompt and metric.

The schedule repeats a block with each task's share of examples, in a new seeded order each time:

    weights {a: 2, b: 1}    a b a | b a a | a a b | ...
    places in the parts     0 0 1 | 1 2 3 | 4 5 2 | ...

The task of example `index`, and its index within that task, are functions of (weights, seed, index): one cursor serves
all parts.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import permutations
from math import lcm
from typing import Annotated, Any, ClassVar

from pydantic import Field

from rlvr.core.env import Env
from rlvr.errors import UserError
from rlvr.registry import register
from rlvr.seeding import derive_seed
from rlvr.settings import setting
from rlvr.tasks.base import CountTokens, Task, TaskContext
from rlvr.tasks.settings import MixPart, TaskBundle, TaskSettings
from rlvr.types import Example, GradedAnswer, Message, TurnText

MAX_BLOCK = 1_000
"""Longest block; weights that need a longer one are rounded to thousandths, but no task to zero."""


@register("task", "mix")
class Mix(TaskSettings):
    """Several tasks at once, each with its own reward, prompt and metrics."""

    reward: ClassVar[str | Mapping[str, Any]] = {}
    writes_prompts: ClassVar[bool] = True
    scores_itself: ClassVar[bool] = True
    parts: Annotated[Mapping[str, MixPart], Field(min_length=1)] = setting(
        description="task: weight, e.g. {gsm8k: 2, finqa: 1}; or task: {weight: 2, set: ['prompt.few_shot=2']}"
    )

    @property
    def bundles(self) -> Mapping[str, TaskBundle]:
        return self.parts

    @property
    def has_tools(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return any(part.task.has_tools for part in self.parts.values())

    @property
    def made_of_words(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return all(part.task.made_of_words for part in self.parts.values())

    @property
    def num_turns(self) -> int:
        return max(part.task.num_turns for part in self.parts.values())

    @property
    def origin(self) -> str:
        return ", ".join(f"{name} x {part.weight:g} ({part.task.origin})" for name, part in self.parts.items())

    def open(self, context: TaskContext) -> MixTask:
        parts = {name: context.open(name, derive_seed(context.seed, "mix", name)) for name in self.parts}
        return MixTask(self, context, parts)


class MixTask(Task):
    def __init__(self, settings: Mix, context: TaskContext, parts: Mapping[str, Task]) -> None:
        """No part trains on examples that another part holds out."""
        self.name, self._seed, self._parts = context.name, context.seed, parts
        self._counts = block_counts({key: part.weight for key, part in settings.parts.items()})
        self._last: tuple[int, list[str]] = (-1, [])
        self.stop_words = _union(part.stop_words for part in parts.values())
        words = [part.vocabulary for part in parts.values()]
        self.vocabulary = None if None in words else _union(word for word in words if word is not None)
        for part, other in permutations(parts.values(), 2):
            part.hold_out_for(other)

    @property
    def notes(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return tuple(f"{key}: {note}" for key, part in self._parts.items() for note in part.notes)

    def train_example(self, index: int) -> Example:
        key, place = self.place(index)
        return _marked(self._parts[key].train_example(place), key)

    def eval_examples(self, num: int) -> list[Example]:
        share = -(-num // len(self._parts))
        found = [[_marked(e, key) for e in part.eval_examples(share)] for key, part in self._parts.items()]
        in_turn = [example for row in range(share) for examples in found for example in examples[row : row + 1]]
        return in_turn[:num]

    def env(self, example: Example) -> Env:
        return self._part_of(example).env(example)

    def envs(self, example: Example, count: int) -> Sequence[Env]:
        return self._part_of(example).envs(example, count)

    async def grade(self, example: Example, turns: Sequence[TurnText]) -> GradedAnswer:
        return await self._part_of(example).grade(example, turns)

    def tags(self, example: Example) -> tuple[str, ...]:
        return (example.metadata["task"], *self._part_of(example).tags(example))

    def answered(self, answer: str, before: str = "") -> str | Message | None:
        """Where all parts answer in one format."""
        first, *others = [part.answered(answer, before) for part in self._parts.values()]
        return first if all(other == first for other in others) else None

    def demonstration(self, index: int, worked_share: float) -> tuple[str, ...]:
        key, place = self.place(index)
        return self._parts[key].demonstration(place, worked_share)

    def texts(self) -> Iterator[str]:
        for part in self._parts.values():
            yield from part.texts()

    def example(self, text: str) -> Example:
        """UserError unless the mix has one part: the question does not name its task."""
        if len(self._parts) > 1:
            raise UserError(f"a mix does not know whose prompt this is: add --task {' or --task '.join(self._parts)}.")
        ((key, part),) = self._parts.items()
        return _marked(part.example(text), key)

    def limit_prompts(self, count_tokens: CountTokens, max_tokens: int) -> None:
        for part in self._parts.values():
            part.limit_prompts(count_tokens, max_tokens)

    def eval_sets(self) -> tuple[Task, ...]:
        return tuple(self._parts.values())

    def place(self, index: int) -> tuple[str, int]:
        """The task of example `index`, and its index in that task's stream."""
        size = sum(self._counts.values())
        block, step = divmod(index, size)
        if self._last[0] != block:
            order = [key for key, count in self._counts.items() for _ in range(count)]
            random.Random(derive_seed(self._seed, "mix", block)).shuffle(order)
            self._last = (block, order)
        order = self._last[1]
        return order[step], block * self._counts[order[step]] + order[:step].count(order[step])

    def _part_of(self, example: Example) -> Task:
        return self._parts[example.metadata["task"]]


def block_counts(weights: Mapping[str, float]) -> dict[str, int]:
    """Number of examples of each task per block: `{"a": 0.5, "b": 0.25}` -> `{"a": 2, "b": 1}`."""
    total = sum(Fraction(weight) for weight in weights.values())
    shares = {key: (Fraction(weight) / total).limit_denominator(MAX_BLOCK) for key, weight in weights.items()}
    size = lcm(*(share.denominator for share in shares.values()))
    if sum(shares.values()) == 1 and size <= MAX_BLOCK and all(shares.values()):
        return {key: int(share * size) for key, share in shares.items()}
    return {key: max(1, round(Fraction(weight) / total * MAX_BLOCK)) for key, weight in weights.items()}


def _marked(example: Example, key: str) -> Example:
    return replace(example, metadata={**example.metadata, "task": key})


def _union(groups: Iterator[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word for group in groups for word in group))
