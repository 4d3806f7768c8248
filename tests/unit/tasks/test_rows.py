"""Rows keep what they say: their own fields, digits and letters; and no episode sees what another one's code did."""

import asyncio
import datetime
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from rlvr.data.rows import DataError
from rlvr.rewards.base import Part
from rlvr.rewards.metrics import Metric
from rlvr.tasks.generator import ExamplesTask
from rlvr.types import Attempt, Example, GradedAnswer, Message, ToolCall
from tests.unit.tasks.data_tasks import bundle, graded, make, opened, scored, sums, turn, write_jsonl

FUNCTION = "tests:given"


def with_fields(folder: Path, fields: dict[str, Any], **task: Any) -> dict[str, Any]:
    rows = [row | fields for row in sums(4)]
    return {"name": "jsonl", "path": str(write_jsonl(folder / "x.jsonl", rows)), **task}


def value_of(task: dict[str, Any], function: Callable[..., Any]) -> float:
    """What a user's function gives an episode of a task, without a process of its own."""
    parts = {"mine": {"type": "custom", "function": FUNCTION}}
    made = make(task, reward=parts, prompt="plain", functions={FUNCTION: function})
    found = made.verifier.parts["mine"].grade(Attempt.of(made.train_example(0), [turn("5")]))
    return found[0] if isinstance(found, list) else found


COLUMNS: dict[str, Any] = {
    "task": "math",
    "tags": ["a", "b"],
    "aliases": {"not": "ours"},
    "id": 7,
    "has_answer": False,
    "has_messages": True,
    "gold_as_given": "none",
    "row": "r",
    "metadata": {"level": 3},
}
"""Names that mean something else to tasks, metrics and rewards."""


def _are_there(columns: dict[str, Any]) -> float:
    return float(columns | COLUMNS == columns and str(columns["question"]).endswith("?"))


def trl(completions, task, tags, aliases, id, has_answer, has_messages, gold_as_given, row, metadata, question):
    return [_are_there({name: value[0] for name, value in locals().items() if name != "completions"})]


def trl_any(completions, **kwargs):
    return [_are_there({name: value[0] for name, value in kwargs.items() if isinstance(value, list)})]


def verl(
    solution_str,
    ground_truth,
    task,
    tags,
    aliases,
    id,
    has_answer,
    has_messages,
    gold_as_given,
    row,
    metadata,
    question,
):
    return _are_there(dict(locals()))


def ours(completion, metadata):
    return _are_there(metadata)


@pytest.mark.parametrize("function", [trl, trl_any, verl, ours])
def test_functions_get_the_rows_own_columns(function: Callable[..., Any], tmp_path: Path) -> None:
    assert value_of(with_fields(tmp_path, COLUMNS), function) == 1.0


def test_no_column_changes_what_is_right(tmp_path: Path) -> None:
    with opened(with_fields(tmp_path, COLUMNS), reward="numeric", prompt="plain") as made:
        example = made.train_example(0)
        assert graded(made, example, example.answer).correct
        assert scored(made, example, example.answer).value == 1.0


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        ({"solution": "#### 18"}, {"solution": "#### 18", "answer": "#### 18"}),
        ({"solution": 18, "answer": "see solution"}, {"solution": 18, "answer": "see solution"}),
    ],
)
def test_the_column_of_the_answer_is_passed_as_it_is(
    given: dict[str, Any], passed: dict[str, Any], tmp_path: Path
) -> None:
    rows = [{"prompt": f"{n}?", **given} for n in range(4)]
    task = {"name": "jsonl", "path": str(write_jsonl(tmp_path / "x.jsonl", rows))}
    task |= {"question_field": "prompt", "answer_field": "solution"}

    def reward(completions: Any, **columns: Any) -> list[float]:
        right = {name: columns[name][0] for name in passed} == passed
        return [float(right and not {"prompt", "completion"} & {*columns})]

    assert value_of(task, reward) == 1.0


def bought(example: Example) -> int:
    """Changes whatever of an example can be changed; the number of changes that it has seen."""
    for place in (example.metadata, example.row):
        place["cart"].append(1)
        place["nested"]["deep"].append(1)
    return len(example.metadata["cart"]) + len(example.row["nested"]["deep"])  # one list each, under two names


class InProcess(Part):
    in_process = True

    def grade(self, attempt: Attempt) -> float:
        return bought(attempt.example)


