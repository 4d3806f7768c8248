import json
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from rlvr.evaluation.analysis import Analysis, analyze
from rlvr.evaluation.tables import WIDTH, number, plain, report, score_name, score_rows, summary_rows, table
from rlvr.records.graded import EvaluationRecord, GradedTurn
from rlvr.types import StopReason
from tests.unit.evaluation.records import greedy, record


def sampled(model: str) -> list[EvaluationRecord]:
    return [record(f"e{n}", n % 2 == 0, sample=s, model=model, tags=("2_hops",)) for n in range(8) for s in range(3)]


def test_a_score_stands_with_its_interval_for_every_model() -> None:
    cells = analyze([*sampled("a"), *greedy([1, 1], model="b")]).cells
    rows = dict((row[0], row[1:]) for row in score_rows(cells))
    assert rows["examples"] == ("8", "2")
    assert rows["accuracy"] == ("50.0% (21.5 to 78.5)", "100.0% (34.2 to 100.0)")
    assert rows["sampled accuracy"][1] == "-"  # b was not sampled
    assert list(rows) == ["examples", "accuracy", "sampled accuracy", "pass@2", "maj@2"]


def test_many_models_with_long_names_fit_100_columns() -> None:
    models = [f"/home/somebody/experiments/runs/a-long-name-of-a-run-{n}/checkpoints/step_000100" for n in range(5)]
    facts = {"answer_f1": 0.31, "citation_f1": 0.2}
    analysis = analyze([replace(one, diagnostics=facts) for model in models for one in sampled(model)])
    text = report(analysis)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert text.count("50.0% (21.5 to 78.5)") == 2 * 5  # accuracy, and accuracy of the one kind
    head, rows = summary_rows(analysis.cells, full=False)
    assert "answer f1" in head
    short = table(head, rows, markdown=False)
    assert max(map(len, short.splitlines())) <= WIDTH
    assert short.count("50.0% (21.5 to 78.5)") == 5
    assert short.count("31.0%") == 5  # without the interval


def test_a_benchmark_has_a_column_for_each_score_and_none_for_parts_of_the_reward() -> None:
    cells = analyze([replace(one, parts={"correct": 1.0, "format": 0.5}) for one in sampled("a")]).cells
    head, [row] = summary_rows(cells)
    assert len(head) == len(set(head)) == len(row)
    assert {"accuracy", "sampled accuracy", "pass@2", "maj@2"} <= set(head)
    assert not [name for name in head if "part" in name]


def test_a_whole_score_is_not_folded_beside_long_names() -> None:
    long = [replace(one, model="m" * 60, task="t" * 60, retriever="r" * 60, correct=True) for one in sampled("a")]
    short = table(*summary_rows(analyze(long).cells, full=False), markdown=False)
    assert short.count("100.0% (67.6 to 100.0)") == 2  # 22 letters, the longest that a score has
    assert max(map(len, short.splitlines())) <= WIDTH


def test_an_example_says_what_became_of_its_answer() -> None:
    text = report(analyze([record("e0", True), record("e1", False, answer=None), record("e2", False)]))
    lines = text.splitlines()
    assert [line for line in lines if line.startswith(("Best", "Worst"))] == ["Best of a", "Worst of a"]
    for grade in ("right", "no answer", "wrong"):
        assert f"said ({grade}, 2 tokens, stop)" in text


def test_kinds_come_by_number_and_before_words() -> None:
    tags = ("bridge", "10_hops", "2_hops", "1_hops")
    lines = report(analyze([record(f"e{n}", True, tags=(tag,)) for n, tag in enumerate(tags)])).splitlines()
    shown = ("1 hop ", "2 hops ", "10 hops ", "bridge ")
    places = [next(place for place, line in enumerate(lines) if line.strip().startswith(kind)) for kind in shown]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("name", "text"),
    [("accuracy", "accuracy"), ("accuracy_1_operators", "accuracy, 1 operator"), ("pass_at_4", "pass@4")],
)
def test_a_score_is_named_in_words(name: str, text: str) -> None:
    assert score_name(name) == text


def test_model_output_stays_text_in_terminal_and_markup() -> None:
    said = "\x1b[2J\x1b]0;owned\x07[red]bold[/red] <script>alert(1)</script>\n# head | cell"
    evil = record("e0", False, model="m|<b>", turns=(GradedTurn(completion=said),), prompt="[link=x]\x9b31m")
    analysis = analyze([evil, record("e1", True, model="m|<b>"), *greedy([1, 1], model="b")])
    for markdown in (False, True):
        text = report(analysis, markdown=markdown)
        assert text.replace("\n", "").isprintable()
        assert "[red]bold[/red]" in text  # as it was said, not as markup
    lines = report(analysis, markdown=True).splitlines()
    assert all(line.startswith("    ") for line in lines if "script" in line)  # inside a block of code
    assert all(r"m\|\<b\>" in line for line in lines if "m\\|" in line)


