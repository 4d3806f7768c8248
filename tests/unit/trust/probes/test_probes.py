"""Every text that `rlvr audit` makes of a few golds, as it was read once: `probes.tsv`."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rlvr.trust.probes.exploits import EXPLOITS, exploit_probes
from rlvr.trust.probes.rewrites import EDITS, LINE, Case, Probe, edit_probes, is_bare, kind_of, rewrite_probes, same
from rlvr.types import Example, Message

FILE = Path(__file__).with_name("probes.tsv")
GOLDS = {  # with a question, and whether its words are those of a vocabulary
    "1080": "Of 12 and 90, which?",
    "-3": "How many percent of 4?",
    "0.25": "Which part?",
    "1,234.5": "How many?",
    "3/4": "Which part is 75 %?",
    "44%": "How many percent?",
    "999": "What?",
    "1": "Of 1, what?",
    "0": "What is left?",
    "-1200": "What?",
    "Oslo": "Which city, Oslo or Bergen?",
    "The White House": "Where?",
    "Ada and Bob": "Who?",
    "an old red house": "What?",
    "New York City": "Which city?",
    "x^2 + 1": "Which function?",
    "subtract(5, 3), divide(#0, 3)": "Which program?",
    "north": "Where?",
}
STRICT = ("north",)


def case(gold: str, *, wrap: str = "#### {}", others: tuple[str, ...] = ("17", "Bergen", "-8", "4.5")) -> Case:
    question = GOLDS.get(gold, "What?")
    example = Example(id=gold, messages=(Message(role="user", content=question),), answer=gold)
    return Case(
        example=example,
        question=question,
        golds=(gold,),
        wrap=lambda answer: wrap.replace("{}", answer),
        others=others,
        kind=kind_of(gold),
        strict=gold in STRICT,
        rng=random.Random(0),
    )


def probes(one: Case) -> Iterator[Probe]:
    yield from rewrite_probes(one)
    yield from edit_probes(one)
    yield from exploit_probes(one, 0)


def shown(text: str) -> str:
    """On one line, long ones by their length."""
    told = text.encode("unicode_escape").decode()
    return told if len(told) <= 160 else f"{told[:20]}[{len(told):,}]{told[-60:]}"


def rows() -> list[str]:
    found = []
    for gold in GOLDS:
        one = case(gold)
        found.append(f"{gold}\t{one.kind}{' of words' if one.strict else ''}")
        made = [*probes(case(gold))]
        for kind in dict.fromkeys(probe.kind for probe in made):
            same_kind = [probe for probe in made if probe.kind == kind]
            if same_kind[0].group in ("exploit", "gold") and gold != "1080" and kind not in ("look-alike", "code"):
                continue  # the same for every gold
            texts = [shown(probe.text) for probe in same_kind]
            texts += [f"twin {shown(probe.twin)}" for probe in same_kind if probe.twin is not None]
            texts += [f"where {shown(probe.where)}" for probe in same_kind if probe.where is not None]
            texts += [f"gold {probe.gold!r}" for probe in same_kind[:1] if probe.gold is not None]
            found.append("\t".join(["", kind, same_kind[0].group, *texts]))
    return found


def test_the_texts_are_those_that_were_read() -> None:
    assert rows() == FILE.read_text().splitlines()


@pytest.mark.parametrize(
    ("gold", "kind"),
    [
        *(("1080", "number"), ("44%", "number"), ("3/4", "number"), ("-0.5", "number"), ("Oslo", "text")),
        *(("add(1, 2)", "program"), ("f_2(1)", "text"), ("Add(1)", "text"), ("x^2", "expression")),
        *(("2x + 1", "expression"), ("a-b", "expression"), ("well-known", "expression"), ("A-B", "text")),
    ],
)
def test_kinds_of_golds(gold: str, kind: str) -> None:
    assert kind_of(gold) == kind


@pytest.mark.parametrize(
    ("a", "b", "are_same"),
    [
        ("1,080", "1080.0", True),
        ("The Oslo.", "oslo", True),
        ("7", "seven", False),
        ("a", "b", False),
        ("7", "8", False),
    ],
)
def test_answers_are_the_same_by_value_or_by_their_words(a: str, b: str, are_same: bool) -> None:
    assert same(a, b) == same(b, a) == are_same


@pytest.mark.parametrize(
    ("gold", "bare", "positive"),
    [
        ("18", True, True),
        ("0", True, True),
        ("-3", True, False),
        ("44%", False, False),
        ("3/4", False, False),
        ("x", False, False),
    ],
)
def test_a_bare_number_has_no_unit(gold: str, bare: bool, positive: bool) -> None:
    assert is_bare(case(gold)) == bare
    assert is_bare(case(gold), least=0) == positive


def test_dear_exploits_are_tried_on_the_first_examples_only() -> None:
    kinds = [{probe.kind for probe in exploit_probes(case("1080"), index)} for index in range(6)]
    limits = {kind: one.num_examples for kind, one in EXPLOITS.items() if one.num_examples is not None}
    assert limits == {
        **{"code": 5, "very long": 2, "hang": 1, "backtracking (ReDoS)": 1},
        **{"empty gold": 2, "unreadable gold": 2},
    }
    for kind in EXPLOITS:
        assert [kind in found for found in kinds] == [index < limits.get(kind, 6) for index in range(6)], kind


def test_a_text_that_is_the_gold_is_no_exploit() -> None:
    texts = [probe.text for probe in exploit_probes(case("...", wrap="{}"), 0)]
    assert "..." not in texts
    assert "unknown" in texts


def test_a_text_that_equals_any_gold_is_no_edit() -> None:
    """18 and 19 are both right: one more than 18 is no error."""
    several = replace(case("18"), golds=("18", "19"), kind="number")
    texts = [probe.answer for probe in edit_probes(several)]
    assert "17" in texts
    assert "19" not in texts
    assert all(probe.text == f"#### {probe.answer}" for probe in edit_probes(several))


def test_without_other_answers_there_are_no_texts_of_two() -> None:
    alone = case("18", others=())
    kinds = {probe.kind for probe in probes(alone)}
    assert kinds.isdisjoint({"other answer", "two values", "all candidates", "earlier answer", "two formats"})
    assert {"sign", "echo of the question"} <= kinds


def test_reasoning_is_two_hundred_lines_and_the_bare_gold_has_another_format() -> None:
    long, behind, bare = [*rewrite_probes(case("18"))][-3:]
    assert (long.text, long.where) == (LINE * 200 + "#### 18", LINE + "#### 18")
    assert (behind.text, behind.group, behind.is_right) == ("<think>\nSo.\n</think>\n\n#### 18", "format", True)
    assert (bare.text, bare.group, bare.is_right) == ("18", "format", True)
    assert [*rewrite_probes(case("18", wrap="{}"))][-1].kind == "behind reasoning"


def test_every_edit_of_a_drawn_place_is_tried_with_any_seed() -> None:
    """A digit that changes is another digit, and a letter that goes is no word's first."""
    for seed in range(40):
        number, words = (replace(case(gold), rng=random.Random(seed)) for gold in ("1080", "Oslo and Bergen"))
        [changed] = EDITS["digit"](number)
        assert sum(a != b for a, b in zip(changed, "1080", strict=True)) == 1
        assert [*EDITS["letter dropped"](words)] in (["Olo and Bergen"], ["Oslo and Brgen"])
        first, second = EDITS["digits around"](number)
        assert (first[:-1], second[1:], first[-1]) == ("1080", "1080", first[-1])
        assert {first[-1], second[0]} <= {*"12345678"}
