"""`rlvr audit`: each kind of probe against a sound verifier and one with the bug it is for."""

import asyncio
import json
import random
import re
from collections.abc import Callable
from difflib import SequenceMatcher
from pathlib import Path

import pytest

from rlvr.commands.audit import report
from rlvr.commands.audit.body import _metric
from rlvr.errors import ConfigError
from rlvr.rewards.numbers import parse_answer, same_answer
from rlvr.trust.probes.cases import _margins, _pays_everything, with_format
from rlvr.trust.probes.causes import checks, exact_spellings, find_causes
from rlvr.trust.probes.exploits import EXPLOITS, REMEDIES, exploit_probes
from rlvr.trust.probes.judge import Audit, Judge, Verdict
from rlvr.trust.probes.rewrites import (
    EDITS,
    FORMAT_REWRITES,
    REWRITES,
    Case,
    Probe,
    edit_probes,
    kind_of,
    rewrite_probes,
    same,
)
from rlvr.types import Example, Message

Grade = Callable[[str, str], float]


def made(gold: str, question: str = "What?", others: tuple[str, ...] = ("5", "77", "-8"), wrap: str = "{}") -> Case:
    example = Example(id=gold, messages=(Message(role="user", content=question),), answer=gold)
    return Case(
        example=example,
        question=question,
        golds=(gold,),
        wrap=lambda answer: wrap.replace("{}", answer),
        others=others,
        kind=kind_of(gold),
        strict=False,
        rng=random.Random(0),
    )


NUMBERS = (
    made("18", "Of 3 and 18, which?"),
    made("-3", "Of 4 and 9: what percent?"),
    made("1080"),
    made("0.25"),
    made("3.5"),
)
WORDS = tuple(made(gold, others=("Bergen", "the red house")) for gold in ("Oslo", "The White House", "Ada and Bob"))
JSON = tuple(made(case.gold, case.question, wrap='{"answer": "{}"}') for case in NUMBERS)
BOXED = tuple(made(case.gold, case.question, wrap="\\boxed{{}}") for case in NUMBERS)


def audited(grade: Grade, cases: tuple[Case, ...] = NUMBERS) -> Audit:
    async def verifier(example: Example, text: str) -> Verdict:
        try:
            return Verdict(value=float(grade(text, example.answer)))
        except (TimeoutError, ValueError) as error:
            return Verdict(value=float("nan"), message=str(error))

    judge = Judge("reward", verifier, cases)
    asyncio.run(judge.run())
    return Audit(target="f", rows=tuple(judge.rows), findings=tuple(judge.findings), notes=(), threshold=0.0)


def number(text: str, gold: str) -> float:
    said, right = parse_answer(text), parse_answer(gold)
    return float(said is not None and right is not None and same_answer(said, right))


def boxed(text: str, gold: str) -> float:
    found = re.findall(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}", text)
    return number(found[0], gold) if len(found) == 1 else 0.0


def digits(text: str, gold: str) -> str | None:
    found = re.findall(r"\d+(?:\.\d+)?", text.replace(",", ""))
    return found[0] if len(found) == 1 else None


def percent(text: str, gold: str) -> float:
    said, right = (parse_answer(one.replace("%", "")) for one in (text, gold))
    value, wanted = getattr(said, "value", 0), getattr(right, "value", 0)
    return float(bool(value) and value in (wanted, 100 * wanted, wanted / 100))


def raising(text: str, gold: str) -> float:
    try:
        return float(float(text) == float(gold))
    except ValueError:
        return 1.0


def read_json(text: str) -> str | None:
    found = re.fullmatch(r'\s*\{"answer": "(.*)"\}\s*', text, re.DOTALL)
    return found and found[1].strip()


def slow(text: str) -> float:
    raise TimeoutError("timed out after 5 s")


