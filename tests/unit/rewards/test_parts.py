import asyncio
import math
import time
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import PrivateAttr

from rlvr import registry
from rlvr.errors import UserError
from rlvr.rewards.base import Grade, Part, RewardError, run_verifier
from rlvr.rewards.format import FormatApproximate, FormatExact
from rlvr.rewards.numeric import NumberCheck, Numeric
from rlvr.rewards.parts import PartMetric, PartRunner, PartsVerifier
from rlvr.rewards.settings import RewardSettings
from rlvr.settings import dumped, validated
from rlvr.types import Attempt, GradedAnswer, Score
from tests.unit.rewards.attempts import SOLUTION, attempt, failed, finished, solved, wrong_settings


class Gives(Part):
    """A part that gives, or raises, what it was given."""

    in_process = True
    _result: Any = PrivateAttr()

    def __init__(self, result: object, weight: float = 1.0) -> None:
        super().__init__(weight=weight)
        self._result = result

    def grade(self, attempt: Attempt) -> Any:
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


class Waits(Gives):
    """With a barrier it waits for the others."""

    _barrier: Any = PrivateAttr()

    def __init__(self, result: object, barrier: asyncio.Barrier, weight: float = 1.0) -> None:
        super().__init__(result, weight)
        self._barrier = barrier

    async def grade(self, attempt: Attempt) -> Any:
        await self._barrier.wait()
        return self._result


def verify(parts: dict[str, Part], text: str = "", gold: str = "18") -> Score:
    return asyncio.run(run_verifier(PartsVerifier(parts, SOLUTION), attempt(text, gold)))


