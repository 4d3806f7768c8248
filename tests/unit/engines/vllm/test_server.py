"""A server's answers are checked: none that contradicts itself or the request is used."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from rlvr.engines.vllm.server import Sampled, ServerGoneError, Span, read_sampled, to_completion
from rlvr.types import StopReason
from tests.unit.engines.tiny import sampling

VOCABULARY = 40
PARAMS = sampling(max_tokens=4, stop_ids=frozenset({2}))
IDS = [5, 0, 39, 7]

Answer = dict[str, Any]


def choice(ids: list[int], finish: str = "length", version: str = "run/0") -> Answer:
    """As vLLM 0.32 says it; logprobs -0.5, -1.5, ..."""
    content = [{"token_id": token, "logprob": -0.5 - i, "top_logprobs": []} for i, token in enumerate(ids)]
    return {
        "finish_reason": finish,
        "token_ids": list(ids),
        "logprobs": {"content": content},
        "weight_versions": [{"version": version, "start": 0, "end": len(ids)}],
    }


def read(*choices: Answer) -> Sampled:
    return read_sampled(json.dumps({"choices": choices}).encode(), PARAMS, VOCABULARY)


def test_a_correct_answer_is_read() -> None:
    assert read(choice(IDS)) == Sampled(
        token_ids=(5, 0, 39, 7),
        logprobs=(-0.5, -1.5, -2.5, -3.5),
        stop_reason=StopReason.LENGTH,
        spans=(Span(version="run/0", start=0, end=4),),
        top=(),
    )


@pytest.mark.parametrize("ids", [[2], [5, 2], [5, 6, 7, 2]])
def test_pitfall_14_a_stop_token_is_part_of_the_completion(ids: list[int]) -> None:
    done = to_completion(read(choice(ids, "stop")), PARAMS, [3])
    assert (done.token_ids, done.stop_reason, len(done.behavior_logprobs)) == (tuple(ids), StopReason.STOP, len(ids))


def tokens(ids: list[int]) -> Callable[[Answer], None]:
    """Other tokens, their logprobs and versions alike."""
    return lambda answer: answer.update(choice(ids, answer["finish_reason"]))


def logprob(value: Any) -> Callable[[Answer], None]:
    return lambda answer: answer["logprobs"]["content"][1].update(logprob=value)


def spans(*given: tuple[int, int]) -> Callable[[Answer], None]:
    return lambda answer: answer.update(weight_versions=[{"version": "run/0", "start": a, "end": b} for a, b in given])


WRONG: dict[str, tuple[Callable[[Answer], Any], str]] = {
    "no tokens": (tokens([]), "not as many tokens"),
    "more tokens than asked for": (tokens([5, 6, 7, 8, 9]), "not as many tokens"),
    "a negative token": (tokens([5, -1, 6, 7]), "outside of the vocabulary"),
    "a token beyond the vocabulary": (tokens([5, 40, 6, 7]), "outside of the vocabulary"),
    "logprobs of others": (lambda answer: answer["logprobs"]["content"][2].update(token_id=6), "of other tokens"),
    "logprobs of fewer tokens": (lambda answer: answer["logprobs"]["content"].pop(), "logprobs of other tokens"),
    "no logprobs": (lambda answer: answer.update(logprobs=None), "no completion .choices.0.logprobs"),
    "a logprob that is no number": (logprob("NaN"), "a logprob that is none"),
    "a logprob above 0": (logprob(0.5), "a logprob that is none"),
    "given up": (lambda answer: answer.update(finish_reason="abort"), "it ended by 'abort'"),
    "a stop at no stop token": (lambda answer: answer.update(finish_reason="stop"), "it ended by 'stop'"),
    "a length that is not reached": (tokens([5, 6, 7]), "it ended by 'length'"),
    "more after a stop token": (tokens([5, 2, 6, 7]), "tokens after a stop token"),
    "a length at a stop token": (tokens([5, 6, 7, 2]), "it ended by 'length'"),
    "no versions": (lambda answer: answer.update(weight_versions=None), "no completion .choices.0.weight_versions"),
    "versions of fewer tokens": (spans((0, 3)), "do not cover"),
    "versions of more tokens": (spans((0, 5)), "do not cover"),
    "versions with a gap": (spans((0, 2), (3, 4)), "do not cover"),
    "versions that go back": (spans((0, 3), (3, 2), (2, 4)), "do not cover"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_answer_that_contradicts_itself_is_refused(name: str) -> None:
    change, reason = WRONG[name]
    answer = choice(IDS)
    change(answer)
    with pytest.raises(ServerGoneError, match=reason):
        read(answer)


@pytest.mark.parametrize("body", [b"<html>", b'{"choices": [{"token_ids": [1, 2', b'{"choices": []}', b"[" * 99_999])
def test_an_unreadable_answer_is_one_line(body: bytes) -> None:
    with pytest.raises(ServerGoneError, match=r"what it answered is no completion \([^\n]{1,300}\)$"):
        read_sampled(body, PARAMS, VOCABULARY)


def test_pitfall_20_a_missing_logprob_is_nan_a_rounded_one_is_0() -> None:
    answer = choice(IDS)
    logprob(1e-4)(answer)
    answer["logprobs"]["content"][2]["logprob"] = -9999.0
    read_ones = read(answer).logprobs
    assert read_ones[:2] == (-0.5, 0.0)
    assert math.isnan(read_ones[2])
