import asyncio
import math
import time
from dataclasses import dataclass, field
from typing import Any

import pytest

from rlvr.errors import ConfigError
from rlvr.rewards.base import Grade, Part, RewardError, run_verifier
from rlvr.rewards.format import ApproximateFormatPart, ExactFormatPart
from rlvr.rewards.numeric import NumberCheckPart, NumericPart
from rlvr.rewards.parts import PartsVerifier, WeightedPart
from rlvr.types import Attempt, Score
from tests.unit.rewards.attempts import SOLUTION, attempt, finished, solved


@dataclass
class Gives:
    """A part that gives, or raises, what it was given; with an event it waits for its turn."""

    result: object
    started: list[str] = field(default_factory=list)
    barrier: asyncio.Barrier | None = None

    async def grade(self, attempt: Attempt) -> Grade:
        if self.barrier is not None:
            await self.barrier.wait()
        if isinstance(self.result, Exception):
            raise self.result
        return self.result  # type: ignore[return-value]


def verify(parts: dict[str, tuple[Part, float]], text: str = "", gold: str = "18") -> Score:
    weighted = {name: WeightedPart(part, weight) for name, (part, weight) in parts.items()}
    return asyncio.run(run_verifier(PartsVerifier("mine", weighted), attempt(text, gold)))


def gsm8k() -> dict[str, tuple[Part, float]]:
    return {
        "correct": (NumericPart(format=SOLUTION, wrong_value=-0.5, invalid_value=-1.0), 3.0),
        "number": (NumberCheckPart(format=SOLUTION), 1.5),
        "format": (ExactFormatPart(format=SOLUTION), 1.0),
        "markers": (ApproximateFormatPart(format=SOLUTION, penalty=1.0), 0.5),
    }


@pytest.mark.parametrize(
    ("text", "value", "status", "parts"),
    [
        (solved("18"), 6.0, "scored", (1.0, 1.0, 1.0, 1.0)),
        (solved("19"), 0.0, "scored", (-0.5, 0.0, 1.0, 1.0)),
        (f"So: {solved('18')}", -2.5, "invalid", (-1.0, 0.0, 0.0, 1.0)),
        ("<s>18</s>", 4.5, "scored", (1.0, 1.0, 0.0, 0.0)),
        ("18", -3.5, "invalid", (-1.0, 0.0, 0.0, -1.0)),
    ],
)
def test_the_reward_is_the_weighted_sum_and_the_parts_are_before_weights(
    text: str, value: float, status: str, parts: tuple[float, ...]
) -> None:
    score = verify(gsm8k(), text)
    assert (score.value, score.status, tuple(score.parts.values())) == (value, status, parts)
    assert tuple(score.parts) == ("correct", "number", "format", "markers")


def test_negative_and_zero_weights_count_as_they_say() -> None:
    score = verify({"a": (Gives(Grade(value=1.0)), -2.0), "b": (Gives(Grade(value=1.0)), 0.0)})
    assert score == Score(value=-2.0, parts={"a": 1.0, "b": 1.0})


def test_pitfall_26_a_failed_part_is_no_reward_at_all() -> None:
    failed = Grade(value=math.nan, status="error", message="timed out after 5 s")
    score = verify({"good": (Gives(Grade(value=1.0)), 1.0), "math": (Gives(failed), 2.0)})
    assert score.status == "error"
    assert math.isnan(score.value)
    assert score.parts == {"good": 1.0}
    assert score.diagnostics == {"error": "math: timed out after 5 s"}


def test_pitfall_26_a_part_that_raises_has_failed_and_spares_the_others() -> None:
    parts: dict[str, tuple[Part, float]] = {
        "boom": (Gives(ZeroDivisionError("boom")), 1.0),
        "other": (Gives(Grade(value=1.0)), 1.0),
        "silent": (Gives(Grade(value=math.nan, status="error")), 1.0),
    }
    score = verify(parts)
    assert score.status == "error"
    assert math.isnan(score.value)
    assert score.parts == {"other": 1.0}
    assert score.diagnostics == {"error": "boom: ZeroDivisionError: boom; silent: no message"}


