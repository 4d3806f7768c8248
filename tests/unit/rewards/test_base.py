import asyncio
import math
from dataclasses import dataclass

import numpy as np
import pytest

from rlvr.rewards.base import RewardError, run_verifier
from rlvr.types import Attempt, Score
from tests.unit.rewards.attempts import attempt, failed


@dataclass
class Returns:
    """A verifier that returns, or raises, what it was given."""

    result: object
    name: str = "mine"

    async def verify(self, attempt: Attempt) -> Score:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result  # type: ignore[return-value]


def run(result: object) -> Score:
    return asyncio.run(run_verifier(Returns(result), attempt("c")))


@pytest.mark.parametrize(
    "result",
    [
        *(Score(value=value) for value in (math.nan, math.inf, True, [1.0, 0.0], "1")),
        *(Score(value=math.nan, status="invalid"), Score(value=0.0, status="error"), Score(value=1.0, status="great")),
        *(Score(value=1.0, parts={"correct": math.nan}), 1.0, None, [Score(value=1.0)]),
    ],
)
def test_pitfall_29_only_one_finite_score_is_accepted(result: object) -> None:
    with pytest.raises(RewardError, match="reward 'mine' returned"):
        run(result)


def test_a_number_of_numpy_is_a_number() -> None:
    assert run(Score(value=np.mean([0.0, 1.0]), parts={"correct": np.float64(1)})).value == 0.5


def test_pitfall_26_an_exception_is_no_wrong_answer() -> None:
    score = run(ZeroDivisionError("boom"))
    assert failed(score)
    assert score.diagnostics == {"error": "ZeroDivisionError: boom"}
