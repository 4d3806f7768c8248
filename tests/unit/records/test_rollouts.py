"""Rollout files have everything the trainer saw."""

import dataclasses
import gzip
import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rlvr.core.batch import to_batch
from rlvr.errors import UserError
from rlvr.records.rollouts import (
    CallRecord,
    EpisodeRecord,
    RowRecord,
    TurnRecord,
    cut_back,
    make_records,
    read_rollouts,
    reply_ids,
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
    Turn,
    TurnText,
)

DOCS = Path(__file__).parents[3] / "docs" / "rollouts.md"


def turn(prompt: tuple[int, ...], *sampled: int, **changes: Any) -> Turn:
    numbers = (-0.5,) * len(sampled)
    done = Completion(
        token_ids=sampled,
        behavior_logprobs=numbers,
        sampling_logprobs=numbers,
        stop_reason=StopReason.STOP if sampled[-1] == 9 else StopReason.LENGTH,
        policy_version=0,
    )
    return Turn(prompt_ids=prompt, completion=replace(done, **changes))


def decode(ids: Sequence[int]) -> str:
    return " ".join(f"w{i}" for i in ids)


def text(turn: Turn) -> TurnText:
    """Token 5 calls a tool, 6 fails to."""
    nested: list[Any] = []
    for _ in range(40):
        nested = [nested]
    good = ToolCall(id="call_0", name="search", arguments={"query": "w5", "weights": [math.nan, 2.0], "deep": nested})
    bad = ToolCall(id="call_0", name="", arguments={}, problem="no JSON")
    ids = turn.completion.token_ids
    said = decode(ids)
    return TurnText(
        prompt=decode(turn.prompt_ids),
        completion=said,
        text=said,
        stop_reason=turn.completion.stop_reason,
        num_tokens=len(ids),
        calls=(good,) * (5 in ids) + (bad,) * (6 in ids),
    )


def episode(sample: int, score: Score, *turns: Turn) -> Episode:
    """One turn of two tokens by default."""
    logprobs = {"behavior_logprobs": (-0.3, -0.1), "sampling_logprobs": (-0.25, -math.inf)}
    turns = turns or (turn((1, 7), 5, 9, policy_version=4, **logprobs),)
    last = turns[-1].completion.stop_reason
    about = {"example_id": "e", "sample_index": sample, "seed": 100 + sample, "score": score, "stop_reason": last}
    return Episode(turns=turns, texts=tuple(map(text, turns)), **about)


EXAMPLE = Example(id="e", messages=(Message(role="user", content="p"),), answer="7")
FIRST = episode(0, Score(value=0.5, parts={"correct": 1.0}, diagnostics={"note": "x"}))
SECOND = episode(1, Score(value=math.nan, status="error"))
GROUP = Group(example=EXAMPLE, episodes=(FIRST, SECOND))


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
        columns={"old_logprobs": torch.where(mask, -0.2, 0.0)},
        advantages=torch.where(mask, 0.7, 0.0),
    )


def test_a_record_has_sampled_and_trained_tokens() -> None:
    first, second = make_records([GROUP], batch(), decode)
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
    records = make_records([GROUP], batch().with_columns(old_logprobs=logprobs), decode)
    for record, expected in zip(records, logprobs, strict=True):
        assert torch.equal(torch.tensor(record.rows[0].trainer_logprobs), expected[:4])


def several_rows() -> list[EpisodeRecord]:
    """Two episodes: two turns that share a row and a third that starts over; one turn."""
    turns = turn((1, 7), 5, 9), turn((1, 7, 5, 9, 2, 3), 6, 9), turn((1, 7, 8), 4)
    made = Group(example=EXAMPLE, episodes=(episode(0, Score(value=1.0), *turns), episode(1, Score(value=0.0))))
    trained = to_batch([made])
    advantages = torch.where(trained.loss_mask, torch.tensor([[0.5], [0.5], [-0.5]]), 0.0)
    return make_records([made], replace(trained, advantages=advantages), decode)


