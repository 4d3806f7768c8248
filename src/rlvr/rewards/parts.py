"""The reward made of named, weighted parts: value = sum of weight x grade.

PartsVerifier({"correct": Numeric(weight=3.0), "format": FormatExact(weight=1.0)}, form, sandbox)

correct 1.0, format 0.0   ->   Score(value=3.0, parts={"correct": 1.0, "format": 0.0})
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rlvr.rewards.base import Grade, Part
from rlvr.rewards.custom import Custom
from rlvr.rewards.extract import AnswerFormat
from rlvr.rewards.grading import PartRunner
from rlvr.rewards.settings import RewardSettings
from rlvr.types import Attempt, Score

if TYPE_CHECKING:
    from rlvr.rewards.sandbox import Sandbox


def make_verifier(
    reward: RewardSettings,
    answer_format: AnswerFormat,
    sandbox: Sandbox,
    functions: Mapping[str, Callable[..., Any]] | None = None,
) -> PartsVerifier:
    """The weighted sum of the reward's parts. ConfigError for a function that is not found.

    `functions` are those that no import could find, by the import path that the settings give them.
    """
    parts = {
        name: part.bound(f"reward.parts.{name}.function", functions or {}) if isinstance(part, Custom) else part
        for name, part in reward.parts.items()
    }
    return PartsVerifier(parts, answer_format, sandbox)


class PartsVerifier:
    """Scores an attempt by its parts. `Score.parts` has each part's value before weights, by name.

    - `error` (value NaN) if any part failed: the sum is unknown.
    - else `invalid` if any part could not read the completion; the value still is the weighted sum.
    - diagnostics: `error`, a sentence that names the parts that failed; the message of any other part under its name.
    """

    name = "reward"

    def __init__(
        self, parts: Mapping[str, Part], answer_format: AnswerFormat | None = None, sandbox: Sandbox | None = None
    ) -> None:
        self.parts = dict(parts)
        self._format, self._sandbox = answer_format, sandbox
        runners = {name: PartRunner(name, part) for name, part in parts.items()}
        self._immediate = {name: runner for name, runner in runners.items() if not runner.waits}
        self._waiting = {name: runner for name, runner in runners.items() if runner.waits}
        if sandbox is not None:
            for runner in self._waiting.values():
                runner.preload(sandbox)

    async def verify(self, attempt: Attempt) -> Score:
        """The weighted sum, or why there is none; RewardError if a part returns anything but one finite number."""
        attempt = attempt.judged_by(self._format, self._sandbox)
        grades = {name: runner.grade_now(attempt) for name, runner in self._immediate.items()}
        if self._waiting:  # together
            found = await asyncio.gather(*(runner.grade(attempt) for runner in self._waiting.values()))
            grades |= dict(zip(self._waiting, found, strict=True))
        return self._score(grades)

    def _score(self, grades: Mapping[str, Grade]) -> Score:
        values: dict[str, float] = {}
        messages, errors, status = {}, [], "scored"
        for name in self.parts:
            grade = grades[name]
            if grade.status == "error":
                errors.append(f"{name}: {grade.message or 'no message'}")
                continue
            values[name] = grade.value
            if grade.message:
                messages[name] = grade.message
            if grade.status == "invalid":
                status = "invalid"
        if errors:
            messages["error"] = "; ".join(errors)
            return Score(value=math.nan, status="error", parts=values, diagnostics=messages)
        value = sum([part.weight * values[name] for name, part in self.parts.items()])
        return Score(value=value, status=status, parts=values, diagnostics=messages)
