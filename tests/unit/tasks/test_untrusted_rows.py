"""Any row gives a problem, none, or one sentence."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.data.problems import Problem
from rlvr.data.rows import ENDINGS, DataError, Row, read_file
from rlvr.errors import UserError
from rlvr.tasks import columns, finqa, gsm8k
from rlvr.tasks.prompting import Prompter
from rlvr.tasks.prompts import MathReasoning
from tests.unit.tasks.data_tasks import MARKERS

SETTINGS = {metric: columns.Jsonl(path="x", metric=metric) for metric in ("numeric", "text", "exact", "math")}
PROMPTER = Prompter(MathReasoning(), MARKERS.sets["working_out"])

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=20)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
answers = anything | st.sampled_from(["x\n#### 1", "#### -1,000.5", "####", "yes", "1e400", "٣", "#### ٣"])
tables = st.lists(st.lists(scalars, max_size=3), max_size=3) | anything


def check(problem: Problem | str) -> None:
    """It can be asked and shown, and holds nothing that a tokenizer or a terminal stumbles over."""
    if isinstance(problem, str):
        return
    for text in (problem.id, problem.question, problem.answer, problem.solution):
        text.encode()
        assert "\x1b" not in text
        assert "\x00" not in text
    assert problem.question.strip()
    assert problem.answer.strip()
    assert PROMPTER.messages(problem.question)[-1].content == problem.question
    assert problem.answer in PROMPTER.worked(problem)


def tried(parse: Any, row: Row) -> None:
    said = ""
    try:
        check(parse(row))
    except DataError as error:
        said = str(error)
    assert said.isprintable()
    assert len(said) < 1_000


@given(anything, answers)
def test_rows_of_gsm8k(question: Any, answer: Any) -> None:
    tried(gsm8k.Gsm8k(path="x").parse, Row("p", {"question": question, "answer": answer}, "train/1"))


@given(st.sampled_from(sorted(SETTINGS)), anything, answers)
def test_rows_of_any_file(metric: str, question: Any, answer: Any) -> None:
    tried(SETTINGS[metric].parse, Row("p", {"question": question, "answer": answer}))


@given(
    st.booleans(),
    st.fixed_dictionaries(
        {"id": anything | st.just("i"), "pre_text": anything | st.just(["x"]), "post_text": st.just([]) | anything},
        optional={
            "table": tables,
            "qa": anything
            | st.fixed_dictionaries(
                {"question": st.just("q?") | anything},
                optional={"exe_ans": answers, "program": anything | st.just("add(1, 2)"), "gold_inds": anything},
            ),
            "question": anything,
            "final_result": answers,
        },
    ),
)
def test_rows_of_finqa(wants_program: bool, fields: dict[str, Any]) -> None:
    tried(finqa.Finqa(path="x", answer="program" if wants_program else "number").parse, Row("p", fields))


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_files_of_any_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder: Path = tmp_path_factory.getbasetemp()
    for name in [f"x{ending}" for ending in ENDINGS]:
        (folder / name).write_bytes(data)
        rows, said = [], ""
        try:
            rows = list(read_file(folder / name))
        except UserError as error:
            said = str(error)
        assert bool(rows) != bool(said)
        assert said.isprintable()
        json.dumps([dict(row.fields) for row in rows])
