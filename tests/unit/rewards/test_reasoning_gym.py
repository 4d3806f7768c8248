import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import reasoning_gym

from rlvr.errors import ConfigError
from rlvr.rewards.base import Grade
from rlvr.rewards.extract import AnswerFormat
from rlvr.rewards.parts import PartRunner
from rlvr.rewards.reasoning_gym import ReasoningGym
from rlvr.rewards.sandbox import Sandbox
from rlvr.types import Attempt, StopReason
from tests.unit.rewards import attempts
from tests.unit.rewards.attempts import failed


@pytest.fixture(scope="module")
def pool() -> Iterator[Sandbox]:
    with Sandbox(num_workers=1, timeout_s=10.0, max_memory_mb=2048) as pool:
        PART.preload(pool)
        yield pool


PART = PartRunner("correct", ReasoningGym())


def generated(dataset: str, **settings: Any) -> dict[str, Any]:
    return {"dataset": dataset, "entry": reasoning_gym.create_dataset(dataset, size=1, seed=3, **settings)[0]}


def attempt(pool: Sandbox, metadata: dict[str, Any], text: str) -> Attempt:
    return replace(attempts.attempt(text, "", **metadata), format=AnswerFormat(answer_in="boxed"), sandbox=pool)


def grades(pool: Sandbox, metadata: dict[str, Any], *texts: str) -> list[Grade]:
    async def run() -> list[Grade]:
        return await asyncio.gather(*(PART.grade(attempt(pool, metadata, text)) for text in texts))

    return asyncio.run(run())


@pytest.mark.slow
@pytest.mark.parametrize("dataset", ["basic_arithmetic", "leg_counting", "arc_1d", "prime_factorization", "countdown"])
def test_the_gold_gets_full_marks_and_other_answers_do_not(pool: Sandbox, dataset: str) -> None:
    metadata = generated(dataset)
    said = (f"So \\boxed{{{metadata['entry']['answer']}}}", "So \\boxed{999983}", "So 999983")
    right, wrong, missing = grades(pool, metadata, *said)
    assert right == Grade(value=1.0)
    assert wrong.value < 0.5
    assert missing == Grade(value=0.0, status="invalid")


def test_pitfall_28_an_answer_that_was_cut_off_is_invalid(pool: Sandbox) -> None:
    metadata = generated("leg_counting")
    text = f"\\boxed{{{metadata['entry']['answer']}}}"
    ended = attempt(pool, metadata, text)
    assert asyncio.run(PART.grade(ended)) == Grade(value=1.0)
    cut = replace(ended, stop_reason=StopReason.LENGTH)
    assert asyncio.run(PART.grade(cut)) == Grade(value=0.0, status="invalid")


def test_a_verifier_knows_the_settings_of_its_data_set(pool: Sandbox) -> None:
    settings = {"min_word_length": 5, "max_word_length": 5}
    metadata = generated("word_ladder", **settings)
    text = f"\\boxed{{{metadata['entry']['answer']}}}"
    assert grades(pool, metadata | {"settings": settings}, text) == [Grade(value=1.0)]
    assert grades(pool, metadata, text)[0].status == "error"  # the defaults have words of four letters


def test_an_answer_that_the_verifier_fails_on_is_invalid(pool: Sandbox) -> None:
    assert grades(pool, generated("prime_factorization"), "\\boxed{zzz}") == [Grade(value=0.0, status="invalid")]


def test_pitfall_26_an_example_at_fault_is_an_error(pool: Sandbox) -> None:
    broken = {"dataset": "prime_factorization", "entry": {"question": "?", "answer": "2 x 3", "metadata": {}}}
    (found,) = grades(pool, broken, "\\boxed{zzz}")
    assert failed(found)
    assert found.message
    (found,) = grades(pool, {}, "\\boxed{1}")
    assert failed(found, "example 'e1' has no metadata dataset and entry")


def test_it_scores_the_task_that_brings_a_verifier() -> None:
    ReasoningGym().check_run(attempts.run(brings_verifier=True))
    with pytest.raises(ConfigError, match="reasoning_gym scores task=reasoning_gym, not task=mine; use numeric"):
        ReasoningGym().check_run(attempts.run())
