"""The catalogue is complete, and its page is current."""

from pathlib import Path

import pytest

from rlvr.tracking.metrics import CATALOGUE, describe

ROOT = Path(__file__).parents[3]


def test_the_page_of_the_docs_is_the_table() -> None:
    page = (ROOT / "src/rlvr/tracking/metrics.md").read_text()
    assert (ROOT / "docs/metrics.md").read_text() == page, "cp src/rlvr/tracking/metrics.md docs/metrics.md"
    names = [metric.name for metric in CATALOGUE]
    assert len(set(names)) == len(names) == page.count("\n| `") > 80
    assert {line.replace(r"\|", "").count("|") for line in page.splitlines() if line.startswith("| `")} == {5}


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
