"""A file is whole or absent; a failure is a sentence."""

from pathlib import Path

import pytest

from rlvr.errors import UserError
from rlvr.records.files import write_atomically, writing


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_atomically(path, b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_parent_that_is_a_file_gives_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match=r"^Cannot write .*file.*: Not a directory; choose another folder"):
        write_atomically(tmp_path / "file" / "a.txt", b"")


def test_an_error_of_a_rust_library_is_understood() -> None:
    with (
        pytest.raises(UserError, match=r"Cannot write here: the disk is full; free some space\."),
        writing(Path("here")),
    ):
        raise Exception("I/O error: No space left on device (os error 28)")
