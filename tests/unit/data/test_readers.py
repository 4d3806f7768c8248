import gzip
import io
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from rlvr.data.readers import Split, split_names
from rlvr.data.rows import DataError, FilledText, Row, read_file
from rlvr.errors import ConfigError

ROWS = [{"question": "a?", "answer": "1"}, {"question": "b?", "answer": "2"}]
TABLE = io.BytesIO()
pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), TABLE)
PARQUET = TABLE.getvalue()
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
ZIPPED = gzip.compress(LINES, mtime=0)


def fields(path: Path) -> list[Any]:
    return [row.fields for row in read_file(path)]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("x.jsonl", LINES),
        ("x.jsonl.gz", ZIPPED),
        ("x.json", json.dumps(ROWS).encode()),
        ("x.json.gz", gzip.compress(json.dumps(ROWS).encode(), mtime=0)),
        ("x.json", json.dumps({"version": 1, "data": ROWS, "authors": ["me"]}).encode()),
        ("x.json", json.dumps({"version": 1, "questions": ROWS}).encode()),
        ("x.jsonl", b"\xef\xbb\xbf" + LINES.replace(b"\n", b"\r\n\r\n")),  # from Windows, with empty lines
        ("x.jsonl", LINES.strip()),  # no newline at the end
        ("x.csv", b"\xef\xbb\xbfquestion,answer\r\na?,1\r\n\r\nb?,2\r\n"),
        ("x.csv.gz", gzip.compress(b'"question","answer"\n"a?","1"\n"b?","2"', mtime=0)),
        ("x.parquet", PARQUET),
    ],
)
def test_every_kind_of_file_gives_its_rows_in_order(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    assert fields(tmp_path / name) == ROWS


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("x.jsonl", LINES + b'{"question": \n', "line 3: this is not JSON"),
        ("x.jsonl", LINES + b'{"question": "\xff"}\n', "line 3: this is not UTF-8 (byte 0xff)"),
        ("x.jsonl", LINES + b"[1, 2]\n", "line 3: a row must be a JSON object, but is a list of 2"),
        ("x.jsonl", b"[" * 100_000 + b"\n", "line 1: this is not JSON"),
        ("x.jsonl", b"", "is empty"),
        ("x.json", b"", "is empty"),
        ("x.json", b'{"data": []}', "is empty"),
        ("x.json", b'{"a": [], "b": []}', "must be a JSON list of objects, but is an object with the fields 'a', 'b'"),
        ("x.json", b'{"data": {}}', "must be a JSON list of objects, but is an object with the fields 'data'"),
        ("x.json", b'{"data": [{"a": 1}, 7]}', "x.json, data, row 2: a row must be a JSON object, but is the number 7"),
        ("x.json", b'[{"a": 1}, 7]', "row 2: a row must be a JSON object, but is the number 7"),
        ("x.jsonl.gz", ZIPPED[:-4] + b"\0\0\0\0", "line 2: the file is damaged from here on"),
        ("x.jsonl.gz", b"no gzip at all", "x.jsonl.gz: the file is damaged"),
        ("x.csv", b"a,b\n1,2\n1\n", "line 3: has not 2 fields, as the first line has"),
        ("x.csv", b'a,b\n1,"2\n', "the file is damaged"),
        ("x.csv", b"a\n\xff\n", "x.csv: this is not UTF-8 (byte 0xff); convert the file, e.g. iconv -f UTF-16"),
        ("x.csv", b"a\n\xe4\n", "this is not UTF-8 (byte 0xe4); convert the file, e.g. iconv -f LATIN1"),
        ("x.csv", b"a,b\n", "is empty"),
        ("x.parquet", PARQUET[:-20], "the file is damaged"),
    ],
)
def test_a_damaged_file_names_file_and_place(tmp_path: Path, name: str, data: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError) as error:
        fields(tmp_path / name)
    assert said in str(error.value)
    assert str(tmp_path / name) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_or_unknown_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("a,b")
    for name, said in (("gone.jsonl", r"no file .*gone\.jsonl"), ("x.tsv", r"x\.tsv: data files end in \.jsonl")):
        with pytest.raises(ConfigError, match=said):
            fields(tmp_path / name)


def test_a_missing_split_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_bytes(LINES)
    (tmp_path / "empty").mkdir()
    for path, said in (
        (tmp_path, r"has no dev\.jsonl, \.json, .* only empty, train\.jsonl"),
        (tmp_path / "empty", "only nothing"),
        (tmp_path / "train.jsonl", r"is a file: name its folder, or .* task=jsonl"),
        *((path, "no such folder") for path in (tmp_path / "gone", "./gone", "a/b/c", "../data", "spa ces/x")),
    ):
        with pytest.raises(ConfigError, match=said):
            Split(str(path), "dev").rows()


def test_splits_are_joined_by_plus_and_stay_in_the_folder() -> None:
    assert split_names("task.train_split", "train+dev") == ["train", "dev"]
    for bad in ("train+", "+", "../secret", "a/b", ".hidden", "a b", "train[:10%]"):
        with pytest.raises(ConfigError, match=r"task\.train_split="):
            split_names("task.train_split", bad)


def test_a_missing_field_names_row_and_fields() -> None:
    row = Row("f.jsonl, line 7", {"prompt": "x", "qa": {"question": "y"}})
    assert row.get("qa.question") == "y"
    with pytest.raises(DataError, match=r"f\.jsonl, line 7: field 'question' is missing; there are 'prompt', 'qa'"):
        row.read(FilledText, "question")
    with pytest.raises(DataError, match=r"field 'qa\.answer' is missing"):
        row.get("qa.answer")


def test_texts_lose_control_characters_and_surrogates() -> None:
    row = Row("p", {"question": " a\x00b\x1b[1m\r\nc\td\ud800\u2028e\x85 "})
    assert row.read(FilledText, "question") == "ab[1m\nc\td\ufffd\u2028e"
    row.read(FilledText, "question").encode()


@pytest.mark.parametrize(
    ("place", "found"), [("0", "a"), ("1", "b"), ("-1", "b"), ("-2", "a"), ("2", None), ("-3", None)]
)
def test_a_number_reaches_into_a_list(place: str, found: str | None) -> None:
    row = Row("row 1", {"said": [{"text": "a"}, {"text": "b"}]})
    if found is not None:
        assert row.get(f"said.{place}.text") == found
        return
    with pytest.raises(DataError, match="is missing"):
        row.get(f"said.{place}.text")
