"""A reward as a weighted sum of named parts.

PartsVerifier({"correct": Numeric(weight=3.0), "format": FormatExact(weight=1.0)}, form, sandbox)

correct 1.0, format 0.0   ->   Score(value=3.0, parts={"correct": 1.0, "format": 0.0})
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import math
import numbers
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any, ClassVar, cast

from rlvr import imports
from rlvr.errors import ConfigError, UserError
from rlvr.imports import described
from rlvr.rewards.base import INVALID, STATES, Grade, Part, RewardError
from rlvr.rewards.extract import AnswerFormat
from rlvr.rewards.metrics import NO_ANSWER, Metric
from rlvr.rewards.sandbox import CallResult, Sandbox, packed
from rlvr.rewards.settings import RewardSettings
from rlvr.types import LARGEST_REWARD, Attempt, Example, GradedAnswer, LateGrade, Score, StopReason, TurnText

NEEDED = "must return one finite number, or None for a completion that it cannot read"


def make_verifier(
    reward: RewardSettings,
    answer_format: AnswerFormat,
    sandbox: Sandbox,
    functions: Mapping[str, Callable[..., Any]] | None = None,
) -> PartsVerifier:
    """The weighted sum of the reward's parts. ConfigError for a missing function.

    `functions` are Python objects without import path, by the path in the settings.
    """
    parts = {name: part.bound(f"reward.parts.{name}", functions or {}) for name, part in reward.parts.items()}
    return PartsVerifier(parts, answer_format, sandbox)


class PartsVerifier:
    """Scores an attempt by its parts. `Score.parts` has each part's unweighted value, by name.

    - `error` (value NaN) if any part failed: the sum is unknown.
    - else `invalid` if any part could not read the completion; the value is still the weighted sum.
    - `late`: parts that only the policy can grade.
    - diagnostics: `error`, a sentence that names the failed parts; messages of other parts under their names.
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
        self._runs_user_code = any(part.in_process and not imports.is_ours(part) for part in parts.values())
        if sandbox is not None:
            for runner in self._waiting.values():
                runner.preload(sandbox)

    async def verify(self, attempt: Attempt) -> Score:
        attempt = self._ready(attempt.with_own_example() if self._runs_user_code else attempt)
        grades = {name: runner.grade_now(attempt) for name, runner in self._immediate.items()}
        if self._waiting:  # concurrently
            found = await asyncio.gather(*(runner.grade(attempt) for runner in self._waiting.values()))
            grades |= dict(zip(self._waiting, found, strict=True))
        return self._score(grades)

    def _ready(self, attempt: Attempt) -> Attempt:
        form = self._format
        if form is not None and form.answer_in == "stated":
            form = form.for_prompt(attempt.prompt)
        return attempt.with_format(form, self._sandbox)

    def try_functions(self, example: Example, text: str, *, max_error_share: float) -> Iterator[str]:
        """Call the user's own functions on a right completion; yields a warning if one cannot read it.

        ConfigError if one raises or returns no number. A right answer is the one completion that a reward is made for:
        an empty or odd text may be undefined for it. As in a step, `max_error_share` of 1 allows it to raise, and a
        timeout or a crash may be the machine's: they only count once the run has begun.
        """
        turn = TurnText(prompt="", completion=text, text=text, stop_reason=StopReason.STOP, num_tokens=1)
        attempt = self._ready(Attempt.of(example, [turn]))
        for name, runner in self._waiting.items():
            if not runner.part.user_function:
                continue
            what = f"reward.parts.{name}.function={runner.part.user_function}:"
            where = f"for the right answer {text[:200]!r} of example {example.id}"
            result = runner.submit(attempt).result()
            if result.status == "exception" and max_error_share < 1:
                raise ConfigError(
                    f"{what} raised {result.message} {where}; correct it, let it return None for what it cannot read, "
                    "or allow failures with reward.max_error_share=1."
                )
            if isinstance(result.value, str):
                raise ConfigError(f"{what} returned {result.value} {where}: it {NEEDED}.")
            if result.status == "ok" and result.value["status"] == "invalid":
                yield f"warning: {what} returned None, which means unreadable, {where}"

    def why_unpaid(self, example: Example, texts: Sequence[str]) -> str:
        """Why no part that reads answers pays any of these right completions in full, a sentence that names one; empty
        if one does, or none reads them."""
        why = ""
        for name, runner in {**self._immediate, **self._waiting}.items():
            if not (runner.part.reads_answer and runner.part.weight > 0):
                continue
            for text in texts:
                turn = TurnText(prompt="", completion=text, text=text, stop_reason=StopReason.STOP, num_tokens=1)
                grade = asyncio.run(runner.grade(self._ready(Attempt.of(example, [turn]))))
                if grade.late is not None or (grade.status != "error" and grade.value >= 1):
                    return ""
                said = grade.message or f"{text[-80:]!r} is {'wrong' if grade.status == 'scored' else 'unreadable'}"
                why = why or f"reward.parts.{name}: {said}"
        return why

    def _score(self, grades: Mapping[str, Grade]) -> Score:
        values: dict[str, float] = {}
        late: dict[str, LateGrade] = {}
        messages: dict[str, float | str] = {}
        errors, status = [], "scored"
        for name in self.parts:
            grade = grades[name]
            if grade.late is not None:
                late[name] = replace(grade.late, weight=self.parts[name].weight)
                continue
            if grade.status == "error":
                errors.append(f"{name}: {grade.message or 'no message'}")
                continue
            values[name] = grade.value
            messages |= grade.facts
            if grade.message:
                messages[name] = grade.message
            if grade.status == "invalid":
                status = "invalid"
        if errors:
            messages["error"] = "; ".join(errors)
            return Score(value=math.nan, status="error", parts=values, diagnostics=messages)
        self._check_sizes(values)
        value = sum([self.parts[name].weight * value for name, value in values.items()])
        return Score(value=value, status=status, parts=values, diagnostics=messages, late=late)

    def _check_sizes(self, values: Mapping[str, float]) -> None:
        """RewardError for a part whose share of the reward overflows in the update."""
        for name, value in values.items():
            weight = self.parts[name].weight
            if abs(weight * value) > LARGEST_REWARD:
                raise RewardError(
                    f"reward.parts.{name} gave {value:g}, and its weight is {weight:g}: an update in float32 squares "
                    f"rewards; keep weight x value between -{LARGEST_REWARD:g} and {LARGEST_REWARD:g}."
                )


