"""metrics.jsonl: equal numbers are equal bytes, lines are valid JSON, a resume cuts back exactly."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr.errors import UserError
from rlvr.records.jsonl import MetricsFile, metrics_line, read_metrics


def write(path: Path, *steps: int) -> MetricsFile:
    file = MetricsFile(path)
    for step in steps:
        file.append(step, {"reward/mean": step / 3})
    return file


def test_a_line_has_the_step_first_and_sorted_names() -> None:
    line = metrics_line(3, {"reward/mean": 0.1, "loss/kl": 2, "step": 9})
    assert line == '{"step": 3, "loss/kl": 2, "reward/mean": 0.1}\n'


def test_numbers_that_are_not_finite_become_null() -> None:
    line = metrics_line(1, {"a": math.nan, "b": math.inf, "c": -math.inf})
    assert json.loads(line, parse_constant=pytest.fail) == {"step": 1, "a": None, "b": None, "c": None}


@pytest.mark.slow
@given(st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False)))
def test_floats_come_back_bit_for_bit(metrics: dict[str, float]) -> None:
    metrics.pop("step", None)
    assert json.loads(metrics_line(0, metrics)) == {"step": 0} | metrics


def test_pitfall_37_a_resumed_file_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    write(tmp_path / "whole.jsonl", *range(10))
    write(tmp_path / "m.jsonl", *range(8))  # killed after step 7; the checkpoint is of step 5
    resumed = MetricsFile(tmp_path / "m.jsonl")
    resumed.cut_back(5)
    for step in range(6, 10):
        resumed.append(step, {"reward/mean": step / 3})
    assert (tmp_path / "m.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


@pytest.mark.parametrize("cut", [1, 5, 20, 27])
def test_pitfall_37_a_half_written_last_line_is_dropped(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "m.jsonl"
    write(path, 0, 1, 2)
    path.write_bytes(path.read_bytes() + metrics_line(3, {"reward/mean": 1.0}).encode()[:cut])
    assert [row["step"] for row in read_metrics(path)] == [0, 1, 2]
    file = MetricsFile(path)
    file.cut_back(3)
    file.append(3, {"reward/mean": 1.0})
    assert [row["step"] for row in read_metrics(path)] == [0, 1, 2, 3]


@pytest.mark.parametrize("line", [b"{", b"[]", b'{"a": 1}', b"\xff"])
def test_a_damaged_line_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step": 0}\n' + line + b'\n{"step": 2}\n')
    with pytest.raises(UserError, match="line 2, is damaged"):
        read_metrics(path)