class Buys(Metric):
    async def grade(self, attempt: Attempt) -> GradedAnswer:
        return GradedAnswer(answer=str(bought(attempt.example)), correct=True)


def test_a_part_that_changes_its_example_changes_no_other_episode(tmp_path: Path) -> None:
    task = with_fields(tmp_path, {"cart": [], "nested": {"deep": []}})
    parts = {"mine": {"type": f"{__name__}:InProcess"}}
    with opened(task, reward=parts, prompt="plain") as made:
        example = made.train_example(0)
        assert [scored(made, example, "5").value for _ in range(3)] == [4.0, 4.0, 4.0]
    assert not example.metadata["cart"]


def test_a_metric_that_changes_its_example_changes_no_other_episode(tmp_path: Path) -> None:
    task = with_fields(tmp_path, {"cart": [], "nested": {"deep": []}}, metric=f"{__name__}:Buys")
    with opened(task, reward="numeric", prompt="plain") as made:
        example = made.train_example(0)
        assert [graded(made, example, "5").answer for _ in range(3)] == ["4", "4", "4"]


class Shop(ExamplesTask):
    def examples(self) -> Any:
        about = {"cart": [], "task": "mine"}
        return ({"question": f"{n}?", "answer": "1", "metadata": about} for n in range(9))

    def tools(self) -> Any:
        def buy(item: str, state: Any) -> int:
            """Buys one.

            item: its name
            """
            state.append(item)
            return len(state)

        return [buy]

    def state(self, example: Example) -> Any:
        return example.metadata["cart"]


def test_a_tool_that_changes_the_examples_own_list_changes_no_other_episode() -> None:
    settings = bundle({"name": f"{__name__}:Shop"}, reward="text", prompt="plain")
    with opened(settings) as made:
        example = made.train_example(0)

        async def replies() -> list[str]:
            call = ToolCall(id="1", name="buy", arguments={"item": "fig"})
            env = made.env(example)
            await env.start()
            reply = await env.step(Message(role="assistant", content="", tool_calls=(call,)))
            return [message.content for message in reply.messages]

        assert [asyncio.run(replies()) for _ in range(3)] == [["1"], ["1"], ["1"]]
        assert example.row == {"cart": [], "task": "mine"}


LOST = [
    r"\frac{41}{2}",
    r"\boxed{5}",
    r"\text{54}",
    r"\theta",
    r"\beta",
    r"\nu",
    r"\neq",
    r"\times 2",
    r"\rho",
    r"x \forall y",
]
"""With one backslash in a JSON file; `\\left` and `\\sqrt` are no JSON."""


@pytest.mark.parametrize("command", LOST)
@pytest.mark.parametrize("field", ["question", "answer", "prompt"])
def test_a_command_that_lost_its_backslash_is_refused_with_its_row(command: str, field: str, tmp_path: Path) -> None:
    lines = [json.dumps({"question": f"{n}?", "answer": "5"}) for n in range(4)]
    lines[2] = f'{{"question": "2?", "answer": "5", "{field}": "{command}"}}'
    asked = "question"
    if field == "prompt":
        asked, lines = "prompt", [line.replace('"question"', '"prompt"') for line in lines[:2]]
        lines.append(f'{{"prompt": [{{"role": "user", "content": "{command}"}}], "answer": "5"}}')
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    task = {"name": "jsonl", "path": str(tmp_path / "x.jsonl"), "metric": "text", "question_field": asked}
    with pytest.raises(DataError, match=r"x\.jsonl, line 3: field .* must have two backslashes before [a-z]+ \(JSON"):
        make(task, reward="text", prompt="plain")


@pytest.mark.parametrize(
    "text", ["a\tb", "\tTable\n\tof\tnumbers", "one\r\nequal", "\nnot", "1\f", "p. 1\n\fPage two", "\b5"]
)
def test_tabs_and_line_ends_of_ordinary_text_are_no_damage(text: str, tmp_path: Path) -> None:
    rows = [*sums(4), {"question": f"Say {text} now", "answer": "4"}]
    assert sum(make({"name": "jsonl", "path": str(write_jsonl(tmp_path / "x.jsonl", rows))}).sizes) == 5


