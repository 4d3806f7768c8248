"""Reward parts, verifiers, and the checks that every score must pass."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self, get_args

from pydantic import Field

from rlvr.errors import ConfigError, UserError
from rlvr.run_view import RunView, TaskView
from rlvr.settings import Component, setting
from rlvr.types import Attempt, LateGrade, Score

AtMostRight = Annotated[float, Field(le=1)]
Status = Literal["scored", "invalid", "error"]
STATES: tuple[str, ...] = get_args(Status)


class RewardError(UserError):
    """A verifier returned an invalid score: a bug in the verifier, which ends the run."""


class Verifier(Protocol):
    @property
    def name(self) -> str: ...

    async def verify(self, attempt: Attempt) -> Score:
        """The score; must not raise for any completion, and must not block."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Grade:
    """The unweighted result of a reward part: `Grade(value=1.0)`, `Grade(value=0.0, status="invalid")`.

    The statuses are those of `Score`. `error`: the part itself failed, `value` is NaN, and `message` is a countable
    reason (`timed out after 5 s`); `bad_data`: the example is at fault. `late`: only the policy can say the value.
    `facts` are reported as `episode/<name>`, the mean over a step.
    """

    value: float
    status: Status = "scored"
    message: str = ""
    bad_data: bool = False
    late: LateGrade | None = None
    facts: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def failed(cls, message: str, *, bad_data: bool = False) -> Grade:
        return cls(value=math.nan, status="error", message=message, bad_data=bad_data)


INVALID = Grade(value=0.0, status="invalid")


class Part(Component, ABC):
    """A named, weighted part of a reward: its fields are the settings, `grade` grades.

        @register("reward", "hops")
        class Hops(Part):
            in_process = True

            def grade(self, attempt: Attempt) -> Grade:
                return Grade(value=float(attempt.state.hops))

    Class attributes:
        in_process: `grade` never blocks and runs in this process. Otherwise it runs on a copy of the attempt without
            `state`, in a process that is killed after reward.timeout_s.
        grades: what a completion earns the part's value for: its `answer`; its `form` alone; the `documents` that were
            found and read, so that a right answer alone does not earn it in full.
        is_penalty: normally 0.
        needs_markers: reads the markers around reasoning and solution.
        needs_metadata: only scores examples with the metadata of a certain task.
        preload: modules imported in the worker process before it grades; the deadline starts afterwards.
        needs_policy: its grades are `late`: added to the score of an episode once the policy has read them.
        reads_answer: reads the whole completion, or the place that `prompt.answer_in` names, as one answer.
        scores, instead: descriptions of the tasks it `suits`, and of the parts for other tasks.
    """

    group = "reward"
    in_process: ClassVar[bool] = False
    grades: ClassVar[Literal["answer", "form", "documents"]] = "answer"
    is_penalty: ClassVar[bool] = False
    needs_markers: ClassVar[bool] = False
    needs_metadata: ClassVar[bool] = False
    preload: ClassVar[tuple[str, ...]] = ()
    needs_policy: ClassVar[bool] = False
    reads_answer: ClassVar[bool] = False
    scores: ClassVar[str] = "any task"
    instead: ClassVar[str] = "another type"

    weight: float = setting(1.0, "the reward is the sum of weight x value over the parts")

    @abstractmethod
    def grade(self, attempt: Attempt) -> Any:
        """A `Grade`, one finite number, or None for an unreadable completion; may be asynchronous.

        An exception counts as an error of the part, and the episode is left out of group and loss.
        """

    @property
    def user_function(self) -> str:
        """Import path of the user's function that grades; empty: the class grades by itself."""
        return ""

    def bound(self, key: str, functions: Mapping[str, Callable[..., Any]]) -> Self:
        """The part, able to grade; `functions` are Python objects without import path. ConfigError names `key`."""
        return self

    @property
    def reads_metadata(self) -> bool:
        """If False, the worker process gets the example without its metadata, which may be large."""
        return True

    @property
    def reads_some_golds(self) -> bool:
        """Whether there are golds that the part cannot read, by `surely_reads` and `reads_gold`."""
        return type(self).reads_gold is not Part.reads_gold

    def surely_reads(self, gold: str) -> bool:
        """Whether a glance shows that the part reads the gold; asked of each row at loading."""
        return False

    def reads_gold(self, gold: str) -> bool:
        """Whether the part can pay an answer with this gold; runs in a worker process."""
        return True

    def suits(self, task: TaskView) -> bool:
        return True

    def check_run(self, run: RunView) -> None:
        if not self.suits(run.task):
            raise ConfigError(
                f"reward: a part of type {self.name} scores {self.scores}, not task={run.task.name}; use "
                f"{self.instead}."
            )
        if self.needs_policy and run.is_trained and run.trainer.strategy == "fsdp2":
            raise ConfigError(
                f"trainer.strategy=fsdp2: the reward has a part of type {self.name}, which reads with the whole policy "
                "on each process; set trainer.strategy=ddp."
            )
        if self.needs_markers and run.prompt.answer_in != "solution":
            raise ConfigError(
                f"prompt.answer_in={run.prompt.answer_in}: the reward has a part of type {self.name}, which reads "
                "markers; choose a reward without it, e.g. reward=numeric or reward=text, or set "
                "prompt.answer_in=solution."
            )


class AnswerPart(Part):
    in_process = True
    reads_answer = True

    wrong_value: AtMostRight = setting(0.0, "value of a wrong answer; a right one has 1")
    invalid_value: AtMostRight = setting(0.0, "value of an unreadable answer, which counts as invalid")


def checked(name: str, score: object) -> Score:
    """Return `score` if it is one valid grade (NaN for `error`), else raise RewardError naming the reward.

    Otherwise a list, a bare number, NaN or infinity would silently be broadcast over a group or corrupt its mean.
    """
    if isinstance(score, Score) and score.status in STATES:
        failed = score.status == "error"
        numbers = [*score.parts.values(), *([] if failed else [score.value])]
        are_numbers = all(isinstance(number, int | float) and not isinstance(number, bool) for number in numbers)
        if are_numbers and all(map(math.isfinite, numbers)) and (not failed or math.isnan(score.value)):
            return score
    raise RewardError(
        f"reward {name!r} returned {score!r:.200}; it must be one Score with finite numbers (status 'error': NaN) and "
        f"a status of {', '.join(STATES)}."
    )


async def run_verifier(verifier: Verifier, attempt: Attempt) -> Score:
    """The checked score; an exception of the verifier becomes `error` (left out of the group), not a wrong answer."""
    try:
        score = await verifier.verify(attempt)
    except RewardError:
        raise  # a bug in the verifier, not a bad completion
    except Exception as error:
        return Score(value=math.nan, status="error", diagnostics={"error": f"{type(error).__name__}: {error}"[:500]})
    return checked(verifier.name, score)