class PartRunner:
    """Grades by the part called `name`, in this process or in a killable one.

    A failure of the part is the grade `error`, never a wrong answer. RewardError if it returns no valid grade.
    """

    def __init__(self, name: str, part: Part) -> None:
        self.part, self._name = part, name
        self.waits = not part.in_process or inspect.iscoroutinefunction(part.grade)

    def preload(self, sandbox: Sandbox) -> None:
        for module in () if self.part.in_process else (__name__, *self.part.preload):
            sandbox.preload(module)

    async def grade(self, attempt: Attempt) -> Grade:
        if not self.waits:
            return self.grade_now(attempt)
        try:
            if self.part.in_process:
                grade = to_grade(await self.part.grade(attempt))
            else:
                grade = await self._grade_elsewhere(attempt)
        except Exception as error:
            return Grade.failed(described(error))
        return self._accepted(grade, attempt)

    def grade_now(self, attempt: Attempt) -> Grade:
        try:
            grade = to_grade(self.part.grade(attempt))
        except Exception as error:
            return Grade.failed(described(error))
        return self._accepted(grade, attempt)

    def _accepted(self, grade: Grade | str, attempt: Attempt) -> Grade:
        if isinstance(grade, Grade):
            return grade
        raise RewardError(
            f"reward.parts.{self._name} returned {grade} for example {attempt.example.id!r}: it {NEEDED}; the status "
            f"of a Grade is one of {', '.join(STATES)}."
        )

    @cached_property
    def _remote(self) -> bytes:
        return packed(_Remote(self.part))

    def submit(self, attempt: Attempt) -> Future[CallResult]:
        """Grade in a process of the attempt's sandbox."""
        example = attempt.example if self.part.reads_metadata else replace(attempt.example, metadata={}, row={})
        return attempt.sandbox.submit(self._remote, replace(attempt, example=example, state=None, sandbox=None))

    async def _grade_elsewhere(self, attempt: Attempt) -> Grade | str:
        result = await asyncio.wrap_future(self.submit(attempt))
        if result.status != "ok":
            return Grade.failed(result.message)
        return result.value if isinstance(result.value, str) else to_grade(Grade(**result.value))


class _Remote:
    """Runs a part in a process of a `Sandbox`; returns plain data."""

    def __init__(self, part: Part) -> None:
        self._part = part

    def __call__(self, attempt: Attempt) -> dict[str, Any] | str:
        found = self._part.grade(attempt)
        grade = to_grade(asyncio.run(found) if inspect.iscoroutine(found) else found)
        return grade if isinstance(grade, str) else asdict(grade)

    def __getstate__(self) -> tuple[list[str], bytes]:
        return imports.folders, packed(self._part)

    def __setstate__(self, state: tuple[Sequence[str], bytes]) -> None:
        folders, part = state
        sys.path.extend(folder for folder in folders if folder not in sys.path)
        self._part: Part = pickle.loads(part)
        for module in self._part.preload:
            importlib.import_module(module)


def to_grade(returned: object) -> Grade | str:
    """The returned value as a `Grade`, or a description of an invalid one.

    1, True, 0.5, Fraction(1, 2), a 0-d array or tensor   Grade(value=...)
    None                                                  Grade(value=0.0, status="invalid")
    NaN, "1.0", [1.0], Grade(value=1.0, status="great")   "float nan", "str '1.0'", "list [1.0]", "status 'great'"
    """
    if returned is None:
        return INVALID
    grade = returned if isinstance(returned, Grade) else Grade(value=returned)  # type: ignore[arg-type]
    if grade.status not in STATES:
        return f"status {grade.status!r:.80}"
    if grade.status == "error" or (type(grade.value) is float and math.isfinite(grade.value)):
        return grade
    value = cast(Any, grade.value)
    number = value.item() if getattr(value, "ndim", None) == 0 else value
    with contextlib.suppress(OverflowError):  # 10**400
        if isinstance(number, numbers.Real) and math.isfinite(number):
            return replace(grade, value=float(number))
    return f"{type(value).__name__} {value!r:.80}"


class PartMetric(Metric):
    """Right if a reward part with default settings gives the full value 1.

    If the part fails, the answer is neither right nor wrong, and the grade names the failure.
    """

    uses_sandbox = True
    runner: ClassVar[PartRunner]

    @property
    def parts(self) -> tuple[Part, ...]:
        return (self.runner.part,)

    async def grade(self, attempt: Attempt) -> GradedAnswer:
        self.runner.preload(attempt.sandbox)
        grade = await self.runner.grade(attempt)
        if grade.bad_data:
            raise UserError(f"{grade.message}: correct the data or choose another metric.")
        if grade.status == "error":
            return GradedAnswer(answer=None, correct=False, failure=grade.message or "no message")
        answer = attempt.answer
        if answer is None or grade.status == "invalid":
            return NO_ANSWER
        return GradedAnswer(answer=answer, correct=grade.value >= 1.0 - 1e-9)
