"""Records of graded episodes as lines, and damaged lines."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlvr.records.graded import SCHEMA, EvaluationRecord, GradedTurn, read_records
from rlvr.records.jsonl import from_line, to_json, to_line
from rlvr.records.rollouts import CallRecord
from rlvr.types import StopReason, TraceStep

RECORD = EvaluationRecord(
    model="runs/x/final",
    task="rpn",
    retriever="bm25",
    settings="3f2a",
    example_id="3 4 +",
    sample_index=2,
    prompt="<boe> 3 4 + =",
    turns=(
        GradedTurn(
            completion="look",
            token_ids=(4, 9),
            logprobs=(-0.5, -1e-7),
            calls=(CallRecord(name="look", arguments={"at": [1, None]}, problem=None),),
            reply="there",
        ),
        GradedTurn(completion="7 <eoe>"),
    ),
    expected="7",
    answer="7",
    correct=True,
    reward=0.5,
    stop_reason=StopReason.STOP,
    num_prompt_tokens=5,
    num_completion_tokens=4,
    tags=("1_operators",),
    parts={"correct": 1.0},
    diagnostics={"error": "none", "turns": 2.0},
    trace=(TraceStep(kind="step", text="7", ok=True),),
    time_s=0.25,
)


def test_a_record_is_a_line_and_back() -> None:
    assert from_line(SCHEMA, to_json(RECORD)) == RECORD
    assert from_line(SCHEMA, to_line(RECORD)) == RECORD


def test_missing_numbers_are_null_and_every_line_is_json() -> None:
    turn = replace(RECORD.turns[0], logprobs=(-0.5, -math.inf))
    failed = replace(RECORD, reward=math.nan, turns=(turn,), failure="timed out", diagnostics={"x": math.nan})
    line = to_json(failed)
    data = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert (data["reward"], data["diagnostics"]["x"], data["turns"][0]["logprobs"]) == (None, None, [-0.5, None])
    back = from_line(SCHEMA, line)
    assert math.isnan(back.reward)
    assert back.turns[0].logprobs[0] == -0.5
    assert math.isnan(back.turns[0].logprobs[1])


DATA = json.loads(to_json(RECORD))
BAD_LINES: dict[str, tuple[Any, str]] = {
    "a list": ([1], "^Input should be a dictionary"),
    "no turns": ({key: value for key, value in DATA.items() if key != "turns"}, "turns: Field required"),
    "turns are a text": (DATA | {"turns": "abc"}, "turns: "),
    "a turn is a number": (DATA | {"turns": [3]}, "turns.0: "),
    "ids are texts": (DATA | {"turns": [{"completion": "x", "token_ids": ["a"]}]}, "token_ids"),
    "correct is a list": (DATA | {"correct": []}, "correct: "),
    "an unknown stop reason": (DATA | {"stop_reason": "bored"}, "stop_reason: "),
    "a sample before the first": (DATA | {"sample_index": -1}, "sample_index: "),
    "too many tokens": (DATA | {"num_completion_tokens": 10**400}, "num_completion_to"),
    "reward is a text": (DATA | {"reward": "much"}, "reward: "),
}


@pytest.mark.parametrize(("data", "reason"), BAD_LINES.values(), ids=list(BAD_LINES))
def test_a_line_that_is_no_record_is_refused(data: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        from_line(SCHEMA, json.dumps(data))
    assert len(str(caught.value)) < 400


def test_undamaged_lines_are_read_damaged_ones_named(tmp_path: Path) -> None:
    path = tmp_path / "F.jsonl"
    other = replace(RECORD, example_id="other")
    path.write_bytes(to_line(RECORD) + b"\x1b[2J{\n\n" + to_line(other) + to_line(RECORD)[:-20])
    records, problems = read_records(path)
    assert records == [RECORD, other]
    assert [problem.partition(", is damaged")[0] for problem in problems] == [f"{path}, line 2", f"{path}, line 5"]
    assert all(problem.isprintable() for problem in problems)


def test_of_one_measurement_the_last_line_counts(tmp_path: Path) -> None:
    path = tmp_path / "F.jsonl"
    path.write_bytes(to_line(RECORD) + to_line(replace(RECORD, answer="8")))
    records, problems = read_records(path)
    assert [record.answer for record in records] == ["8"]
    assert problems == []


def test_pitfall_38_models_without_settings_stay_separate(tmp_path: Path) -> None:
    records = [replace(RECORD, model=model, task=task, settings="") for model in "ab" for task in ("rpn", "gsm8k")]
    (path := tmp_path / "F.jsonl").write_bytes(b"".join(map(to_line, records)))
    assert read_records(path) == (records, [])


DOCS = Path(__file__).parents[3] / "docs" / "evaluation.md"


@pytest.mark.parametrize(("title", "record"), [("## Records", EvaluationRecord), ("### Turn", GradedTurn)])
def test_the_documentation_lists_exactly_the_fields(title: str, record: type) -> None:
    section = DOCS.read_text().split(f"{title}\n")[1].split("\n##")[0]
    named = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert sorted(named) == sorted(field.name for field in dataclasses.fields(record))