def test_pitfall_07_every_row_of_an_episode_is_recorded() -> None:
    first, second = several_rows()
    assert [row.ids for row in first.rows] == [[1, 7, 5, 9, 2, 3, 6, 9], [1, 7, 8, 4]]
    assert [row.loss_mask for row in first.rows] == [[0, 0, 1, 1, 0, 0, 1, 1], [0, 0, 0, 1]]
    assert [row.ids for row in second.rows] == [[1, 7, 5, 9]]
    assert (first.advantage, second.advantage) == (0.5, -0.5)
    assert first.turns[0].reply == "w2 w3"
    assert first.turns[1].reply == "w8"  # from the first token that is another one
    assert first.turns[2].reply is None


def test_pitfall_06_tool_calls_are_recorded_as_plain_json(tmp_path: Path) -> None:
    write_rollouts(tmp_path / "r.jsonl.gz", several_rows())
    [first, _] = read_rollouts(tmp_path / "r.jsonl.gz")
    [good], [bad], none = (turn.calls for turn in first.turns)
    assert (good.name, good.arguments["query"], good.arguments["weights"]) == ("search", "w5", [None, 2.0])
    assert str(good.arguments["deep"]).count("[") < 40
    assert (bad.problem, none) == ("no JSON", ())


def test_written_records_are_read_back_and_valid_json(tmp_path: Path) -> None:
    path = rollouts_path(tmp_path / "rollouts", 10)
    records = make_records([GROUP], batch(), decode)
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


@pytest.mark.parametrize("damage", [lambda b: b[:-9], lambda b: b[:30] + b"\x00" + b[31:], lambda b: b"text"])
def test_a_damaged_file_is_a_sentence(tmp_path: Path, damage) -> None:
    path = tmp_path / "r.jsonl.gz"
    write_rollouts(path, make_records([GROUP], batch(), decode))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match=r"r\.jsonl\.gz is damaged or not a rollout file"):
        read_rollouts(path)
    path.write_bytes(b"")
    assert read_rollouts(path) == []


@pytest.mark.parametrize(
    ("title", "record"), [("Episode", EpisodeRecord), ("Turn", TurnRecord), ("Call", CallRecord), ("Row", RowRecord)]
)
def test_the_documentation_lists_exactly_the_fields(title: str, record: type) -> None:
    section = DOCS.read_text().split(f"## {title}\n")[1].split("\n## ")[0]
    named = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert sorted(named) == sorted(field.name for field in dataclasses.fields(record))


def test_pitfall_24_each_token_has_the_version_that_sampled_it(tmp_path: Path) -> None:
    # new weights came between the two tokens of the first completion, and before a second turn
    changed = turn((1, 7), 5, 9, policy_version=4, version_changes=((1, 6),))
    later = turn((1, 7, 5, 9, 8), 5, 9, policy_version=7)
    both = Group(example=EXAMPLE, episodes=(episode(0, FIRST.score, changed, later), SECOND))
    path = rollouts_path(tmp_path, 8)
    write_rollouts(path, make_records([both], to_batch([both]), decode))
    found = read_rollouts(path)
    assert [record.rows[0].policy_versions for record in found] == [[-1, -1, 4, 6, -1, 7, 7], [-1, -1, 4, 4]]
    assert [turn.policy_version for turn in found[0].turns] == [4, 7]
    assert [record.policy_version for record in found] == [4, 4]


def test_a_file_without_token_versions_is_read(tmp_path: Path) -> None:
    path = rollouts_path(tmp_path, 1)
    write_rollouts(path, make_records([GROUP], batch(), decode))
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    for line in lines:
        del line["rows"][0]["policy_versions"]
    path.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))
    assert read_rollouts(path)[0].rows[0].policy_versions is None


def test_a_next_prompt_cut_short_has_no_reply() -> None:
    assert reply_ids(turn((1, 7), 5, 9), turn((1, 7, 5), 4)) == ()


def test_a_turn_that_restarts_is_shown_whole_also_if_it_begins_as_the_prompt_before() -> None:
    assert reply_ids(turn((1, 7), 5, 9), replace(turn((1, 8), 4), restarts=True)) == (1, 8)
    assert reply_ids(turn((1, 7), 5, 9), turn((1, 8), 4)) == (8,)  # a template that rewrote history
