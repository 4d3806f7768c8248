"""`pytest -m "not slow"`: each line of tests/slow.txt is a test file, or one and the beginning of a test's name."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("line", (ROOT / "tests" / "slow.txt").read_text().split())
def test_a_slow_test_exists(line: str) -> None:
    file, _, name = line.partition("::")
    assert f"def {name or 'test_'}" in (ROOT / file).read_text()
