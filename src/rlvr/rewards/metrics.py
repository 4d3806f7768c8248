"""Metrics of data tasks: is the answer right? Independent of the reward; each is in the file of a similar part.

They extract answers and parse numbers as rewards do, but use no weights, credits or tolerances: no reward setting can
change them. An unreadable gold ends the evaluation.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

from rlvr.settings import Component
from rlvr.types import Attempt, GradedAnswer

NO_ANSWER = GradedAnswer(answer=None, correct=False)


class Metric(Component, ABC):
    """Grades the answers to held-out examples; its fields are its settings.

    `uses_sandbox`: it runs code that can hang in the processes of `attempt.sandbox`.
    """

    group = "metric"
    uses_sandbox: ClassVar[bool] = False

    @abstractmethod
    async def grade(self, attempt: Attempt) -> GradedAnswer:
        """The normalized answer, for majority votes, and whether it is right. A missing answer is wrong.

        UserError if the example is at fault.
        """
