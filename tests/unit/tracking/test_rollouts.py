"""Rollout files: everything the trainer saw, in bytes that depend on nothing else."""

import dataclasses
import gzip
import json
import math
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from rlvr.core.batch import to_batch
from rlvr.errors import UserError
from rlvr.tracking.rollouts import (
    CallRecord,
    EpisodeRecord,
    Reader,
    RowRecord,
    TurnRecord,
    cut_back,
    make_records,
    read_rollouts,
    rollouts_path,
    write_rollouts,
)
from rlvr.types import (
    Completion,
    Episode,
    Example,
    Group,
    Message,
    Score,
    StopReason,
    TokenBatch,
    ToolCall,
    ToolSchema,
    Turn,
)

DOCS = Path(__file__).parents[3] / "docs" / "rollouts.md"


def episode(sample: int, score: Score) -> Episode:
    completion = Completion(
        token_ids=(5, 9),
        behavior_logprobs=(-0.3, -0.1),
        sampling_logprobs=(-0.25, -math.inf),
        stop_reason=StopReason.STOP,
        policy_version=4,
    )
    return Episode(
        example_id="e",
        sample_index=sample,
        seed=100 + sample,
        turns=(Turn(prompt_ids=(1, 7), completion=completion),),
        score=score,
        stop_reason=StopReason.STOP,
    )


def group() -> Group:
    scores = [
        Score(value=0.5, parts={"correct": 1.0}, diagnostics={"note": "x"}),
        Score(value=math.nan, status="error"),
    ]
    example = Example(id="e", messages=(Message(role="user", content="p"),), answer="7")
    return Group(example=example, episodes=tuple(episode(i, score) for i, score in enumerate(scores)))


def batch(rows: int = 2) -> TokenBatch:
    """Rows of 4 tokens and 2 of padding."""
    mask = torch.tensor([[0, 0, 1, 1, 0, 0]], dtype=torch.bool).expand(rows, 6)
    return TokenBatch(
        ids=torch.tensor([[1, 7, 5, 9, 0, 0]]).expand(rows, 6),
        lengths=torch.full((rows,), 4),
        prompt_lengths=torch.full((rows,), 2),
        loss_mask=mask,
        behavior_logprobs=torch.where(mask, -0.3, 0.0),
        rewards=torch.zeros(rows),
        groups=torch.zeros(rows, dtype=torch.int64),
        episodes=torch.arange(rows),
        valid=torch.ones(rows, dtype=torch.bool),
        truncated=torch.zeros(rows, dtype=torch.bool),
        old_logprobs=torch.where(mask, -0.2, 0.0),
        advantages=torch.where(mask, 0.7, 0.0),
    )


def decode(ids: Sequence[int]) -> str:
    return " ".join(f"w{i}" for i in ids)


def parse(ids: Sequence[int], stop_reason: StopReason, tools: Sequence[ToolSchema]) -> Message:
    """Token 5 calls a tool, 6 fails to."""
    nested: list[Any] = []
    for _ in range(40):
        nested = [nested]
    good = ToolCall(id="call_0", name="search", arguments={"query": "w5", "weights": [math.nan, 2.0], "deep": nested})
    bad = ToolCall(id="call_0", name="", arguments={}, problem="no JSON")
    calls = ((good,) * (5 in ids) + (bad,) * (6 in ids)) if tools == ({"name": "tool of e"},) else ()
    return Message(role="assistant", content=decode(ids), tool_calls=calls)


READER = Reader(decode=decode, parse=parse, tools=lambda example: ({"name": f"tool of {example.id}"},))


def test_a_record_holds_what_was_sampled_and_what_was_trained_on() -> None:
    first, second = make_records([group()], batch(), READER)
    [row], [turn] = first.rows, first.turns
    assert row.ids == [1, 7, 5, 9]
    assert row.loss_mask == [0, 0, 1, 1]
    assert row.behavior_logprobs == [0.0, 0.0, -0.3, -0.3]
    assert row.trainer_logprobs == [0.0, 0.0, -0.2, -0.2]
    assert row.reference_logprobs is None
    assert first.advantage == pytest.approx(0.7)
    assert (turn.prompt, turn.completion, turn.reply) == ("w1 w7", "w5 w9", None)
    assert turn.sampling_logprobs == [-0.25, None]
    assert (first.policy_version, first.stop_reason, first.reward_parts) == (4, "stop", {"correct": 1.0})
    assert (second.reward, second.score_status, second.seed) == (None, "error", 101)


def test_numbers_of_the_trainer_are_the_same_float32_bits() -> None:
    generator = torch.Generator().manual_seed(0)
    logprobs = torch.randn(2, 6, generator=generator) * 10.0 ** torch.randint(-30, 30, (2, 6), generator=generator)
    records = make_records([group()], dataclasses.replace(batch(), old_logprobs=logprobs), READER)
    for record, expected in zip(records, logprobs, strict=True):
        assert torch.equal(torch.tensor(record.rows[0].trainer_logprobs), expected[:4])


def turn(prompt: tuple[int, ...], *sampled: int) -> Turn:
    numbers = (-0.5,) * len(sampled)
    stopped = StopReason.STOP if sampled[-1] == 9 else StopReason.LENGTH
    return Turn(
        prompt_ids=prompt,
        completion=Completion(
            token_ids=sampled,
            behavior_logprobs=numbers,
            sampling_logprobs=numbers,
            stop_reason=stopped,
            policy_version=0,
        ),
    )


