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
from rlvr.rewards.base import Grade, Part
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
        """The weighted sum, or why there is none."""
        grades = {name: await _graded(part, attempt) for name, part in self._immediate}
        if len(self._waiting) == 1:
            ((name, part),) = self._waiting
            grades[name] = await _graded(part, attempt)
        elif self._waiting:
            found = await asyncio.gather(*(_graded(part, attempt) for _, part in self._waiting))
            grades |= {name: grade for (name, _), grade in zip(self._waiting, found, strict=True)}
        return self._score(grades)

    def _score(self, grades: Mapping[str, Grade]) -> Score:
        value, status = 0.0, "scored"
        values: dict[str, float] = {}
        messages: dict[str, str] = {}
        errors: list[str] = []
        for name, weighted in self.parts.items():
            grade = grades[name]
            if not isinstance(grade, Grade):
                # no number for `checked` in base.py, which ends the run and names the reward and this part
                return Score(value=0.0, parts={name: grade})
            if grade.status == "error":
                errors.append(f"{name}: {grade.message or 'no message'}")
                continue
            if grade.status == "invalid":
                status = "invalid"
            if grade.message:
                messages[name] = grade.message
            values[name] = grade.value
            if not errors:
                value += weighted.weight * grade.value
        if errors:
            return Score(
                value=math.nan, status="error", parts=values, diagnostics=messages | {"error": "; ".join(errors)}
            )
        return Score(value=value, status=status, parts=values, diagnostics=messages)


async def _graded(part: Part, attempt: Attempt) -> Grade:
    """The part's grade; an exception is a failure of the part, not a wrong answer, and spares the other parts."""
    try:
        return await part.grade(attempt)
    except Exception as error:
        return Grade(value=math.nan, status="error", message=f"{type(error).__name__}: {error}"[:500])
