from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.rewards.official.rows import TASKS, RowError, score_row
from tests.unit.rewards.attempts import JSON
from tests.unit.rewards.official.rows import FIXTURE, data_folder, read_rows

ROWS = read_rows(FIXTURE)
TABLE = [["sales", "1", "2"]]
GOLD = {"program": "add(1, 2)", "exe_ans": 3.0, "table": TABLE}
PREDICTED = {"id": "a", "predicted_answer": "x", "predicted_support_idxs": [1], "predicted_answerable": True}
PARAGRAPHS = [{"idx": 1, "is_supporting": True}]
WANTED = {"id": "a", "answer": "x", "answer_aliases": [], "answerable": True, "paragraphs": PARAGRAPHS}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['task']}: {row['why']}")
def test_pitfall_28_every_oddity_of_the_official_scorers_is_kept(row: dict[str, Any]) -> None:
    assert score_row(row["task"], row["prediction"], row["golds"]) == row["expected"]


def test_all_real_vectors_agree() -> None:
    rows = read_rows(data_folder() / "scoring_vectors.jsonl")
    assert len(rows) == 110
    for row in rows:
        assert score_row(row["task"], row["prediction"], row["golds"]) == row["expected"], row["vid"]


BAD_ROWS = [
    ("gsm", "x", ["#### 1"], "no task 'gsm'; use one of gsm8k, finqa_program"),
    (["gsm8k"], "x", ["#### 1"], "no task"),
    ("gsm8k", 18, ["#### 18"], "prediction=18: give a text"),
    ("gsm8k", "x", "#### 18", "golds='#### 18': Input should be a valid list"),
    ("gsm8k", "x", ["#### 18", "#### 19"], "give one, this task knows no aliases"),
    ("gsm8k", "x", [], "golds=[]: List should have at least 1 item"),
    ("gsm8k", "x", ["18"], "no line `#### N`"),
    ("finqa_program", ["add(", 1, 2, ")"], GOLD, "prediction[1]=1: give a text"),
    ("finqa_program", [], {"program": "add(1, 2)", "exe_ans": 3}, "golds.table: there is no such field"),
    ("finqa_program", [], GOLD | {"exe_ans": True}, "golds.exe_ans=True: give a number"),
    ("finqa_program", [], GOLD | {"table": [["sales", 1]]}, "golds.table[0][1]=1: give a text"),
    ("finqa_program", [], GOLD | {"program": "add"}, "the gold program 'add EOF' cannot be read"),
    ("finqa_program", [], GOLD | {"program": "greater(1, 2), add(#0, 1)"}, "cannot be read"),
    ("musique_support", ["one"], [1], "prediction[0]='one': give the whole number"),
    ("musique_support", [float("nan")], [1], "prediction[0]=nan"),
    ("musique_file", [PREDICTED], [], "1 predictions for 0 golds"),
    ("musique_file", [PREDICTED | {"id": "b"}], [WANTED], "order must agree"),
    ("musique_file", [PREDICTED | {"predicted_answerable": "yes"}], [WANTED], "give true or false"),
    ("musique_file", [PREDICTED], [WANTED | {"answerable": False}], "question a comes 1 times"),
    ("hotpotqa_support", [["title", [0]]], [["title", 0]], "prediction[0]=['title', [0]]: give [title"),
    ("hotpotqa_file", {"answer": {}}, [], "prediction.sp: there is no such field"),
]


@pytest.mark.parametrize(("task", "prediction", "golds", "message"), BAD_ROWS)
def test_a_row_that_cannot_be_scored_is_refused_by_name(
    task: object, prediction: object, golds: object, message: str
) -> None:
    with pytest.raises(RowError) as error:
        score_row(task, prediction, golds)
    assert message in str(error.value)
    assert str(error.value).endswith(".")


@settings(deadline=None)
@given(st.sampled_from(sorted(TASKS)), JSON, JSON)
def test_any_json_is_scored_or_refused(task: str, prediction: object, golds: object) -> None:
    try:
        metrics = score_row(task, prediction, golds)
    except RowError:
        return
    assert metrics