def several_rows() -> tuple[Group, TokenBatch]:
    """Two episodes: two turns that share a row and a third that starts over; one turn."""
    turns = (turn((1, 7), 5, 9), turn((1, 7, 5, 9, 2, 3), 6, 9), turn((1, 7, 8), 4))
    first = dataclasses.replace(episode(0, Score(value=1.0)), turns=turns, stop_reason=StopReason.LENGTH)
    made = Group(example=group().example, episodes=(first, episode(1, Score(value=0.0))))
    trained = to_batch([made])
    advantages = torch.where(trained.loss_mask, torch.tensor([[0.5], [0.5], [-0.5]]), 0.0)
    return made, dataclasses.replace(trained, advantages=advantages)


def test_pitfall_07_every_row_of_an_episode_whose_template_rewrote_history_is_recorded() -> None:
    made, trained = several_rows()
    first, second = make_records([made], trained, READER)
    assert [row.ids for row in first.rows] == [[1, 7, 5, 9, 2, 3, 6, 9], [1, 7, 8, 4]]
    assert [row.loss_mask for row in first.rows] == [[0, 0, 1, 1, 0, 0, 1, 1], [0, 0, 0, 1]]
    assert [row.ids for row in second.rows] == [[1, 7, 5, 9]]
    assert (first.advantage, second.advantage) == (0.5, -0.5)
    assert first.turns[0].reply == "w2 w3"
    assert first.turns[1].reply == "w8"  # from the first token that is another one
    assert first.turns[2].reply is None


def test_pitfall_06_tool_calls_are_recorded_as_plain_json_whatever_their_arguments_are(tmp_path: Path) -> None:
    made, trained = several_rows()
    records = make_records([made], trained, READER)
    write_rollouts(tmp_path / "r.jsonl.gz", records)
    [first, _] = read_rollouts(tmp_path / "r.jsonl.gz")
    [good], [bad], none = (turn.calls for turn in first.turns)
    assert (good.name, good.arguments["query"], good.arguments["weights"]) == ("search", "w5", [None, 2.0])
    assert str(good.arguments["deep"]).count("[") < 40
    assert (bad.problem, none) == ("no JSON", ())


def test_what_is_written_is_read_back_and_valid_json(tmp_path: Path) -> None:
    path = rollouts_path(tmp_path / "rollouts", 10)
    records = make_records([group()], batch(), READER)
    write_rollouts(path, records)
    assert path.name == "step_000010.jsonl.gz"
    assert read_rollouts(path) == records
    for line in gzip.decompress(path.read_bytes()).decode().splitlines():
        json.loads(line, parse_constant=pytest.fail)


def test_pitfall_37_cut_back_removes_the_files_of_later_steps(tmp_path: Path) -> None:
    for step in (5, 10, 15):
        write_rollouts(rollouts_path(tmp_path, step), [])
    (tmp_path / ".step_000020.jsonl.gz.tmp-123").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("mine")
    cut_back(tmp_path, 10)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes.txt", "step_000005.jsonl.gz", "step_000010.jsonl.gz"]
    cut_back(tmp_path / "absent", 10)


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-9], lambda b: b[:30] + b"\x00" + b[31:], lambda b: b"text", lambda b: b""]
)
def test_a_damaged_file_is_a_sentence(tmp_path: Path, damage) -> None:
    path = tmp_path / "r.jsonl.gz"
    write_rollouts(path, make_records([group()], batch(), READER))
    path.write_bytes(damage(path.read_bytes()))
    if path.read_bytes():
        with pytest.raises(UserError, match=r"r\.jsonl\.gz is damaged or not a rollout file"):
            read_rollouts(path)
    else:
        assert read_rollouts(path) == []


@pytest.mark.parametrize(
    ("title", "record"), [("Episode", EpisodeRecord), ("Turn", TurnRecord), ("Call", CallRecord), ("Row", RowRecord)]
)
def test_the_documentation_lists_exactly_the_fields(title: str, record: type) -> None:
    section = DOCS.read_text().split(f"## {title}\n")[1].split("\n## ")[0]
    named = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert sorted(named) == sorted(field.name for field in dataclasses.fields(record))


def test_tracking_does_not_import_torch() -> None:
    code = (
        "import sys, rlvr.tracking.rollouts, rlvr.tracking.console, rlvr.tracking.jsonl; print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_pitfall_24_each_token_of_a_row_has_the_version_that_sampled_it(tmp_path: Path) -> None:
    """New weights came between the two tokens of the first completion, and before a second turn; an episode has the
    oldest version."""
    first, second = group().episodes
    (turn,) = first.turns
    changed = dataclasses.replace(turn.completion, version_changes=((1, 6),))
    later = dataclasses.replace(
        turn,
        prompt_ids=(*turn.prompt_ids, *turn.completion.token_ids, 8),
        completion=dataclasses.replace(turn.completion, policy_version=7),
    )
    mixed = dataclasses.replace(first, turns=(dataclasses.replace(turn, completion=changed), later))
    both = dataclasses.replace(group(), episodes=(mixed, second))
    path = rollouts_path(tmp_path, 8)
    write_rollouts(path, make_records([both], to_batch([both]), READER))
    found = read_rollouts(path)
    assert [record.rows[0].policy_versions for record in found] == [[-1, -1, 4, 6, -1, 7, 7], [-1, -1, 4, 4]]
    assert [turn.policy_version for turn in found[0].turns] == [4, 7]
    assert [record.policy_version for record in found] == [4, 4]


def test_a_file_from_before_there_were_versions_of_tokens_is_read(tmp_path: Path) -> None:
    path = rollouts_path(tmp_path, 1)
    write_rollouts(path, make_records([group()], batch(), READER))
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    for line in lines:
        del line["rows"][0]["policy_versions"]
    path.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))
    assert read_rollouts(path)[0].rows[0].policy_versions is None
