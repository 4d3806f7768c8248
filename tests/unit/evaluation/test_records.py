from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from rlvr.errors import UserError
from rlvr.evaluation.records import RecordFile
from rlvr.records.graded import EvaluationRecord, read_records
from rlvr.records.jsonl import to_line
from tests.unit.evaluation.records import record


def records(names: Sequence[str]) -> list[EvaluationRecord]:
    return [record(name, False, settings="s") for name in names]


def finish(path: Path, done: Sequence[EvaluationRecord]) -> None:
    with RecordFile(path, {"s"}) as file:
        file.finish(done)


def known(path: Path) -> set[tuple[str, int]]:
    with RecordFile(path, {"s"}) as file:
        return set(file.known("s"))


def kept(path: Path) -> list[str]:
    return [one.example_id for one in read_records(path)[0]]


def test_records_are_there_as_they_come_and_in_order_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "new" / "F.jsonl"
    a, b, c = records("abc")
    with RecordFile(path, {"s"}) as file:
        file.add(b)
        assert kept(path.with_name("F.jsonl.partial")) == ["b"]
        file.add(a)
    with RecordFile(path, {"s"}) as again:  # the first was killed
        assert again.known("s") == {("a", 0): a, ("b", 0): b}
        assert again.known("other") == {}
        again.add(c)
        again.finish([a, b, c])
    assert kept(path) == ["a", "b", "c"]
    assert [file.name for file in path.parent.iterdir()] == ["F.jsonl"]


def test_a_finished_file_is_used_and_the_rest_of_it_stays(tmp_path: Path) -> None:
    path = tmp_path / "F.jsonl"
    a, b, c = records("abc")
    finish(path, [a, b])
    with RecordFile(path, {"s"}) as more:
        assert set(more.known("s")) == {("a", 0), ("b", 0)}
        more.add(c)
        more.finish([c])
    assert kept(path) == ["c", "a", "b"]


TORN = [b'{"example_id": "b', b"\xff\xfe\n", b'{"example_id": "b"}\n', b"[" * 100_000 + b"\n"]


@pytest.mark.parametrize("torn", TORN, ids=["half", "no text", "no record", "deep"])
def test_pitfall_37_damaged_lines_are_named_and_left_out(tmp_path: Path, torn: bytes) -> None:
    path, partial = tmp_path / "F.jsonl", tmp_path / "F.jsonl.partial"
    a, b, c = records("abc")
    partial.write_bytes(to_line(a) + torn)
    with RecordFile(path, {"s"}) as file:
        assert len(file.problems) == 1
        assert f"{partial}, line 2, is damaged" in file.problems[0]
        assert file.problems[0].isprintable()
        file.add(b)
        assert kept(partial) == ["a", "b"]
        file.finish([a, b, c])
    assert read_records(path) == ([a, b, c], [])


def test_pitfall_38_records_of_other_settings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "F.jsonl"
    finish(path, records("ab"))
    before = path.read_bytes()
    with pytest.raises(UserError, match=r"F.jsonl holds records of other settings.*name another --output"):
        RecordFile(path, {"other"})
    (partial := tmp_path / "G.jsonl.partial").write_bytes(before)
    with pytest.raises(UserError, match="other settings"):
        RecordFile(tmp_path / "G.jsonl", {"other"})
    assert path.read_bytes() == partial.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == [path, partial]


def test_a_file_that_holds_no_records_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes\n")
    with pytest.raises(UserError, match=r"notes.txt is there and holds no records of an evaluation"):
        RecordFile(path, {"s"})
    assert path.read_text() == "my notes\n"
    path.write_text("")
    assert known(path) == set()  # as `touch` or `mktemp` made it


def test_pitfall_26_a_failure_stays_one_until_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "F.jsonl"
    a, b, c = records("abc")
    finish(path, [a, replace(b, failure="timed out"), replace(c, failure="timed out")])
    assert known(path) == {("a", 0)}
    finish(path, [a, b])  # a call with fewer examples
    found = [(one.example_id, one.failure) for one in read_records(path)[0]]
    assert found == [("a", None), ("b", None), ("c", "timed out")]


def test_pitfall_37_two_processes_do_not_write_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "F.jsonl"
    with RecordFile(path, {"s"}) as file:
        with pytest.raises(UserError, match=r"F.jsonl is being written by another process: wait for it"):
            RecordFile(path, {"s"})
        file.add(records("a")[0])
    assert known(path) == {("a", 0)}  # the lock ends with the file


def test_the_file_behind_a_link_is_written(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "F.jsonl"
    link.symlink_to(tmp_path / "real" / "G.jsonl")
    with RecordFile(link, {"s"}) as file:
        file.add(records("a")[0])
        file.finish(records("a"))
    assert link.is_symlink()
    assert kept(tmp_path / "real" / "G.jsonl") == ["a"]


def test_a_partial_file_that_someone_has_deleted_costs_no_record(tmp_path: Path) -> None:
    path = tmp_path / "F.jsonl"
    a, b = records("ab")
    with RecordFile(path, {"s"}) as file:
        file.add(a)
        file.partial.unlink()
        file.finish([a, b])
    assert kept(path) == ["a", "b"]


def test_the_folders_of_a_file_are_made(tmp_path: Path) -> None:
    path = tmp_path / "of" / "a" / "model" / "rpn.jsonl"
    with RecordFile(path, {"s"}):
        assert path.parent.is_dir()
