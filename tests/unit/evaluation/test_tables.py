import json
import math
from dataclasses import replace

import pytest

from rlvr.evaluation.analysis import analyze
from rlvr.evaluation.tables import WIDTH, number, plain, report, score_name, score_rows, summary_rows, table
from rlvr.tracking.graded import EvaluationRecord, GradedTurn
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