def gsm8k() -> dict[str, Part]:
    return {
        "correct": Numeric(wrong_value=-0.5, invalid_value=-1.0, weight=3.0),
        "number": NumberCheck(weight=1.5),
        "format": FormatExact(),
        "markers": FormatApproximate(penalty=1.0, weight=0.5),
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
def test_the_reward_is_the_weighted_sum_of_its_parts(
    text: str, value: float, status: str, parts: tuple[float, ...]
) -> None:
    score = verify(gsm8k(), text)
    assert (score.value, score.status, tuple(score.parts.values())) == (value, status, parts)
    assert tuple(score.parts) == ("correct", "number", "format", "markers")
    score = verify({"a": Gives(Grade(value=1.0), -2.0), "b": Gives(Grade(value=1.0), 0.0)})
    assert score == Score(value=-2.0, parts={"a": 1.0, "b": 1.0})


def test_pitfall_26_a_failed_part_is_no_reward_at_all() -> None:
    boom, late, silent = ZeroDivisionError("boom"), Grade.failed("timed out after 5 s"), Grade.failed("")
    score = verify({"boom": Gives(boom), "good": Gives(1.0), "math": Gives(late, 2.0), "silent": Gives(silent)})
    assert failed(score)
    assert score.parts == {"good": 1.0}
    first, *others = str(score.diagnostics["error"]).split("; ")
    assert first.startswith("boom: ZeroDivisionError: boom (tests/unit/rewards/test_parts.py, line ")
    assert others == ["math: timed out after 5 s", "silent: no message"]


def test_pitfall_26_an_error_is_told_from_an_unreadable_answer() -> None:
    assert verify({"a": Gives(None)}) == Score(value=0.0, status="invalid", parts={"a": 0.0})
    invalid = Grade(value=-1.0, status="invalid", message="no box")
    assert verify({"a": Gives(invalid, 2.0)}) == Score(
        value=-2.0, status="invalid", parts={"a": -1.0}, diagnostics={"a": "no box"}
    )
    down = Grade.failed("down")
    for parts in ((invalid, down), (down, invalid)):
        assert failed(verify({str(index): Gives(grade) for index, grade in enumerate(parts)}))


@pytest.mark.parametrize(
    "result",
    [
        *(Grade(value=math.nan), Grade(value=math.inf), Grade(value=math.nan, status="invalid")),
        *(Grade(value=1.0, status="great"), Grade(value=[1.0, 0.0]), Grade(value="1")),  # type: ignore[arg-type]
        *(math.nan, 10**400, 1j, "1.0", torch.ones(1), np.ones(2), torch.tensor(math.nan), [Grade(value=1.0)]),
        {"value": 1.0},
    ],
)
@pytest.mark.parametrize("weight", [1.0, 0.0])
def test_pitfall_29_a_part_that_gives_no_number_is_named(result: object, weight: float) -> None:
    with pytest.raises(RewardError, match=r"reward\.parts\.bad returned .* for example 'e1': it must return one"):
        verify({"good": Gives(Grade(value=1.0)), "bad": Gives(result, weight)})


@pytest.mark.parametrize(
    ("result", "value"),
    [
        *((1, 1.0), (True, 1.0), (np.bool_(True), 1.0), (np.float32(0.5), 0.5), (torch.tensor(0.5), 0.5)),
        *((np.array(-2), -2.0), (Fraction(1, 4), 0.25), (Grade(value=True), 1.0)),
    ],
)
def test_any_single_number_is_a_grade(result: object, value: float) -> None:
    score = verify({"a": Gives(result)})
    assert score == Score(value=value, parts={"a": value})
    assert type(score.parts["a"]) is float


def test_pitfall_29_grades_stay_with_their_parts() -> None:
    async def run() -> Score:
        barrier = asyncio.Barrier(2)  # opens only if both wait at the same time
        parts = {
            "slow": Waits(Grade(value=0.1), barrier),
            "quick": FormatExact(weight=10.0),
            "slower": Waits(Grade(value=0.3), barrier, weight=100.0),
        }
        return await asyncio.wait_for(PartsVerifier(parts, SOLUTION).verify(attempt(solved("18"))), timeout=10)

    score = asyncio.run(run())
    assert tuple(score.parts.items()) == (("slow", 0.1), ("quick", 1.0), ("slower", 0.3))
    assert score.value == pytest.approx(0.1 + 10 + 30)


def test_the_work_of_a_hostile_answer_is_bounded() -> None:
    verifier = PartsVerifier(gsm8k(), SOLUTION)
    start = time.process_time()
    for said in ("9" * 10**6, "1e999999999", "(" * 10**6, "<s>" * 10**5, " " * 10**6, "1/" * 10**5, "{" * 10**6):
        assert finished(verifier.verify(attempt(solved(said)))).value < 4.0
    assert time.process_time() - start < 5.0


def test_a_section_names_its_parts_by_type() -> None:
    reward = validated(RewardSettings, {"parts": {"right": {"type": "numeric", "weight": 3}}})
    assert reward.parts == {"right": Numeric(weight=3.0)}
    zero = dict.fromkeys(("wrong_value", "invalid_value", "close_credit", "near_credit"), 0.0)
    assert dumped(reward)["parts"] == {"right": {"type": "numeric", "weight": 3.0, **zero}}
    assert validated(RewardSettings, dumped(reward)) == reward
    assert not reward.uses_sandbox
    assert validated(RewardSettings, {"parts": {"a": {"type": "math"}}}).uses_sandbox


def test_rewards_that_pay_nothing_are_refused() -> None:
    nothing = {"parts": {"a": {"type": "numeric", "weight": 0.0}, "b": {"type": "hops", "weight": 0.0}}}
    ((key, remedy),) = wrong_settings(RewardSettings, nothing)
    assert (key, remedy.partition(",")[0]) == ("parts", "have weights of 0 only")
    assert wrong_settings(RewardSettings, {}) == []  # the environment scores
    assert wrong_settings(Numeric, {"weight": math.nan}) != []


@pytest.mark.parametrize(("value", "weight"), [(1e308, 1.0), (-1e30, 1.0), (1.0, 1e30), (1e308, 1e308), (1.1e12, -1.0)])
def test_a_part_that_overflows_in_the_update_is_named(value: float, weight: float) -> None:
    with pytest.raises(RewardError) as caught:
        verify({"fine": Gives(1.0), "huge": Gives(value, weight)})
    assert str(caught.value).startswith(f"reward.parts.huge gave {value:g}, and its weight is {weight:g}: ")


def test_large_rewards_that_do_not_overflow_are_taken() -> None:
    assert verify({"large": Gives(1e6, 1e6), "none": Gives(1e300, 0.0)}).value == 1e12


def test_only_what_may_hang_is_graded_in_another_process() -> None:
    """A number or a format is graded in microseconds, a call of another process takes a hundred times as long."""
    elsewhere = {name for name, part in registry.ours("reward").items() if not part.in_process}
    assert elsewhere == {"custom", "math", "reasoning_gym"}


def metric_of(result: object) -> PartMetric:
    """That of a part that gives what it was given."""

    class OfGiven(PartMetric):
        runner = PartRunner("correct", Gives(result))

    return OfGiven()


@pytest.mark.parametrize(
    ("result", "found"),
    [
        (1.0, GradedAnswer(answer="18", correct=True)),
        (1.0 - 1e-9, GradedAnswer(answer="18", correct=True)),
        (1.0 - 2e-9, GradedAnswer(answer="18", correct=False)),
        (2.0, GradedAnswer(answer="18", correct=True)),
        (0.5, GradedAnswer(answer="18", correct=False)),
        (Grade(value=1.0, status="invalid"), GradedAnswer(answer=None, correct=False)),
        (Grade.failed("it broke"), GradedAnswer(answer=None, correct=False, failure="it broke")),
        (Grade.failed(""), GradedAnswer(answer=None, correct=False, failure="no message")),
    ],
)
def test_an_answer_is_right_where_its_part_gives_everything(result: object, found: GradedAnswer) -> None:
    said = replace(attempt(solved("18")), format=SOLUTION)
    assert asyncio.run(metric_of(result).grade(said)) == found
    if found.failure is None:
        nothing = replace(attempt("18"), format=SOLUTION)
        assert asyncio.run(metric_of(result).grade(nothing)) == GradedAnswer(answer=None, correct=False)


def test_data_at_fault_end_an_evaluation() -> None:
    with pytest.raises(UserError, match=r"^no gold: correct the data or choose another metric\.$"):
        asyncio.run(metric_of(Grade.failed("no gold", bad_data=True)).grade(attempt("18")))


@pytest.mark.parametrize("name", ["mean", "std", "within_group_std"])
def test_a_part_is_named_unlike_the_rewards_own_metrics(name: str) -> None:
    parts = {"b": {"type": "numeric"}, name: {"type": "numeric"}}
    ((key, remedy),) = wrong_settings(RewardSettings, {"parts": parts})
    assert (key, remedy) == (
        "parts",
        f"reward/{name} is a metric of the whole reward; give the part another name",
    )
    assert wrong_settings(RewardSettings, {"parts": {f"{name}s": {"type": "numeric"}}}) == []
