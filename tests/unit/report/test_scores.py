import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rlvr.records.graded import EvaluationRecord, GradedTurn
from rlvr.records.rollouts import CallRecord
from rlvr.report.page import Page, PageLimits, render
from rlvr.report.scores import MAX_COMPLETION_CHARS, MAX_NOTES, MAX_PROMPT_CHARS, MAX_TOKENS, evaluation_pages
from rlvr.types import StopReason, TraceStep
from tests.unit.evaluation.records import greedy, record
from tests.unit.report.runs import chunk_of, save_tokenizer

TWO = [*greedy([1, 0, 1], model="a"), *greedy([1, 1, 0], model="b")]


def chunk(made: Page, name: str) -> Any:
    return chunk_of(render(made), name)


def data(made: Page) -> Mapping[str, Any]:
    return chunk(made, "main")["evaluations"]


def texts(*records: EvaluationRecord) -> Any:
    """What is kept of the only example."""
    return chunk(evaluation_pages(records, title="t"), "texts-0")["0"]


def test_examples_are_listed_with_what_each_model_made_of_them() -> None:
    made = evaluation_pages(TWO, title="t")
    assert [cell["name"] for cell in data(made)["cells"]] == ["a", "b"]
    assert [(cell["num_right"], cell["num_examples"]) for cell in data(made)["cells"]] == [(2, 3), (2, 3)]
    rows = chunk(made, "examples")
    assert [row["id"] for row in rows] == ["e0", "e1", "e2"]
    assert rows[1]["results"] == {"0": [0, "8", "stop", 0, 2, 0, 0], "1": [1, "7", "stop", 1, 2, 0, 0]}
    assert (made.kept, made.total, made.notes) == (6, 6, [])
    assert {row["chunk"] for row in rows} == {0}


def test_pitfall_38_tasks_splits_and_settings_are_kept_apart() -> None:
    records = [
        *greedy([1], task="musique", retriever="golden", tags=("2_hops",)),
        *greedy([0], split="train"),
        *greedy([0], task="musique", retriever="bm25", tags=("2_hops",)),
        *greedy([1], settings="other"),
        *greedy([1], tags=("1_operators",), settings="other", split="train"),
    ]
    made = evaluation_pages(records, title="t")
    found = [(one["task"], one["split"], one["cells"], one["tags"]) for one in data(made)["sets"]]
    assert found == [("musique", "test", [0, 2], ["2_hops"]), ("rpn", "train", [1, 4], []), ("rpn", "test", [3], [])]
    assert [cell["name"] for cell in data(made)["cells"]][:3] == ["a + golden", "a", "a + bm25"]
    assert [row["set"] for row in chunk(made, "examples")] == [0, 1, 2]


def test_what_was_analyzed_is_joined_with_its_records() -> None:
    first, second = (("rpn", "test", one.model, "", one.settings) for one in (TWO[0], TWO[3]))
    cells = {second: {"name": "b #1", "scores": {"accuracy": [0.5, 0.1, 0.9]}}, first: {"name": "a #1"}}
    here = {"task": "rpn", "split": "test", "sentence": "No difference."}
    made = evaluation_pages(TWO, title="t", analyzed=cells, comparisons=[here, {**here, "task": "musique"}])
    cells = data(made)["cells"]
    assert [cell["name"] for cell in cells] == ["a #1", "b #1"]
    assert [cell["scores"] for cell in cells] == [{}, {"accuracy": [0.5, 0.1, 0.9]}]
    assert [one["comparisons"] for one in data(made)["sets"]] == [[here]]


def test_samples_follow_the_greedy_answer() -> None:
    samples = [record("e0", right, sample=number) for number, right in ((2, False), (1, True), (3, True))]
    made = evaluation_pages([*samples, *greedy([0]), *greedy([1])], title="t")
    (row,) = chunk(made, "examples")
    assert row["results"]["0"] == [0, "8", "stop", 0, 2, 2, 3]
    assert [one["sample"] for one in chunk(made, "texts-0")["0"]["records"]["0"]] == [0, 1, 2, 3]
    (only_sampled,) = chunk(evaluation_pages(samples, title="t"), "examples")
    assert only_sampled["results"]["0"][0] == 1


def test_pitfall_27_what_has_no_grade_is_neither_right_nor_wrong() -> None:
    made = evaluation_pages([record("e0", False, failure="timed out", reward=math.nan, answer=None)], title="t")
    (row,) = chunk(made, "examples")
    assert row["results"]["0"] == [None, None, "stop", None, 2, 0, 0]
    assert data(made)["cells"][0]["num_examples"] == 0
    (episode,) = chunk(made, "texts-0")["0"]["records"]["0"]
    assert (episode["failure"], episode["reward"]) == ("timed out", None)