@pytest.mark.parametrize(
    ("fields", "what", "kept"),
    [
        ({"question": "a\x1b[31mb?"}, "have control characters, which were removed", "a[31mb?"),
        ({"question": "a\x00b?"}, "have control characters, which were removed", "ab?"),
        ({"answer": "7\x7f"}, "have control characters, which were removed", "7?"),
        ({"question": "half \ud83d?"}, "have half characters (broken \\u escapes), replaced by U+FFFD", "half \ufffd?"),
        ({"question": "a\r\nb?"}, None, "a\nb?"),
    ],
)
def test_what_is_removed_from_a_text_is_counted(
    fields: dict[str, Any], what: str | None, kept: str, tmp_path: Path
) -> None:
    rows = [{"question": "7?", "answer": "7", **fields}, *sums(4)]
    made = make({"name": "jsonl", "path": str(write_jsonl(tmp_path / "x.jsonl", rows))}, prompt="plain")
    notes = [note for note in made.notes if "have " in note]
    assert notes == ([f"1 training rows {what} ({tmp_path / 'x.jsonl'}, line 1)"] if what else [])
    asked = [example.messages[-1].content for example in (*map(made.train_example, range(5)), *made.eval_examples(5))]
    assert kept in asked


DAY, TIME = datetime.date(2024, 5, 1), datetime.datetime(2024, 5, 1, 12, 30)


@pytest.mark.parametrize(
    ("kind", "given", "gold"),
    [
        (pyarrow.float32(), 0.6, "0.6"),
        (pyarrow.float16(), 0.1, "0.1"),
        (pyarrow.float32(), 16777216.0, "16777216"),
        (pyarrow.float32(), 1e-5, "0.00001"),
        (pyarrow.float64(), 0.1, "0.1"),
        (pyarrow.decimal128(9, 3), Decimal("12.500"), "12.5"),
        (pyarrow.decimal128(38, 3), Decimal("12345678901234567890.125"), "12345678901234567890.125"),
        (pyarrow.decimal128(9, 2), Decimal("7.00"), "7"),
        (pyarrow.date32(), DAY, "2024-05-01"),
        (pyarrow.timestamp("us"), TIME, "2024-05-01T12:30:00"),
        (pyarrow.time32("s"), TIME.time(), "12:30:00"),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("door", ["jsonl", "hub"])
def test_golds_of_a_table_are_what_its_writer_wrote(
    door: str, nested: bool, kind: pyarrow.DataType, given: Any, gold: str, tmp_path: Path
) -> None:
    answer = pyarrow.array([given] * 4, kind)
    if nested:
        answer = pyarrow.StructArray.from_arrays(
            [answer, pyarrow.array([[given], [], None, [given]], pyarrow.list_(kind))], ["gold", "all"]
        )
    table = pyarrow.table({"question": [f"{n}?" for n in range(4)], "answer": answer})
    pyarrow.parquet.write_table(table, tmp_path / "train.parquet")
    path = tmp_path / "train.parquet" if door == "jsonl" else tmp_path
    task = {"name": door, "path": str(path), "metric": "text", "answer_field": "answer.gold" if nested else "answer"}
    assert make(task, reward="text", prompt="plain").train_example(0).answer == gold


MAP, DATES = pyarrow.map_(pyarrow.string(), pyarrow.float32()), pyarrow.list_(pyarrow.date32())


@pytest.mark.parametrize(
    ("column", "plain"),
    [
        (pyarrow.array([[("a", 0.6), ("b", None)]], MAP), [["a", 0.6], ["b", None]]),
        (pyarrow.array([[("a", [DAY])]], pyarrow.map_(pyarrow.string(), DATES)), [["a", ["2024-05-01"]]]),
        (
            pyarrow.array([[{"x": 0.1}, None]], pyarrow.list_(pyarrow.struct([("x", pyarrow.float16())]))),
            [{"x": 0.1}, None],
        ),
        (pyarrow.array([DAY], pyarrow.date32()).dictionary_encode(), "2024-05-01"),
    ],
)
def test_a_reward_gets_the_row_as_json_would_have_it(column: pyarrow.Array, plain: Any, tmp_path: Path) -> None:
    rows = {"question": [f"{n}?" for n in range(4)], "answer": ["1"] * 4, "more": pyarrow.concat_arrays([column] * 4)}
    path = tmp_path / "train.parquet"
    pyarrow.parquet.write_table(pyarrow.table(rows), path)
    task = make({"name": "jsonl", "path": str(path), "metric": "text"}, reward="text", prompt="plain")
    assert json.loads(json.dumps(task.train_example(0).row["more"])) == plain
