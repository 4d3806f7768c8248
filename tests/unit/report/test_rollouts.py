import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE

from rlvr.records.rollouts import CallRecord, EpisodeRecord, episode_from, rollouts_path, write_rollouts
from rlvr.report.rollouts import PackedRollouts, pack_rollouts, quotas, rollout_files, spread, token_texts
from rlvr.types import TraceStep
from tests.unit.report.runs import episode, save_tokenizer


def packed(folder: Path, files: dict[int, list[EpisodeRecord]], limit: int = 1000) -> PackedRollouts:
    for step, records in files.items():
        write_rollouts(rollouts_path(folder, step), records)
    return pack_rollouts(rollout_files(folder, 0), limit)


def data(found: PackedRollouts, name: str) -> Any:
    return json.loads(gzip.decompress(found.chunks[name]))


def with_row(**changes: Any) -> EpisodeRecord:
    one = episode()
    return dataclasses.replace(one, rows=[dataclasses.replace(one.rows[0], **changes)])


def test_the_index_and_the_texts_say_what_the_file_says(tmp_path: Path) -> None:
    records = [
        episode(sample=0, reply="<tool> x </tool>", reward=0.25, advantage=-1.5, stop="length"),
        episode(sample=1, reward=None, status="error", example="other", prompt="<q> 4 4 + ="),
    ]
    found = packed(tmp_path, {7: records})
    index = data(found, "index")
    assert index["files"] == [{"run": 0, "step": 7}]
    columns = index["columns"]
    assert {name: values[0] for name, values in columns.items()} == {
        "file": 0, "example": 0, "answer": 0, "group": 0, "sample": 0, "reward": 0.25, "advantage": -1.5,
        "tokens": 4, "turns": 2, "stop": 0, "status": 0,
    }  # fmt: skip
    assert columns["reward"][1] is None
    assert (index["names"]["status"], index["names"]["stop"]) == (["scored", "error"], ["length", "stop"])
    texts = data(found, "text-0")
    assert texts["prompts"] == ["<q> 3 4 + =", "<q> 4 4 + ="]
    assert texts["episodes"] == [[0, ["7 <eoe>", "<tool> x </tool>", "7 <eoe>", None]], [1, ["7 <eoe>", None]]]


def test_a_detail_has_calls_trace_parts_and_tokens(tmp_path: Path) -> None:
    call = CallRecord(name="search", arguments={"q": ["</script>"]}, problem=None)
    step = TraceStep(kind="document", text="Oslo", ok=True, id="d1", turn=0)
    (detail,) = data(packed(tmp_path, {1: [episode(calls=[call], trace=[step])]}), "detail-0")
    calls = [{"name": "search", "arguments": {"q": ["</script>"]}, "problem": None}]
    assert detail["turns"] == [{"stop": "stop", "version": 3, "calls": calls}]
    assert detail["trace"] == [{"kind": "document", "text": "Oslo", "ok": True, "id": "d1", "turn": 0}]
    assert detail["parts"] == {"boxed": 1, "correct": 1}
    assert detail["seed"] == str(2**62 + 1)  # JavaScript would round the number
    (row,) = detail["rows"]
    logprobs = {"behavior": [-2500, -1250], "trainer": [0, -1000]}
    assert row == {"ids": [0, 1, 2, 3, 4, 5, 6], "runs": [5, 2], **logprobs, "advantages": 0.5}


def test_pitfall_21_a_ratio_near_one_is_not_rounded_to_one(tmp_path: Path) -> None:
    one = episode(behavior=(-7.65432, -0.25), trainer=(-7.65434, -0.25))
    (detail,) = data(packed(tmp_path, {1: [one]}), "detail-0")
    assert detail["rows"][0]["trainer"] == [-20, 0]  # exp(-0.00002): both logprobs rounded alone would give 1


def test_pitfall_24_versions_are_a_list_where_they_differ(tmp_path: Path) -> None:
    records = [episode(versions=(3, 3)), episode(versions=(3, 4)), episode()]
    rows = [one["rows"][0] for one in data(packed(tmp_path, {1: records}), "detail-0")]
    assert [row.get("versions") for row in rows] == [3, [3, 4], None]


def test_pitfall_05_masks_come_back_as_they_were(tmp_path: Path) -> None:
    masks = [[0, 1, 1, 0, 0, 1, 0], [1, 0, 0, 0, 0, 0, 1], [0] * 7, [1] * 7]
    details = data(packed(tmp_path, {1: [with_row(loss_mask=mask) for mask in masks]}), "detail-0")
    rows = [one["rows"][0] for one in details]
    assert [[place % 2 for place, length in enumerate(row["runs"]) for _ in range(length)] for row in rows] == masks
    assert [len(row["behavior"]) for row in rows] == [3, 2, 0, 7]