def test_plain_data_is_json_and_can_leave_the_clock_out() -> None:
    analysis = analyze([*greedy([0, 0], time_s=2.0), *greedy([1, 0], model="b")])
    lines = plain(analysis)
    text = json.dumps(lines, allow_nan=False)
    assert [line["kind"] for line in lines] == ["cell", "cell", "comparison"]
    assert lines[0]["cost"]["tokens_per_right"] is None
    assert lines[0]["cost"]["seconds"] == 2.0
    assert "seconds" not in json.dumps(plain(analysis, clock=False))
    assert json.loads(text)[2]["only_second"] == ["e0"]
    assert lines[2]["sentence"] == analysis.comparisons[0].sentence


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("tokens", None, "-"),
        ("tokens", math.inf, "-"),
        ("tokens", math.nan, "-"),
        ("tokens", 3.0, "3"),
        ("tokens", 999.994, "999.99"),
        ("tokens", 1000.4, "1,000"),
        ("tokens", -1000.4, "-1,000"),
        ("cut_share", 0.125, "12.5%"),
        ("valid_steps", 1.0, "100.0%"),
        ("valid_steps_share", math.nan, "-"),
    ],
)
def test_a_number_is_written_by_its_kind_and_size(name: str, value: float | None, text: str) -> None:
    assert number(name, value) == text


def four_models() -> Analysis:
    """Four models on one task, which are more than a terminal's table has columns, and one on another split."""

    def of(model: str, right: Sequence[int], **values: Any) -> list[EvaluationRecord]:
        tags = [(f"{n % 2 + 1}_hops",) for n in range(len(right))]
        made = greedy(right, model=model, retriever="bm25", settings=model * 8, **values)
        return [replace(one, tags=of_one) for one, of_one in zip(made, tags, strict=True)]

    facts = {"answer_f1": 0.25, "turns": 2.0, "tool_calls": 1.0}
    long = (GradedTurn(completion="I search"), GradedTurn(completion=f"well-known {'word ' * 90}7"))
    first = of("a", [1, 1, 0, 0], diagnostics=facts, turns=long, time_s=1.5)
    first[3] = replace(first[3], answer=None, reward=math.nan, stop_reason=StopReason.LENGTH)
    second = of("b", [1, 0, 1, 0])
    second += [replace(one, sample_index=sample) for one in second for sample in (1, 2)]
    train = greedy([1], split="train", num_completion_tokens=1500)
    return analyze([*first, *second, *of("c", [1] * 4), *of("d", [0] * 4), *train], num_shown=1)


@pytest.mark.parametrize("markdown", [False, True])
def test_a_report_is_this_text(markdown: bool) -> None:
    """Tables of three cells, differences, then one example of each kind: written once, read and kept."""
    expected = Path(__file__).with_name("report.md" if markdown else "report.txt").read_text()
    assert report(four_models(), markdown=markdown) == expected


def test_a_report_without_examples_is_the_same_text_without_them() -> None:
    tables = report(four_models(), examples=False)
    assert tables.count("\nDifferences\n") == 1
    assert "gold: " not in tables
    assert set(tables.splitlines()) <= set(report(four_models()).splitlines())


def test_the_table_of_a_benchmark_names_what_was_not_measured() -> None:
    analysis = four_models()
    head, rows = summary_rows(analysis.cells)
    assert head[:4] == ("model", "task", "retriever", "examples")
    assert head[4:8] == ("accuracy", "answer f1", "sampled accuracy", "pass@2")
    assert head[8:] == ("maj@2", "invalid share", "truncated share", "error share", "completion tokens")
    assert rows[0][:6] == ("a", "rpn", "bm25", "4", "50.0% (15.0 to 85.0)", "25.0% (25.0 to 25.0)")
    assert rows[0][6:] == ("-", "-", "-", "25.0%", "25.0%", "25.0%", "2")
    assert rows[4] == (
        "a",
        "rpn",
        "-",
        "1",
        "100.0% (20.7 to 100.0)",
        "-",
        "-",
        "-",
        "-",
        "0.0%",
        "0.0%",
        "0.0%",
        "1,500",
    )
    short, rows = summary_rows(analysis.cells, full=False)
    assert short == ("model", "task", "retriever", "examples", "accuracy", "sampled accuracy", "answer f1")
    assert [row[5:] for row in rows[:2]] == [("-", "25.0%"), ("50.0% (0.0 to 100.0)", "-")]


def test_plain_data_have_the_ids_of_the_examples_and_the_names_of_both_sides() -> None:
    lines = plain(four_models())
    cells, comparisons = ([one for one in lines if one["kind"] == kind] for kind in ("cell", "comparison"))
    assert [(one["best"], one["worst"]) for one in cells] == [
        *((["e0"], ["e2"]), (["e0"], ["e1"]), (["e0"], []), ([], ["e0"]), (["e0"], [])),
    ]
    pairs = [(one["first"], one["second"], one["is_real"]) for one in comparisons]
    names = [f"{model} + bm25" for model in "abcd"]
    assert pairs == [(one, two, False) for one, two in combinations(names, 2)]
    assert not [one for one in comparisons if "disagreeing" in one]


@pytest.mark.parametrize(("length", "folded"), [(12, False), (13, True)])
def test_a_word_of_a_number_column_is_whole_up_to_twelve_letters(length: int, folded: bool) -> None:
    """Beside names that leave each column a tenth of the width; the first column may always be folded."""
    text = table(("x",) * 10, [(*("y" * 300,) * 9, "w" * length)], markdown=False)
    assert (("w" * length) not in text) == folded
    assert max(map(len, text.splitlines())) <= WIDTH
