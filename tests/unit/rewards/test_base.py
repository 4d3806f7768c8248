import asyncio
import math
from dataclasses import dataclass

import numpy as np
import pytest

from rlvr.rewards.base import RewardError, run_verifier
from rlvr.types import Attempt, Example, Score, StopReason

ATTEMPT = Attempt(
    example=Example(id="e", messages=(), answer="a"),
    completion="c",
    text="c",
    stop_reason=StopReason.STOP,
    num_tokens=1,
)


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
    return asyncio.run(run_verifier(Returns(result), ATTEMPT))


@pytest.mark.parametrize(
    "result",
    [
        Score(value=math.nan),
        Score(value=math.inf),
        Score(value=math.nan, status="invalid"),
        Score(value=0.0, status="error"),
        Score(value=1.0, status="great"),  # type: ignore[arg-type]
        Score(value=1.0, parts={"correct": math.nan}),
        Score(value=True),
        Score(value=[1.0, 0.0]),  # type: ignore[arg-type]
        Score(value="1"),  # type: ignore[arg-type]
        1.0,
        None,
        [Score(value=1.0)],
    ],
)
def test_pitfall_29_anything_but_one_finite_score_is_an_error_naming_the_reward(result: object) -> None:
    with pytest.raises(RewardError, match="reward 'mine' returned"):
        run(result)


def test_a_number_of_numpy_is_a_number() -> None:
    assert run(Score(value=np.mean([0.0, 1.0]), parts={"correct": np.float64(1)})).value == 0.5


def test_pitfall_26_an_exception_is_an_error_and_not_a_wrong_answer() -> None:
    score = run(ZeroDivisionError("boom"))
    assert score.status == "error"
    assert math.isnan(score.value)
    assert score.diagnostics == {"error": "ZeroDivisionError: boom"}
