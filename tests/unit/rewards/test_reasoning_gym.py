import asyncio
import importlib.util
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import reasoning_gym

from rlvr.errors import UserError
from rlvr.rewards.base import Grade
from rlvr.rewards.extract import AnswerFormat
from rlvr.rewards.pool import VerifierPool
from rlvr.rewards.reasoning_gym import ReasoningGymPart
from rlvr.types import Attempt, Example, StopReason


@pytest.fixture(scope="module")
def part() -> Iterator[ReasoningGymPart]:
    with VerifierPool(num_workers=1, timeout_s=10.0, max_memory_mb=2048) as pool:
        yield ReasoningGymPart(pool=pool, format=AnswerFormat(answer_in="boxed"))


def generated(dataset: str, **settings: Any) -> dict[str, Any]:
    return {"dataset": dataset, "entry": reasoning_gym.create_dataset(dataset, size=1, seed=3, **settings)[0]}


def grades(part: ReasoningGymPart, metadata: dict[str, Any], *texts: str) -> list[Grade]:
    example = Example(id="e7", messages=(), answer="", metadata=metadata)

    async def run() -> list[Grade]:
        attempts = [
            Attempt(example=example, completion=text, text=text, stop_reason=StopReason.STOP, num_tokens=1)
            for text in texts
        ]
        return await asyncio.gather(*(part.grade(attempt) for attempt in attempts))

    return asyncio.run(run())


@pytest.mark.parametrize("dataset", ["basic_arithmetic", "leg_counting", "arc_1d", "prime_factorization", "countdown"])
def test_the_gold_gets_full_marks_and_other_answers_do_not(part: ReasoningGymPart, dataset: str) -> None:
    metadata = generated(dataset)
    right, wrong, missing = grades(
        part, metadata, f"So \\boxed{{{metadata['entry']['answer']}}}", "So \\boxed{999983}", "So 999983"
    )
    assert right == Grade(value=1.0)
    assert wrong.value < 0.5
    assert missing == Grade(value=0.0, status="invalid")


def test_pitfall_28_an_answer_that_was_cut_off_is_invalid(part: ReasoningGymPart) -> None:
    metadata = generated("leg_counting")
    text = f"\\boxed{{{metadata['entry']['answer']}}}"
    example = Example(id="e7", messages=(), answer="", metadata=metadata)
    ended = Attempt(example=example, completion=text, text=text, stop_reason=StopReason.STOP, num_tokens=1)
    assert asyncio.run(part.grade(ended)) == Grade(value=1.0)
    cut = replace(ended, stop_reason=StopReason.LENGTH)
    assert asyncio.run(part.grade(cut)) == Grade(value=0.0, status="invalid")


def test_many_right_answers_are_known_to_the_verifier(part: ReasoningGymPart) -> None:
    metadata = generated("prime_factorization")
    answer = metadata["entry"]["answer"]
    found = grades(part, metadata, f"\\boxed{{{answer}}}", f"\\boxed{{{' × '.join(reversed(answer.split(' × ')))}}}")
    assert found == [Grade(value=1.0)] * 2


def test_a_verifier_knows_the_settings_of_its_data_set(part: ReasoningGymPart) -> None:
    settings = {"min_word_length": 5, "max_word_length": 5}
    metadata = generated("word_ladder", **settings)
    text = f"\\boxed{{{metadata['entry']['answer']}}}"
    assert grades(part, metadata | {"settings": settings}, text) == [Grade(value=1.0)]
    assert grades(part, metadata, text)[0].status == "error"  # the defaults have words of four letters


def test_an_answer_that_the_verifier_fails_on_is_invalid(part: ReasoningGymPart) -> None:
    assert grades(part, generated("prime_factorization"), "\\boxed{zzz}") == [Grade(value=0.0, status="invalid")]


def test_pitfall_26_a_verifier_that_fails_on_its_own_gold_is_an_error(part: ReasoningGymPart) -> None:
    broken = {"dataset": "prime_factorization", "entry": {"question": "?", "answer": "2 x 3", "metadata": {}}}
    (found,) = grades(part, broken, "\\boxed{zzz}")
    assert found.status == "error"
    assert math.isnan(found.value)
    assert found.message


def test_an_example_of_another_task_is_an_error_that_names_it(part: ReasoningGymPart) -> None:
    (found,) = grades(part, {}, "\\boxed{1}")
    assert found.status == "error"
    assert found.message.startswith("example 'e7' has no metadata dataset and entry")


def test_without_the_package_one_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    pool = VerifierPool(num_workers=1, timeout_s=1.0, max_memory_mb=512)
    with pytest.raises(UserError, match=r"pip install 'rlvr\[reasoning-gym\]'"):
        ReasoningGymPart(pool=pool, format=AnswerFormat(answer_in="boxed"))
