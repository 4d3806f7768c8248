"""Runs a part of a reward: in this process, or in one that can be killed."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import math
import numbers
import os
import pickle
import sys
import sysconfig
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import rlvr
from rlvr import imports
from rlvr.rewards.base import Grade, Part, RewardError
from rlvr.rewards.sandbox import Sandbox, packed
from rlvr.types import Attempt

_FOREIGN = (
    "<frozen",
    f"{Path(rlvr.__file__).parent}/",
    *(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "purelib", "platlib")),
)
"""How the paths of files begin that are not the user's."""


class PartRunner:
    """Grades by the part called `name` of a reward."""

    def __init__(self, name: str, part: Part) -> None:
        self.part, self._name = part, name
        self.waits = not part.in_process or inspect.iscoroutinefunction(part.grade)

    def preload(self, sandbox: Sandbox) -> None:
        """Let the processes start with what the part imports."""
        for module in () if self.part.in_process else (__name__, *self.part.preload):
            sandbox.preload(module)

    @cached_property
    def _remote(self) -> bytes:
        return packed(_Remote(self.part))

    async def grade(self, attempt: Attempt) -> Grade:
        """The grade; what goes wrong with the part is `error`, never a wrong answer.

        RewardError if the part returns anything but a `Grade`, one finite number, or None.
        """
        if not self.waits:
            return self.grade_now(attempt)
        try:
            if self.part.in_process:
                grade = to_grade(await self.part.grade(attempt))
            else:
                grade = await self._grade_elsewhere(attempt)
        except Exception as error:
            return _failure(described(error))
        return self._accepted(grade, attempt)

    def grade_now(self, attempt: Attempt) -> Grade:
        """`grade` for a part that does not wait."""
        try:
            grade = to_grade(self.part.grade(attempt))
        except Exception as error:
            return _failure(described(error))
        return self._accepted(grade, attempt)

    def _accepted(self, grade: Grade | str, attempt: Attempt) -> Grade:
        if isinstance(grade, Grade):
            return grade
        raise RewardError(
            f"reward.parts.{self._name} returned {grade} for example {attempt.example.id!r}: it must return one finite "
            "number, or None for a completion that it cannot read."
        )

    async def _grade_elsewhere(self, attempt: Attempt) -> Grade | str:
        example = attempt.example if self.part.reads_metadata else replace(attempt.example, metadata={})
        result = await attempt.sandbox.call(self._remote, replace(attempt, example=example, state=None, sandbox=None))
        if result.status != "ok":
            return _failure(result.message)
        return result.value if isinstance(result.value, str) else to_grade(Grade(**result.value))


class _Remote:
    """Grades by a part in a process of a `Sandbox`; what it returns is plain data."""

    def __init__(self, part: Part) -> None:
        self._part = part

    def __call__(self, attempt: Attempt) -> dict[str, Any] | str:
        found = self._part.grade(attempt)
        grade = to_grade(asyncio.run(_awaited(found)) if inspect.isawaitable(found) else found)
        return grade if isinstance(grade, str) else asdict(grade)

    def __reduce__(self) -> tuple[Callable[..., _Remote], tuple[list[str], bytes]]:
        return _loaded, (imports.folders, packed(self._part))


def _loaded(folders: Sequence[str], part: bytes) -> _Remote:
    sys.path.extend(folder for folder in folders if folder not in sys.path)
    found: Part = pickle.loads(part)
    for module in found.preload:
        importlib.import_module(module)
    return _Remote(found)


async def _awaited(found: Awaitable[Any]) -> Any:
    return await found


def to_grade(found: object) -> Grade | str:
    """What a part returned as a `Grade`, or in words what it is instead of one.

    1, True, 0.5, Fraction(1, 2), a 0-d array or tensor   Grade(value=...)
    None                                                  Grade(value=0.0, status="invalid")
    NaN, "1.0", [1.0]                                     "float nan", "str '1.0'", "list [1.0]"
    """
    if found is None:
        return Grade(value=0.0, status="invalid")
    grade = found if isinstance(found, Grade) else Grade(value=found)  # type: ignore[arg-type]
    if grade.status == "error" or (type(grade.value) is float and math.isfinite(grade.value)):
        return grade
    value = cast(Any, grade.value)
    number = value.item() if getattr(value, "ndim", None) == 0 else value
    with contextlib.suppress(OverflowError):  # 10**400
        if isinstance(number, numbers.Real) and math.isfinite(number):
            return replace(grade, value=float(number))
    return f"{type(value).__name__} {value!r:.80}"


def described(error: BaseException) -> str:
    """`KeyError: 'level' (my_rewards.py, line 12)`: the last line of the user's code, if there is any."""
    try:
        text = str(error)
    except Exception:  # its own __str__ fails
        text = ""
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [place for place in places if not place[0].startswith(_FOREIGN)] or places
    where = f" ({os.path.relpath(own[-1][0])}, line {own[-1][1]})" if own else ""
    return f"{type(error).__name__}: {text[:400]}{where}"


def _failure(message: str) -> Grade:
    return Grade(value=math.nan, status="error", message=message)
