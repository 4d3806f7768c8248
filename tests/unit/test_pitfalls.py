from pathlib import Path

from tests.pitfalls.__main__ import PITFALLS, document
from tests.pitfalls.table import PLANTED

ROOT = Path(__file__).resolve().parents[2]


def test_every_pitfall_has_a_planted_bug() -> None:
    assert {bug.pitfall for bug in PLANTED} == set(PITFALLS)
    assert len({bug.name for bug in PLANTED}) == len(PLANTED)


def test_the_test_of_a_planted_bug_exists() -> None:
    for bug in PLANTED:
        file, _, name = bug.caught_by.partition("::")
        assert name.startswith(f"test_pitfall_{bug.pitfall:02d}_"), bug
        assert f"def {name.split('[')[0]}(" in (ROOT / file).read_text(), bug


def test_the_page_is_current() -> None:
    page = (ROOT / "docs" / "pitfalls.md").read_text()
    assert page == document(), "run: python -m tests.pitfalls > docs/pitfalls.md"