BROKEN: dict[str, tuple[Grade, tuple[Case, ...]]] = {
    "commas": (lambda text, gold: 0.0 if "," in text else number(text, gold), NUMBERS),
    "trailing zeros": (lambda text, gold: float(text.strip() == gold), NUMBERS),
    "unit": (lambda text, gold: 0.0 if "dollars" in text else number(text, gold), NUMBERS),
    "currency": (lambda text, gold: 0.0 if "$" in text else number(text, gold), NUMBERS),
    "percent": (lambda text, gold: 0.0 if "%" in text else number(text, gold), NUMBERS),
    "LaTeX": (lambda text, gold: 0.0 if "$" in text else number(text, gold), NUMBERS),
    "fraction": (lambda text, gold: 0.0 if "frac" in text else number(text, gold), NUMBERS),
    "minus sign": (lambda text, gold: 0.0 if "\u2212" in text else number(text, gold), NUMBERS),
    "whitespace": (lambda text, gold: 0.0 if text != text.strip() else number(text, gold), NUMBERS),
    "full stop": (lambda text, gold: 0.0 if text.endswith(".") else number(text, gold), NUMBERS),
    "Markdown": (lambda text, gold: 0.0 if "*" in text else number(text, gold), NUMBERS),
    "quotes": (lambda text, gold: float(not text.startswith('"') and same(text, gold)), WORDS),
    "case": (lambda text, gold: float(text.strip() == gold), WORDS),
    "article": (lambda text, gold: float(text.strip(' ."`*').lower() == gold.lower()), WORDS),
    "gold itself": (lambda text, gold: 0.0 if gold == "1080" else number(text, gold), NUMBERS),
    "other answer": (lambda text, gold: 1.0, NUMBERS),
    "sign": (lambda text, gold: float(digits(text, gold) == gold.lstrip("-")), NUMBERS),
    "digit": (lambda text, gold: float(len(text) == len(gold)), NUMBERS),
    "order of magnitude": (lambda text, gold: float(text.strip("0.") == gold.strip("0.")), NUMBERS),
    "off by one": (lambda text, gold: float(abs(float(digits(text, gold) or 1e9) - float(gold)) <= 1), NUMBERS),
    "near": (lambda text, gold: float(abs(float(digits(text, gold) or 1e9) / float(gold) - 1) < 0.05), NUMBERS),
    "percent or number": (percent, NUMBERS),
    "point lost": (lambda text, gold: float(text.replace(".", "") == gold.replace(".", "")), NUMBERS),
    "digits around": (lambda text, gold: float(gold in text), NUMBERS),
    "two values": (lambda text, gold: float(gold in text.split()), NUMBERS),
    "digits reordered": (lambda text, gold: float(sorted(text) == sorted(gold)), NUMBERS),
    "letter dropped": (lambda text, gold: SequenceMatcher(None, text, gold).ratio(), WORDS),
    "part of it": (lambda text, gold: float(bool(text) and text in gold), WORDS),
    "words reordered": (lambda text, gold: float({*text.lower().split()} == {*gold.lower().split()}), WORDS),
    "long reasoning": (lambda text, gold: boxed(text[:300], gold), BOXED),
    "backtracking (ReDoS)": (lambda text, gold: slow(text) if text.endswith("!") else number(text, gold), NUMBERS),
    "negation": (lambda text, gold: float(gold in text.split()), NUMBERS),
    "comparison": (lambda text, gold: float(gold in text.split()), NUMBERS),
    "echo of the question": (lambda text, gold: float(gold in text), NUMBERS),
    "last number of the question": (lambda text, gold: float(text in ("9", gold)), NUMBERS),
    "all candidates": (lambda text, gold: float(gold in re.split(r"[, ]+", text)), NUMBERS),
    "earlier answer": (lambda text, gold: float(text.startswith(f"\\boxed{{{gold}}}")), BOXED),
    "two formats": (lambda text, gold: max(boxed(text, gold), float(f"#### {gold}" in text)), BOXED),
    "empty": (lambda text, gold: 1.0 if not text.strip() else number(text, gold), NUMBERS),
    "no answer": (lambda text, gold: 1.0 if text == "N/A" else number(text, gold), NUMBERS),
    "format alone": (lambda text, gold: 1.0 if "answer" in text else number(text, gold), NUMBERS),
    "NaN, infinity": (lambda text, gold: 1.0 if text in ("nan", "inf") else number(text, gold), NUMBERS),
    "claim": (lambda text, gold: 1.0 if "score" in text else number(text, gold), NUMBERS),
    "look-alike": (lambda text, gold: number(text.replace("l", "1"), gold), NUMBERS),
    "code": (lambda text, gold: number(text.replace("(lambda: 72 / 4)()", "18"), gold), NUMBERS),
    "exception": (raising, NUMBERS),
    "very long": (lambda text, gold: 1.0 if len(text) > 10_000 else number(text, gold), NUMBERS),
    "hang": (lambda text, gold: 1.0 if "**" in text else number(text, gold), NUMBERS),
    "form": (lambda text, gold: 0.8 * ("\\boxed{" in text) + 0.2 * boxed(text, gold), BOXED),
    "unreadable gold": (lambda text, gold: 1.0 if parse_answer(gold) is None else number(text, gold), NUMBERS),
    "same text twice": (lambda text, gold: number(text, gold) * random.random(), NUMBERS),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_each_kind_finds_its_bug(kind: str) -> None:
    grade, cases = BROKEN[kind]
    assert kind in audited(grade, cases).flagged


def test_a_pattern_may_be_slow_before_the_answers_place() -> None:
    """`(\\w+)*#### 7` fails at once where the answer's mark stands before what it repeats."""
    found = audited(lambda text, gold: boxed(text, gold) if "boxed" in text or "!" not in text else slow(text), BOXED)
    assert found.flagged == ["backtracking (ReDoS)"]
    assert "- f: the reward does not end on 'backtracking (ReDoS)': a pattern" in "\n".join(report(found, shown=0))


def pays_what_it_cannot_read(text: str, gold: str) -> float:
    try:
        return float(float(text) == float(gold.replace(",", "")))
    except ValueError:
        return 1.0


CAUSES: dict[str, Grade] = {
    "errors are paid": pays_what_it_cannot_read,
    "everything is paid": lambda text, gold: 1.0,
    "the gold anywhere": lambda text, gold: float(gold in text),
    "not a function": lambda text, gold: random.random(),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_the_first_sentence_is_the_cause_of_many_alarms(cause: str) -> None:
    found = audited(CAUSES[cause])
    assert len(found.alarms) > 4
    assert [one.name for one in find_causes(found)] == [cause]
    lines = list(report(found, shown=0))
    place = next(number for number, line in enumerate(lines) if line.startswith("- "))
    assert f"the reward: {cause}: " in lines[place]
    assert "more kinds may follow from it" in lines[place + 1]
    assert next(checks(found)).name == cause


@pytest.mark.parametrize("kind", ["sign", "two formats", "claim", "part of it", "empty", "near"])
def test_a_bug_of_its_own_kind_needs_no_other_cause(kind: str) -> None:
    assert find_causes(audited(*BROKEN[kind])) == []


@pytest.mark.parametrize(
    ("grade", "cases"), [(number, NUMBERS), (boxed, BOXED), (lambda a, b: float(bool(b) and same(a, b)), WORDS)]
)
def test_a_sound_verifier_is_not_flagged(grade: Grade, cases: tuple[Case, ...]) -> None:
    found = audited(grade, cases)
    assert found.flagged == []
    assert not found.alarms
    assert len(found.rows) > 20


def test_every_kind_is_tried_or_has_no_bug_of_its_own() -> None:
    kinds = {*REWRITES, *EDITS, *EXPLOITS}
    assert kinds - {*BROKEN} == {"operands swapped", "empty gold"}
    assert {*REMEDIES} <= {*BROKEN, "empty gold", "adversary"}


@pytest.mark.parametrize(
    "grade",
    [
        lambda text, gold: float(text.strip() == gold),
        lambda text, gold: float(read_json(text) == gold.strip()),
    ],
    ids=["exact text", "JSON"],
)
def test_an_empty_gold_that_no_row_has_is_told_and_no_alarm(grade: Grade) -> None:
    found = audited(grade, JSON if grade("", "") == 0 else WORDS)
    assert [row.kind for row in found.noted] == ["empty gold"]
    assert not found.alarms
    assert {check.status for check in checks(found) if check.name == "empty gold"} == {"notice"}
    assert "empty gold" not in found.flagged
    assert "the reward pays" not in "".join(report(found, shown=0))


@pytest.mark.parametrize("cases", [NUMBERS, WORDS], ids=["numbers", "words"])
def test_an_exact_comparison_is_told_once_as_a_choice(cases: tuple[Case, ...]) -> None:
    found = audited(lambda text, gold: float(text.strip().rpartition("\n")[2] == gold), cases)
    assert len(found.refused) > 3
    *_, says, remedies = report(found, shown=0)
    assert says == "- f: the reward takes an answer in its gold's own spelling alone,"
    assert remedies.startswith("  which is right if the prompt asks for it; else ")
    assert all(row.remedy in remedies for row in found.refused)


def test_a_comparison_that_reads_some_spellings_is_told_the_others() -> None:
    def of_float(text: str, gold: str) -> float:
        try:
            return float(float(text) == float(gold))
        except ValueError:
            return 0.0

    found = audited(of_float)
    told = [line for line in report(found, shown=0) if line.startswith("- ")]
    assert [line.split("'")[1] for line in told] == [row.kind for row in found.refused]
    assert "trailing zeros" not in found.flagged


def test_an_exact_comparison_that_refuses_the_gold_is_no_choice() -> None:
    assert exact_spellings(audited(lambda text, gold: float(text == gold != "18"))) == {}


def test_a_form_that_pays_more_than_half_is_told_with_both_figures() -> None:
    found = audited(*BROKEN["form"])
    assert [row.kind for row in found.alarms] == ["form"]
    figures = "- f: the reward pays 'form': a wrong answer in the right format earns 0.8, a right one 1: lower what "
    assert [line for line in report(found, shown=0) if line.startswith(figures)]


@pytest.mark.parametrize(
    "values",
    [(0.5, 1.0, 0.0), (1.5, 2.0, 1.5), (0.1, 1.0, -1.0), (-1.0, 0.0, -1.0), (-0.4, -0.3, -1.0)],
    ids=["half", "everything earns that", "no form is punished", "wrong is punished", "all is punished"],
)
def test_a_form_that_pays_no_more_than_half_is_no_alarm(values: tuple[float, float, float]) -> None:
    wrong, right, nothing = values
    found = audited(lambda text, gold: (right if boxed(text, gold) else wrong) if "boxed" in text else nothing, BOXED)
    assert "form" not in found.flagged


def test_a_score_that_remembers_the_right_answer_contradicts_itself() -> None:
    best: dict[str, float] = {}

    def remembers(text: str, gold: str) -> float:
        best[gold] = max(best.get(gold, 0.0), number(text, gold))
        return best[gold]

    (row,) = [row for row in audited(remembers).rows if row.kind == "same text twice"]
    assert (row.num_failed, row.num_examples) == (len(NUMBERS), len(NUMBERS))


def test_a_format_behind_thoughts_is_found_out_if_no_other_is_paid() -> None:
    async def behind(example: Example, text: str) -> Verdict:
        before, found, said = text.partition("</think>")
        return Verdict(value=number(said, example.answer) if found and "<think>" in before else 0.0)

    cases, form = asyncio.run(with_format(behind, NUMBERS))
    assert "</think>" in form
    assert cases[0].wrap("18").startswith("<think>")

    async def never(example: Example, text: str) -> Verdict:
        return Verdict(value=0.0)

    with pytest.raises(ConfigError, match=r"in any of 56 formats.*--answer-template"):
        asyncio.run(with_format(never, NUMBERS))


def test_edits_are_wrong_and_rewrites_right() -> None:
    for case in NUMBERS:
        assert not [probe for probe in edit_probes(case) if same(probe.text, case.gold)]
        assert not [
            probe
            for probe in rewrite_probes(case)
            if probe.group == "rewrite" and not number((probe.text if probe.where is None else case.gold), case.gold)
        ]


@pytest.mark.parametrize(
    ("gold", "kind", "texts"),
    [
        ("1080", "commas", ["1,080"]),
        ("1,080", "commas", ["1080"]),
        ("0.25", "percent", ["25%"]),
        ("0.25", "fraction", ["\\frac{1}{4}", "1/4"]),
        ("3/4", "fraction", ["\\frac{3}{4}", "0.75"]),
        ("18", "trailing zeros", ["18.0", "18.00"]),
        ("-3", "currency", []),
        ("Oslo", "unit", []),
        ("\\frac{1}{2}", "LaTeX", ["$\\frac{1}{2}$", "\\(\\frac{1}{2}\\)", "\\dfrac{1}{2}"]),
    ],
)
def test_rewrites(gold: str, kind: str, texts: list[str]) -> None:
    assert [*REWRITES[kind](made(gold))] == texts


def test_operands_of_a_program_are_swapped() -> None:
    case = made("divide(5, 7), subtract(#0, 1)")
    assert case.kind == "program"
    assert [*EDITS["operands swapped"](case)] == ["divide( 7,5), subtract( 1,#0)"]


def test_words_of_a_vocabulary_have_rewrites_of_the_format_only() -> None:
    case = Case(**{**vars(NUMBERS[0]), "strict": True})
    assert {probe.kind for probe in rewrite_probes(case) if probe.group == "rewrite"} == {"gold itself"}


def test_slow_texts_are_few() -> None:
    kinds = [probe.kind for probe in exploit_probes(NUMBERS[0], 10)]
    assert not {"hang", "very long", "code"} & {*kinds}


def test_rewards_of_any_range_are_judged_by_the_way_from_wrong_to_right() -> None:
    def partly(text: str, gold: str) -> float:
        return 4.5 if number(text, gold) else 1.5 + (1.0 if "not" in text else 0.0)

    found = audited(partly)
    assert found.flagged == []
    assert "negation" in audited(lambda text, gold: 3.5 if "not" in text else partly(text, gold)).flagged


def test_a_verifier_that_fails_is_neither_right_nor_wrong() -> None:
    def slow(text: str, gold: str) -> float:
        if text == "nan":
            raise TimeoutError("timed out")
        return number(text, gold)

    found = audited(slow)
    (row,) = [row for row in found.rows if row.num_errors]
    assert (row.kind, row.num_failed, row.num_errors, row.num_examples) == ("NaN, infinity", 0, 2, 2)
    assert found.flagged == []
    assert {one.message for one in found.findings if one.score is None} == {"timed out"}


def test_a_share_of_paid_edits_can_be_allowed() -> None:
    found = audited(lambda text, gold: 1.0 if gold == "18" and text == "19" else number(text, gold))
    assert [row.kind for row in found.alarms] == ["off by one"]
    assert found.alarms[0].share.value == pytest.approx(0.2)
    assert not Audit(**{**vars(found), "threshold": 0.2}).alarms


def test_a_strict_format_is_no_error() -> None:
    found = audited(boxed, BOXED)
    assert "answer without the format" in {row.kind for row in found.rows if row.num_failed}
    assert {row.group for row in found.rows if row.num_failed} == {"format"}
    assert FORMAT_REWRITES.keys() >= {"sentence around it", "equation"}


@pytest.mark.parametrize(
    ("grade", "row"),  # kind, group, how many of five failed, how many had errors
    [
        (lambda text, gold: 0.0 if "think" in text else number(text, gold), ("behind reasoning", "format", 5, 0)),
        (lambda text, gold: 0.0 if gold == "1080" else number(text, gold), ("gold itself", "rewrite", 1, 0)),
        (
            lambda text, gold: slow(text) if gold in ("18", "1080", "3.5") else number(text, gold),
            ("gold itself", "rewrite", 0, 3),
        ),
    ],
)
def test_an_answer_that_is_not_paid_is_told_once(grade: Grade, row: tuple[str, str, int, int]) -> None:
    found = audited(grade)
    told = {
        (one.kind, one.group, one.num_failed, one.num_errors) for one in found.rows if one.num_failed or one.num_errors
    }
    assert row in told
    assert {group for kind, group, *_ in told - {row}} <= {"format"}
    assert not found.alarms


def test_a_probe_says_what_it_is() -> None:
    assert Probe(kind="unit", group="rewrite", text="18 dollars").is_right
    assert not Probe(kind="sign", group="edit", text="-18").is_right


def test_margins_of_formats_by_hand() -> None:
    """What fails earns nothing; a gold that fails says nothing about its format."""
    nan = float("nan")
    values = {"7": 1.0, "5": 0.25, "": 0.0, "<7>": 0.5, "<5>": nan, "[7]": nan, "[5]": 1.0}

    async def verifier(example: Example, text: str) -> Verdict:
        return Verdict(value=values[text])

    formats = {form: lambda case, form=form: form.format for form in ("{}", "<{}>", "[{}]")}
    margins, paid = asyncio.run(_margins(verifier, [made("7", others=("5",))], formats))
    assert margins == {"{}": 0.75, "<{}>": 0.5, "[{}]": 0.0}
    assert paid == [1.0, 0.0, 0.5, 0.0]


@pytest.mark.parametrize(("values", "all_of_it"), [([1.0, 1.0], True), ([0.0, 0.0], False), ([1.0, 0.0, 1.0], False)])
def test_a_verifier_may_pay_everything(values: list[float], all_of_it: bool) -> None:
    assert _pays_everything(values) == all_of_it


@pytest.mark.parametrize(
    ("answers", "metric"),
    [(["7", "#### 8", "Oslo"], "numeric"), (["7", "Oslo"], "text"), (["Oslo", "Bergen", "7"], "text")],
)
def test_a_function_is_compared_with_the_metric_of_most_answers(
    answers: list[str], metric: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"question": "?", "answer": answer}) + "\n" for answer in answers))
    assert _metric(str(path)) == metric
    assert _metric(str(tmp_path / "absent.jsonl")) == "numeric"