def test_an_episode_is_kept_with_turns_calls_tokens_and_trace() -> None:
    call = CallRecord(name="search", arguments={"query": "Oslo", "top_n": 3}, problem=None)
    broken = CallRecord(name="", arguments={}, problem="no JSON")
    turns = (
        GradedTurn(completion="?", token_ids=(5, 6), logprobs=(-0.5, -math.inf), calls=(call, broken), reply="Oslo is"),
        GradedTurn(completion="7"),
    )
    trace = (TraceStep(kind="query", text="Oslo"), TraceStep(kind="answer", text="7", ok=True, turn=1))
    ending = {"stop_reason": StopReason.MAX_TURNS, "diagnostics": {"why": "x"}}
    kept = texts(record("e0", True, turns=turns, trace=trace, **ending))
    assert (kept["prompt"], kept["expected"]) == ("e0 =", "7")
    (episode,) = kept["records"]["0"]
    calls = [['search(query="Oslo", top_n=3)', None], ["()", "no JSON"]]
    first = {"said": "?", "ids": [5, 6], "logprobs": [-0.5, None], "calls": calls, "reply": "Oslo is"}
    assert episode["turns"] == [first, {"said": "7"}]
    steps = [(step["kind"], step["text"], step["ok"], step["turn"]) for step in episode["trace"]]
    assert steps == [("query", "Oslo", None, 0), ("answer", "7", True, 1)]
    assert (episode["stop"], episode["facts"], episode["parts"]) == ("max_turns", {"why": "x"}, {"correct": 1})


def test_long_texts_are_cut_where_they_say_least() -> None:
    turn = GradedTurn(completion="a" * 10**6, token_ids=tuple(range(10**5)), logprobs=(0.0,) * 10**5)
    kept = texts(record("e0", True, prompt="x" * 10**6 + "end", turns=(turn,)))
    assert kept["prompt"].endswith("end")
    assert len(kept["prompt"]) < MAX_PROMPT_CHARS + 100
    ((said,),) = [episode["turns"] for episode in kept["records"]["0"]]
    assert len(said["said"]) < MAX_COMPLETION_CHARS + 100
    assert said["said"].endswith("characters left out")
    assert len(said["ids"]) == len(said["logprobs"]) == MAX_TOKENS


def hard(number: int) -> str:
    """A text that cannot be packed well."""
    return " ".join(str(number * 7919 + place * 104729) for place in range(800))


def test_pitfall_38_above_the_limit_disagreements_stay() -> None:
    grades = {"a": [1] * 400, "b": [number % 20 != 0 for number in range(400)]}
    records = [
        record(f"e{number}", bool(right), model=model, prompt=hard(number))
        for model, of_one in grades.items()
        for number, right in enumerate(of_one)
    ]
    whole = evaluation_pages(records, title="t")
    made = evaluation_pages(records, title="t", limits=PageLimits(max_mb=1.0))
    assert whole.kept == whole.total == made.total == 800
    assert 0 < made.kept < 800
    assert len(render(made)) < 1.0e6
    (note,) = made.notes
    assert note.startswith(f"The texts of {800 - made.kept} of 800 episodes are left out")
    rows = chunk(made, "examples")
    assert len(rows) == 400
    assert all(row["chunk"] is not None for row in rows if row["results"]["0"][0] != row["results"]["1"][0])
    assert sum(2 for row in rows if row["chunk"] is not None) == made.kept
    assert evaluation_pages(records, title="t", limits=PageLimits(max_episodes=100)).kept == 100


def test_tokens_have_texts_where_the_model_is_a_folder(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    turn = GradedTurn(completion="7", token_ids=(5, 6, 5), logprobs=(0.0, 0.0, 0.0))
    models = (str(tmp_path), "openai:http://x#y")
    made = evaluation_pages([record("e0", True, turns=(turn,), model=model) for model in models], title="t")
    assert chunk(made, "tokens") == {str(tmp_path): {"5": "7", "6": "<eoe>"}, "openai:http://x#y": {}}


def test_equal_records_give_equal_pages() -> None:
    notes = [f"line {number} is damaged." for number in range(50)]
    first, second = (evaluation_pages(TWO, title="t", notes=notes) for _ in range(2))
    assert render(first) == render(second)
    assert len(first.notes) == MAX_NOTES + 1
    assert first.notes[-1].startswith("30 more")


@pytest.mark.parametrize("text", ["</script><script>alert(1)</script>", "\ud800", "\u2028 %%DATA%%", ""])
def test_pitfall_38_no_text_of_a_record_can_break_the_page(text: str) -> None:
    hostile = record(text, True, model=text, prompt=text, answer=text, expected=text, tags=(text,), task=text)
    html = render(evaluation_pages([hostile], title=text))
    assert "alert(1)</script>" not in html
    assert chunk_of(html, "examples")[0]["id"] == text
