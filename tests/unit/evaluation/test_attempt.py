"""What is asked, and of whom: bounds, requests, records that are there already, the training stream."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from rlvr.errors import UserError
from rlvr.evaluation.evaluate import UNKEPT, Session, check_failures, play_set
from rlvr.evaluation.players import LocalPlayer
from rlvr.evaluation.records import RecordFile
from rlvr.tracking.evaluations import EvaluationRecord
from rlvr.types import SamplingParams
from tests.unit.evaluation.records import record
from tests.unit.evaluation.test_evaluate import ScriptedPolicy, WordCodec, make_task

SAMPLING = SamplingParams(max_tokens=8, stop_ids=frozenset(), seed=0, temperature=0.7, top_p=0.9, top_k=5, min_p=0.1)


def ask(
    policy: ScriptedPolicy, num: int, samples: Sequence[int], session: Session = UNKEPT
) -> tuple[EvaluationRecord, ...]:
    task = make_task()
    player = LocalPlayer(engine=policy, chat=policy.codec, max_context_tokens=64)
    return asyncio.run(play_set(player, task, task.eval_examples(num), SAMPLING, samples, session))


def scripted() -> ScriptedPolicy:
    return ScriptedPolicy(task := make_task(), WordCodec(task))


def test_no_more_episodes_than_allowed_run_at_the_same_time() -> None:
    policy = scripted()
    ask(policy, 20, (0,), Session(max_running=3))
    assert len(policy.requests) == 20
    assert policy.most_waiting <= 3


def test_pitfall_38_a_greedy_request_has_nothing_left_of_chance() -> None:
    policy = scripted()
    ask(policy, 1, (0, 1))
    drawn = {params.temperature: (params.top_p, params.top_k, params.min_p) for _, params in policy.requests}
    assert drawn == {0.0: (1.0, 0, 0.0), 0.7: (0.9, 5, 0.1)}


def test_pitfall_38_a_known_record_of_another_gold_is_asked_again(tmp_path: Path) -> None:
    first = ask(scripted(), 3, (0,))
    with RecordFile(tmp_path / "F.jsonl", {""}) as file:
        for one in [first[0], replace(first[1], expected="no digit")]:
            file.add(one)
        policy = scripted()
        found = ask(policy, 3, (0,), Session(file=file))
        assert len(policy.requests) == 2
        assert list(file.known("").values()) == list(found)
    assert found[0] is first[0]
    assert [one.expected for one in found] == [one.expected for one in first]


def test_pitfall_26_an_accuracy_needs_a_greedy_answer() -> None:
    greedy = replace(record("e0", False), failure="timed out")
    samples = [record("e0", True, sample=number) for number in range(1, 10)]  # a tenth failed, fewer than the limit
    with pytest.raises(UserError, match="failed on 1 of 10 completions"):
        check_failures("rpn", [greedy, *samples])
    check_failures("rpn", [replace(greedy, failure=None), *samples])
