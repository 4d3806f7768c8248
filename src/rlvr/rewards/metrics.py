"""Metrics of data tasks: is the answer right? Independent of the reward; each is in the file of a similar part.

They extract answers and parse numbers as rewards do, but use no weights, credits or tolerances: no reward setting can
change them. An unreadable gold ends the evaluation. Only `reward`, for data without answers, asks the reward.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Self

from pydantic import PrivateAttr

from rlvr.registry import register
from rlvr.rewards.base import Part, Verifier, run_verifier
from rlvr.settings import Component
from rlvr.types import Attempt, GradedAnswer

NO_ANSWER = GradedAnswer(answer=None, correct=False)


class Metric(Component, ABC):
    """Grades the answers to held-out examples; its fields are its settings.

    `uses_sandbox`: it runs code that can hang in the processes of `attempt.sandbox`. `reads_gold`: without a known
    answer nothing is right.
    """

    group = "metric"
    uses_sandbox: ClassVar[bool] = False
    reads_gold: ClassVar[bool] = True

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of rewards that grade, for metrics that are made of them."""
        return ()

    def bound(self, verifier: Verifier) -> Self:
        """The metric of a task with this reward."""
        return self

    @abstractmethod
    async def grade(self, attempt: Attempt) -> GradedAnswer:
        """The normalized answer, for majority votes, and whether it is right. A missing answer is wrong.

        UserError if the example is at fault.
        """


@register("metric", "reward")
class RewardMetric(Metric):
    """For data without answers: right if the reward is above 0."""

    reads_gold = False
    _verifier: Verifier | None = PrivateAttr(None)

    def bound(self, verifier: Verifier) -> Self:
        bound = self.model_copy()
        bound._verifier = verifier
        return bound

    async def grade(self, attempt: Attempt) -> GradedAnswer:
        assert self._verifier is not None, "the metric is not bound to its reward"
        score = await run_verifier(self._verifier, attempt)
        if score.status == "error":
            return GradedAnswer(answer=None, correct=False, failure=str(score.diagnostics.get("error", "no message")))
        return GradedAnswer(answer=None if score.status == "invalid" else attempt.answer, correct=score.value > 0)
