"""The catalogue is complete, and its page is current."""

from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("reward/answer", "reward/<part>"),
        ("episode/answer_em", "episode/<fact>"),
        ("eval/musique/accuracy_3_hops_low", "eval/<task>/accuracy_<tag>_low"),
        ("eval/finqa/accuracy_3_or_more_steps", "eval/<task>/accuracy_<tag>"),
        ("eval/musique/part_citation_2_hops", "eval/<task>/part_<part>_<tag>"),
        ("eval/gsm8k/sampled_part_format_low", "eval/<task>/sampled_part_<part>_low"),
        ("eval/musique/paragraphs_recall_4_hops", "eval/<task>/<fact>_<tag>"),
        ("eval/two_hop/tool_timeout_share", "eval/<task>/<tool>"),
    ],
)
def test_a_name_is_described_by_the_row_that_says_most(name: str, row: str) -> None:
    found = describe(name)
    assert found is not None
    assert found.name == row


def test_unknown_names_are_listed() -> None:
    names = ["eval/rpn/accuracy_x_operators", "eval/rpn/pass_at_", "loss/polcy", "reward/a/b", "step2", "step"]
    assert undocumented(names) == sorted(names[:-1])
