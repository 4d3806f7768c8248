"""The reward made of named, weighted parts: value = sum of weight x grade.

parts = {"correct": WeightedPart(NumericPart(format=...), weight=3.0), "format": WeightedPart(..., weight=1.0)}
PartsVerifier("gsm8k", parts)

correct 1.0, format 0.0   ->   Score(value=3.0, parts={"correct": 1.0, "format": 0.0})
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass

from rlvr.errors import ConfigError
from rlvr.rewards.base import Grade, Part, RewardError
from rlvr.types import Attempt, Score


@dataclass(frozen=True, slots=True)
class WeightedPart:
    """`WeightedPart(NumericPart(format=...), weight=3.0)`; with weight 0 a part is measured and not paid for."""

    part: Part
    weight: float


class PartsVerifier:
    """Scores an attempt by its parts. `Score.parts` has each part's value before weights, by name.

    - `error` (value NaN) if any part failed: an unknown part of the sum leaves the whole sum unknown. A part that
      raises has failed.
    - else `invalid` if any part could not read the completion; the value still is the weighted sum.
    - diagnostics: `error`, a sentence that names the parts that failed; the message of any other part under its name.

    Parts with an attribute `immediate = True` never wait and are awaited one after another, which costs microseconds;
    the others (pools, services) wait together.
    """

    def __init__(self, name: str, parts: Mapping[str, WeightedPart]) -> None:
        """ConfigError without any part, or for a weight that is not finite."""
        if not parts:
            raise ConfigError(f"reward {name!r} has no parts: name at least one under reward.parts.")
        for part_name, weighted in parts.items():
            if not math.isfinite(weighted.weight):
                raise ConfigError(
                    f"reward.parts.{part_name}.weight={weighted.weight} is not a finite number: give one."
                )
        self.name = name
        self.parts = dict(parts)
        self._immediate: list[tuple[str, Part]] = []
        self._waiting: list[tuple[str, Part]] = []
        for part_name, weighted in parts.items():
            never_waits = getattr(weighted.part, "immediate", False)
            (self._immediate if never_waits else self._waiting).append((part_name, weighted.part))

    async def verify(self, attempt: Attempt) -> Score:
        """The weighted sum, or why there is none; RewardError if a part gives anything but one finite Grade."""
        grades = {name: await self._grade(name, part, attempt) for name, part in self._immediate}
        if len(self._waiting) == 1:
            ((name, part),) = self._waiting
            grades[name] = await self._grade(name, part, attempt)
        elif self._waiting:
            found = await asyncio.gather(*(self._grade(name, part, attempt) for name, part in self._waiting))
            grades |= {name: grade for (name, _), grade in zip(self._waiting, found, strict=True)}
        return self._score(grades)

    async def _grade(self, name: str, part: Part, attempt: Attempt) -> Grade:
        """The part's grade; an exception is a failure of the part, not a wrong answer, and spares the other parts."""
        try:
            grade = await part.grade(attempt)
        except RewardError:
            raise
        except Exception as error:
            return Grade(value=math.nan, status="error", message=f"{type(error).__name__}: {error}"[:500])
        if not isinstance(grade, Grade):
            found = f"{type(grade).__name__} {grade!r:.80}"
            raise RewardError(f"part {name!r} of reward {self.name!r} returned {found} instead of one Grade.")
        if grade.status != "error" and not _is_finite(grade.value):
            found = f"{grade.value!r:.80}"
            raise RewardError(f"part {name!r} of reward {self.name!r} returned {found}, which is not a finite number.")
        return grade

    def _score(self, grades: Mapping[str, Grade]) -> Score:
        graded = [(name, grades[name]) for name in self.parts]
        errors = [f"{name}: {grade.message or 'no message'}" for name, grade in graded if grade.status == "error"]
        values = {name: grade.value for name, grade in graded if grade.status != "error"}
        messages = {name: grade.message for name, grade in graded if grade.message and grade.status != "error"}
        if errors:
            diagnostics = messages | {"error": "; ".join(errors)}
            return Score(value=math.nan, status="error", parts=values, diagnostics=diagnostics)
        value = sum(weighted.weight * values[name] for name, weighted in self.parts.items())
        invalid = any(grade.status == "invalid" for _, grade in graded)
        return Score(value=value, status="invalid" if invalid else "scored", parts=values, diagnostics=messages)


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