def test_episodes_find_their_chunk(tmp_path: Path) -> None:
    row = dataclasses.asdict(episode().rows[0])
    long = with_row(**{name: values and values * 1500 for name, values in row.items()})
    found = packed(tmp_path, {1: [long] * 5})
    index = data(found, "index")
    assert index["details"] == [0, 2, 4]  # 10,500 tokens each
    assert [len(data(found, f"detail-{number}")) for number in range(3)] == [2, 2, 1]
    assert index["texts"] == [0]


def test_quotas_take_small_files_whole_and_the_others_equally() -> None:
    assert (quotas([2, 9, 9], 10), quotas([9, 2, 9], 100)) == ([2, 4, 4], [9, 2, 9])
    assert (quotas([5, 5, 5], 4), quotas([], 4)) == ([2, 1, 1], [])
    assert (spread(8, 4), spread(3, 3), spread(7, 0)) == ([0, 2, 4, 6], [0, 1, 2], [])


def test_pitfall_38_a_sample_has_every_step(tmp_path: Path) -> None:
    files = {step: [episode(group=group, example=f"{step} {group}") for group in range(20)] for step in (1, 10, 20)}
    found = packed(tmp_path, files, limit=10)
    assert (found.kept, found.total) == (10, 60)
    columns = data(found, "index")["columns"]
    assert [columns["file"].count(number) for number in range(3)] == [4, 3, 3]
    assert columns["group"][:4] == [0, 5, 10, 15]
    assert pack_rollouts(rollout_files(tmp_path, 0), 10).chunks == found.chunks


def test_pitfall_37_damage_is_named_and_the_rest_is_used(tmp_path: Path) -> None:
    packed(tmp_path, {step: [episode(example=str(step))] * 2 for step in (1, 2, 3)})
    whole = rollouts_path(tmp_path, 1).read_bytes()
    rollouts_path(tmp_path, 1).write_bytes(whole[:-30])
    lines = gzip.decompress(rollouts_path(tmp_path, 2).read_bytes()).splitlines(keepends=True)
    rollouts_path(tmp_path, 2).write_bytes(gzip.compress(b'{"example_id": 3}\n' + lines[0]))
    rollouts_path(tmp_path, 4).write_bytes(b"not gzip")
    found = pack_rollouts(rollout_files(tmp_path, 0), 100)
    index = data(found, "index")
    assert [index["files"][number]["step"] for number in index["columns"]["file"]] == [2, 3, 3]
    named = ("1.jsonl.gz is", "4.jsonl.gz is", "2.jsonl.gz, line 1, is")
    for note, name in zip(found.notes, named, strict=True):
        assert f"step_00000{name} damaged" in note


def test_many_damaged_lines_are_counted(tmp_path: Path) -> None:
    rollouts_path(tmp_path, 1).write_bytes(gzip.compress(b"{}\n" * 50))
    found = pack_rollouts(rollout_files(tmp_path, 0), 100)
    assert (found.kept, len(found.notes)) == (0, 6)


def line_with(**changes: Any) -> bytes:
    return json.dumps(dataclasses.asdict(episode()) | changes).encode()


@pytest.mark.parametrize(
    "changes",
    [
        {"turns": []},
        {"reward": "high"},
        {"turns": [{"prompt": {"a": 1}}]},
        {"rows": [dataclasses.asdict(episode().rows[0]) | {"advantages": [0.5]}]},
        {"rows": [dataclasses.asdict(episode().rows[0]) | {"ids": ["<img>"] * 7}]},
        {"trace": [{"kind": "step"}]},
    ],
)
def test_records_of_the_wrong_shape_are_refused_in_a_sentence(changes: dict[str, Any]) -> None:
    assert episode_from(line_with()) == episode()
    with pytest.raises(ValueError, match=r".{5,200}") as error:
        episode_from(line_with(**changes))
    assert "\n" not in str(error.value)


def test_tokens_have_the_texts_of_the_tokenizer(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    found = token_texts(tmp_path, {1, 6, 99, -1, 2**40})[0]
    assert found == {1: "3", 6: "<eoe>", 99: "", -1: "", 2**40: ""}


def test_parts_of_a_character_are_shown_as_in_the_vocabulary(tmp_path: Path) -> None:
    tokenizer = Tokenizer(BPE({"Ġa": 0, "Ã": 1, "▁b": 2}, []))
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert token_texts(tmp_path, {0, 1})[0] == {0: " a", 1: "Ã"}
    tokenizer.decoder = decoders.Metaspace()  # type: ignore[assignment]
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert token_texts(tmp_path, {2})[0] == {2: " b"}
