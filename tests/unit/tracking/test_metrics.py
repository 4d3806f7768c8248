"""The catalogue is complete, and its page is current."""

from pathlib import Path

from rlvr.tracking.metrics import _SECTIONS, CATALOGUE, describe, document, undocumented

DOCS = Path(__file__).parents[3] / "docs" / "metrics.md"


def test_the_page_is_generated_from_the_table() -> None:
    assert DOCS.read_text() == document(), "run: python -m rlvr.tracking.metrics > docs/metrics.md"


def test_every_row_is_on_the_page_once() -> None:
    names = [metric.name for metric in CATALOGUE]
    assert len(set(names)) == len(names)
    assert {name.split("/")[0] for name in names} == set(_SECTIONS)
    assert all(document().count(f"| `{name}` |") == 1 for name in names)


def test_no_cell_breaks_the_table() -> None:
    rows = [line for line in document().splitlines() if line.startswith("| `")]
    assert {line.replace(r"\|", "").count("|") for line in rows} == {5}


def test_patterns_stand_for_names() -> None:
    names = ["step", "eval/rpn/accuracy", "eval/rpn/accuracy_3_operators", "eval/rpn/pass_at_8", "reward/boxed"]
    assert undocumented(names) == []
    found = describe("reward/mean")
    assert found is not None
    assert found.name == "reward/mean"  # not reward/<part>


def test_unknown_names_are_listed() -> None:
    names = ["eval/rpn/accuracy_x_operators", "eval/rpn/pass_at_", "loss/polcy", "reward/a/b", "step2", "step"]
    assert undocumented(names) == sorted(names[:-1])
