import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.errors import ConfigError
from rlvr.rewards.format import FormatApproximate, FormatExact
from rlvr.types import StopReason
from tests.unit.rewards.attempts import FORMATS, attempt, grade, run


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<r>a</r><s>18</s>", 1.0),
        ("\n<r>a</r>\n<s>banana</s>\n", 1.0),
        ("", 0.0),
        ("18", 0.0),
        ("<s>18</s>", 0.0),
        ("<r></r><s>18</s>", 0.0),
        ("<r>a</r><s></s>", 0.0),
        ("Sure! <r>a</r><s>18</s>", 0.0),
        ("<r>a</r><s>18</s> 18", 0.0),
        ("<r>a</r> so <s>18</s>", 0.0),
        ("<r>a</r><s>17</s><s>18</s>", 0.0),
        ("<r>a</r><r>b</r><s>18</s>", 0.0),
    ],
)
def test_pitfall_28_the_exact_format_is_the_whole_text(text: str, value: float) -> None:
    found = grade(FormatExact(), attempt(text))
    assert (found.value, found.status) == (value, "scored")


def test_pitfall_28_a_completion_that_was_cut_off_earns_no_format() -> None:
    cut = replace(attempt("<r>a</r><s>18</s>"), stop_reason=StopReason.LENGTH)
    assert grade(FormatExact(), cut).value == 0.0


def test_the_exact_format_of_other_answers_is_where_they_stand() -> None:
    assert grade(FormatExact(), attempt("so \\boxed{18}"), FORMATS["boxed"]).value == 1.0
    assert grade(FormatExact(), attempt("so 18"), FORMATS["boxed"]).value == 0.0


@pytest.mark.parametrize(
    ("text", "penalty", "value"),
    [
        ("<r>a</r><s>18</s>", 1.0, 1.0),
        ("", 1.0, -1.0),
        ("", 0.0, 0.0),
        ("", 2.0, -2.0),
        ("<s>18</s>", 1.0, 0.0),
        ("<s>18</s>", 0.0, 0.5),
        ("<r>a</r><s>18", 1.0, 0.5),
        ("<r>a</r><s>18</s></s>", 1.0, 0.5),
        ("<s><s><s>", 1.0, -1.0),
        ("<s>18</s><r>a</r>", 0.0, 0.5),
        ("<r><s></r></s>", 0.0, 0.75),
    ],
)
def test_pitfall_28_a_quarter_for_each_marker_that_occurs_exactly_once(text: str, penalty: float, value: float) -> None:
    found = grade(FormatApproximate(penalty=penalty), attempt(text))
    assert (found.value, found.status) == (value, "scored")


def test_pitfall_28_markers_in_another_order_earn_less() -> None:
    part = FormatApproximate(penalty=1.0)
    assert grade(part, attempt("</s><s></r><r>")).value == -0.5
    for order in set(itertools.permutations(("<r>", "</r>", "<s>", "</s>"))) - {("<r>", "</r>", "<s>", "</s>")}:
        assert grade(part, attempt(" ".join(order))).value < 1.0


def test_formats_need_markers() -> None:
    for part in (FormatExact(), FormatApproximate()):
        part.check_run(run())
        with pytest.raises(ConfigError, match=f"prompt.answer_in=whole: .* {part.name}, which reads markers"):
            part.check_run(run("whole"))


@settings(deadline=None)
@given(st.lists(st.sampled_from(["<r>", "</r>", "<s>", "</s>", "18", " "]), max_size=10).map("".join))
def test_the_exact_format_has_all_markers_and_the_range_is_as_documented(text: str) -> None:
    approximate = grade(FormatApproximate(penalty=0.5), attempt(text)).value
    assert -0.5 <= approximate <= 1.0
    if grade(FormatExact(), attempt(text)).value:
        assert approximate == 1.0
