"""A run that is killed at any of its file operations goes on as if nothing had happened."""

from pathlib import Path

import pytest

from tests.system.crash_points import RECIPES, check, spread, uninterrupted
from tests.system.harness import once

POINTS = 30


@pytest.mark.long
@pytest.mark.timeout(900)
def test_pitfall_37_every_file_operation_is_a_crash_point(tmp_path: Path) -> None:
    """More points and recipes: `python -m tests.system.crash_points`."""
    words = tuple(once(*RECIPES["warm start and GRPO"]))
    whole, count = uninterrupted(words, tmp_path / "whole")
    assert count > 100
    for last in spread(count, POINTS):
        place = tmp_path / f"{last}"
        place.mkdir()
        check(words, whole, place, last)
