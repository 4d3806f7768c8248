"""The table of signals is complete and consistent, and the pages that are written from it are current."""

from pathlib import Path

import pytest

from rlvr.tracking.signals import LINKS, SIGNALS, chain, describe, page

ROOT = Path(__file__).parents[3]


def test_the_pages_of_the_docs_are_written_from_the_table() -> None:
    assert (ROOT / "docs/metrics.md").read_text() == page(), "python -m rlvr.tracking.signals > docs/metrics.md"
    assert chain() in (ROOT / "docs/diagnose.md").read_text(), "python -m rlvr.tracking.signals chain"
    assert page().count("\n| `") == len(SIGNALS) > 80
    assert {line.replace(r"\|", "").count("|") for line in page().splitlines() if line.startswith("| `")} == {5}


@pytest.mark.parametrize("name", [name for name, signal in SIGNALS.items() if signal.is_bounded])
def test_a_bound_comes_with_what_is_said(name: str) -> None:
    signal = SIGNALS[name]
    assert signal.leads
    assert {*signal.unless, *signal.unless_fine} <= SIGNALS.keys()
    if signal.wrong is not None:
        assert signal.link in LINKS
        assert signal.says
        assert signal.remedy
        assert signal.is_wrong(signal.target + signal.wrong)
        assert not signal.is_fine(signal.target + signal.wrong)
    if signal.fine is not None and signal.wrong is not None:
        assert signal.fine != signal.wrong
        assert not signal.is_wrong(signal.fine)
        assert [signal.weight(value) for value in (signal.fine, signal.wrong, None)] == [0, 1, 0]


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
