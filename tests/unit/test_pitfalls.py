from pathlib import Path

from tests.mutants.__main__ import ROOT, load
from tests.mutants.pitfalls import PITFALLS, document

MUTANTS = load([])


def test_every_pitfall_has_a_planted_bug() -> None:
    assert set(PITFALLS) - {int(mutant.pitfall) for mutant in MUTANTS} == set()


def test_every_planted_bug_belongs_to_a_known_pitfall_and_its_test_is_named_after_it() -> None:
    for mutant in MUTANTS:
        assert int(mutant.pitfall) in PITFALLS
        assert f"test_pitfall_{int(mutant.pitfall):02d}_" in mutant.test, mutant


def test_every_planted_bug_still_fits_the_source() -> None:
    for mutant in MUTANTS:
        source = (ROOT / "src" / "rlvr" / mutant.file).read_text()
        assert source.count(mutant.old) == 1, mutant
        file = mutant.test.split("::")[0]
        name = mutant.test.split("::")[1].split("[")[0]
        assert f"def {name}(" in Path(ROOT / file).read_text(), mutant


def test_the_page_is_current() -> None:
    page = (ROOT / "docs" / "pitfalls.md").read_text()
    assert page == document(), "run: python -m tests.mutants.pitfalls > docs/pitfalls.md"