def test_pitfall_26_an_error_is_told_from_an_unreadable_answer() -> None:
    invalid = Grade(value=-1.0, status="invalid", message="no box")
    assert verify({"a": (Gives(invalid), 2.0)}) == Score(
        value=-2.0, status="invalid", parts={"a": -1.0}, diagnostics={"a": "no box"}
    )
    failed = Grade(value=math.nan, status="error", message="down")
    for parts in ((invalid, failed), (failed, invalid)):
        score = verify({str(index): (Gives(grade), 1.0) for index, grade in enumerate(parts)})
        assert score.status == "error"
        assert math.isnan(score.value)


@pytest.mark.parametrize(
    "result",
    [
        Grade(value=math.nan),
        Grade(value=math.inf),
        Grade(value=math.nan, status="invalid"),
        Grade(value=True),
        Grade(value=[1.0, 0.0]),  # type: ignore[arg-type]
        Grade(value="1"),  # type: ignore[arg-type]
        1.0,
        None,
        [Grade(value=1.0)],
    ],
)
@pytest.mark.parametrize("weight", [1.0, 0.0])
def test_pitfall_29_a_part_that_gives_no_finite_number_is_an_error_naming_reward_and_part(
    result: object, weight: float
) -> None:
    with pytest.raises(RewardError, match="part 'bad' of reward 'mine' returned "):
        verify({"good": (Gives(Grade(value=1.0)), 1.0), "bad": (Gives(result), weight)})


def test_pitfall_29_grades_stay_with_their_parts_whoever_is_first() -> None:
    async def run() -> Score:
        barrier = asyncio.Barrier(2)  # opens only if both wait at the same time
        parts: dict[str, Any] = {
            "slow": WeightedPart(Gives(Grade(value=0.1), barrier=barrier), 1.0),
            "quick": WeightedPart(ExactFormatPart(format=SOLUTION), 10.0),
            "slower": WeightedPart(Gives(Grade(value=0.3), barrier=barrier), 100.0),
        }
        return await asyncio.wait_for(PartsVerifier("mine", parts).verify(attempt(solved("18"))), timeout=10)

    score = asyncio.run(run())
    assert tuple(score.parts.items()) == (("slow", 0.1), ("quick", 1.0), ("slower", 0.3))
    assert score.value == pytest.approx(0.1 + 10 + 30)


def test_bad_parts_are_refused() -> None:
    with pytest.raises(ConfigError, match="reward 'mine' has no parts"):
        PartsVerifier("mine", {})
    with pytest.raises(ConfigError, match=r"reward.parts.a.weight=nan"):
        PartsVerifier("mine", {"a": WeightedPart(Gives(1.0), math.nan)})


def test_cheap_parts_never_wait_and_are_cheap() -> None:
    verifier = PartsVerifier("mine", {"correct": WeightedPart(NumericPart(format=SOLUTION), 1.0)})
    attempts = [attempt(f"<r>{'She has 3 eggs. ' * 20}</r><s>{n}</s>", str(n)) for n in range(2000)]
    start = time.process_time()
    assert all(finished(verifier.verify(made)).value == 1.0 for made in attempts)
    per_second = len(attempts) / (time.process_time() - start)
    assert per_second > 10_000  # about 90,000 on a quiet core; benchmarks/verifiers.py measures it


def test_the_work_of_a_hostile_answer_is_bounded() -> None:
    verifier = PartsVerifier("mine", {name: WeightedPart(part, weight) for name, (part, weight) in gsm8k().items()})
    start = time.process_time()
    for said in ("9" * 10**6, "1e999999999", "(" * 10**6, "<s>" * 10**5, " " * 10**6, "1/" * 10**5, "{" * 10**6):
        assert finished(verifier.verify(attempt(solved(said)))).value < 4.0
    assert time.process_time() - start < 5.0
