import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from rlvr.errors import UserError
from rlvr.evaluation.collect import MAX_PLAN_BYTES, collect
from rlvr.records.graded import EvaluationRecord, GradedTurn
from rlvr.records.jsonl import to_json
from tests.unit.evaluation.records import greedy


def write(path: Path, records: Sequence[EvaluationRecord], *more: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in [*map(to_json, records), *more]))
    return path


def test_all_records_under_a_folder_are_found_and_nothing_else(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", greedy([1, 0]))
    write(tmp_path / "deep" / "er" / "b.jsonl", greedy([1], model="b"))
    write(tmp_path / "c.jsonl.partial", greedy([1, 1, 1], model="c"))
    write(tmp_path / ".hidden" / "d.jsonl", greedy([1], model="d"))
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n')
    (tmp_path / "notes.txt").write_text("no records")
    found = collect([tmp_path])
    assert [record.model for record in found.records] == ["a", "a", "c", "c", "c", "b"]
    partial = tmp_path / "c.jsonl.partial"
    assert found.notes == (f"{partial} is of an unfinished evaluation: short episodes are over-represented.",)


def test_token_ids_are_read_unless_they_are_not_wanted(tmp_path: Path) -> None:
    turn = GradedTurn(completion="7", token_ids=(7, 2), logprobs=(-0.5, -0.25))
    path = write(tmp_path / "a.jsonl", greedy([1], turns=(turn,)))
    assert [record.turns for record in collect([path]).records] == [(turn,)]
    assert [record.turns for record in collect([path], tokens=False).records] == [(GradedTurn(completion="7"),)]


def test_pitfall_38_damaged_lines_are_named_and_the_rest_used(tmp_path: Path) -> None:
    torn = to_json(greedy([1])[0])[:50]
    write(tmp_path / "a.jsonl", greedy([1, 0]), torn, "[]", "{}", "null", '{"model": 3}')
    (tmp_path / "b.jsonl").write_bytes(b"\xff\x00\xfe" * 100)
    (tmp_path / "c.jsonl").write_text("")
    found = collect([tmp_path])
    assert len(found.records) == 2
    assert [path.name for path in found.files] == ["a.jsonl"]
    assert found.notes[0].startswith(f"{tmp_path / 'a.jsonl'}, line 3, is damaged")
    assert found.notes[3] == "2 more lines or files are damaged and left out."
    left_out = [
        f"{tmp_path / name} holds no record of an evaluation and is left out." for name in ("b.jsonl", "c.jsonl")
    ]
    assert list(found.notes[4:]) == left_out


def test_a_folder_without_records_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no record of an evaluation; write some with `rlvr eval MODEL --output"):
        collect([tmp_path])
    (tmp_path / "b.jsonl").write_text("nonsense\n")
    with pytest.raises(UserError, match=r"no record .* \(.*b.jsonl holds no record"):
        collect([tmp_path])
    with pytest.raises(UserError, match=r"there is no file or folder .*c.jsonl"):
        collect([tmp_path / "c.jsonl"])


def plan(folder: Path, *cells: dict[str, str]) -> None:
    (folder / "benchmark.json").write_text(json.dumps({"cells": cells}))


def cell(file: str, model: str, task: str, own_task: str = "rpn") -> dict[str, str]:
    return {"file": file, "model": model, "task": task, "own_task": own_task, "retriever": "-"}


def test_a_benchmark_names_models_and_tasks_as_its_plan_does(tmp_path: Path) -> None:
    write(tmp_path / "records" / "x.jsonl", greedy([1], model="runs/a/final"))
    write(tmp_path / "records" / "b.jsonl.partial", greedy([1]))
    write(tmp_path / "records" / "mix.jsonl", greedy([1], task="gsm8k"))
    cells = [cell("records/x.jsonl", "runs/a", "rpn_small"), cell("records/mix.jsonl", "a", "my_mix", "mix")]
    plan(tmp_path, *cells, cell("records/b.jsonl", "a", "rpn"), cell("records/missing.jsonl", "a", "rpn"))
    found = [(record.model, record.task) for record in collect([tmp_path]).records]
    assert found == [("runs/a", "rpn_small"), ("a", "my_mix/gsm8k"), ("a", "rpn")]


def test_a_plan_cannot_name_files_outside_its_folder(tmp_path: Path) -> None:
    write(tmp_path / "secret.jsonl", greedy([1], model="secret"))
    write(tmp_path / "bench" / "a.jsonl", greedy([1]))
    plan(tmp_path / "bench", cell("../secret.jsonl", "a", "rpn"), cell(str(tmp_path / "secret.jsonl"), "a", "rpn"))
    assert [record.model for record in collect([tmp_path / "bench"]).records] == ["a"]


@pytest.mark.parametrize("too_long", [False, True])
def test_a_plan_is_read_up_to_its_limit(tmp_path: Path, too_long: bool) -> None:
    write(tmp_path / "a.jsonl", greedy([1]))
    plan(tmp_path, {"file": "a.jsonl", "model": "named", "task": "t", "own_task": "rpn"})
    text = (tmp_path / "benchmark.json").read_text()
    (tmp_path / "benchmark.json").write_text(" " * (MAX_PLAN_BYTES - len(text) + too_long) + text)
    found = collect([tmp_path])
    assert [record.model == "named" for record in found.records] == [not too_long]
    assert len(found.notes) == too_long
