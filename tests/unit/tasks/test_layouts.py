"""Data as other libraries lay it out: each trains without a key about its columns."""

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from datasets import Dataset, DatasetDict

from rlvr.config.compose import load_config
from rlvr.data.rows import DataError, Row
from rlvr.errors import ConfigError
from rlvr.rewards.extract import AnswerFormat
from rlvr.tasks.columns import Hub
from rlvr.tasks.layouts import gold_of, layout_of
from rlvr.tasks.settings import TaskBundle
from rlvr.types import Message
from tests.unit.tasks.data_tasks import graded, make, write_jsonl

HF = ["model=hf", "model.name_or_path=M", "warm_start.enabled=false"]
ASKED = 'What is {n} + 3? Let\'s think step by step and output the final answer after "####".'
BOXED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "{n} + 3? Use \\boxed{{}}."}]
SKY = "The sky is {n}, "


def filled(value: Any, n: int) -> Any:
    if isinstance(value, dict):
        return {key: filled(item, n) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item, n) for item in value]
    return value.format(n=n, right=n + 3) if isinstance(value, str) else value


VERL = {
    "data_source": "openai/gsm8k",
    "prompt": [{"role": "user", "content": ASKED}],
    "ability": "math",
    "reward_model": {"ground_truth": "{right}", "style": "rule"},
    "extra_info": {"answer": "{n}+3\n#### {right}", "split": "train"},
}
LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "verl": (VERL, {"question": "prompt", "answer": "reward_model.ground_truth", "prompt": "given"}),
    "trl": (
        {"prompt": BOXED, "solution": "So \\boxed{{{right}}}"},
        {"question": "prompt", "answer": "solution", "prompt": "given"},
    ),
    "trl, texts": (
        {"prompt": ASKED, "ground_truth": "{right}"},
        {"question": "prompt", "answer": "ground_truth", "prompt": "given"},
    ),
    "openrlhf": ({"input": "{n} + 3 ?", "label": "{right}"}, {"question": "input", "answer": "label"}),
    "prime-rl": (
        {"prompt": ASKED, "verification_info": '{{"ground_truth": "{right}"}}'},
        {"question": "prompt", "answer": "verification_info.ground_truth", "prompt": "given"},
    ),
    "aime": ({"Problem": "{n} + 3 ?", "Answer": 7}, {"question": "Problem", "answer": "Answer"}),
    "math": (
        {"problem": "{n} + x ?", "answer": "{n} + \\frac{{x}}{{2}}"},
        {"question": "problem", "answer": "answer", "kind": "math"},
    ),
    "words": (
        {"instruction": "Who is {n}?", "target": "king number {n}"},
        {"question": "instruction", "answer": "target", "kind": "text"},
    ),
    "alpaca": (
        {"instruction": "Add them.", "input": "{n} and 3", "target": "{right}"},
        {"question": "instruction", "answer": "target"},
    ),
    "search-r1": (
        VERL | {"reward_model": {"ground_truth": {"target": ["king {n}", "the {n}th"]}, "style": "rule"}},
        {"question": "prompt", "answer": "reward_model.ground_truth.target", "prompt": "given", "kind": "text"},
    ),
    "golds in an object": (
        {"query": "Who is {n}?", "ground_truth": {"target": ["king {n}"]}},
        {"question": "query", "answer": "ground_truth.target", "kind": "text"},
    ),
    "chats": (
        {"messages": BOXED, "tools": [], "answer": "{right}"},
        {"question": "messages", "answer": "answer", "prompt": "given"},
    ),
    "chats that end with the answer": (
        {"messages": [*BOXED, {"role": "assistant", "content": "{n} + 3 = \\boxed{{{right}}}"}]},
        {"question": "messages", "answer": "messages.-1.content", "prompt": "given"},
    ),
    "sharegpt": (
        {"conversations": [{"from": "human", "value": "{n} + 3 ?"}, {"from": "gpt", "value": "{right}"}]},
        {"question": "conversations", "answer": "conversations.-1.value", "prompt": "given"},
    ),
    "sharegpt with a column for the answer": (
        {"conversations": [{"from": "human", "value": "{n} + 3 ?"}], "target": "{right}"},
        {"question": "conversations", "answer": "target", "prompt": "given"},
    ),
    "yes and no": (
        {"question": "Is {n} odd?", "answer": True},
        {"question": "question", "answer": "answer", "kind": "text"},
    ),
    "ours": ({"question": "{n} + 3 ?", "answer": "{right}"}, {"question": "question", "answer": "answer"}),
    "our names, texts": (
        {"question": "Who is {n}?", "answer": "king number {n}"},
        {"question": "question", "answer": "answer", "kind": "text"},
    ),
    "our names, math": (
        {"question": "{n} + x ?", "answer": "{n} + \\frac{{x}}{{2}}"},
        {"question": "question", "answer": "answer", "kind": "math"},
    ),
}


def opened_by(*words: str) -> Any:
    config = load_config([*words, *HF], config_name="gsm8k")
    return make(TaskBundle.model_construct(task=config.task, reward=config.reward, prompt=config.prompt))


def file(folder: Path, row: dict[str, Any], num: int = 8) -> Path:
    return write_jsonl(folder / "x.jsonl", [filled(row, n) for n in range(num)])


@pytest.mark.parametrize("name", LAYOUTS)
def test_columns_are_recognized(tmp_path: Path, name: str) -> None:
    row, wanted = LAYOUTS[name]
    config = load_config(["task=jsonl", f"task.path={file(tmp_path, row)}", *HF], config_name="gsm8k")
    kind = wanted.get("kind", "numeric")
    task: Any = config.task
    assert (task.question_field, task.answer_field, task.metric) == (wanted["question"], wanted["answer"], kind)
    assert (config.prompt.name, [part.name for part in config.reward.parts.values()]) == (
        wanted.get("prompt", "math_reasoning"),
        [kind],
    )


def test_what_the_user_says_comes_first(tmp_path: Path) -> None:
    said = ["task.metric=math", "prompt=boxed", "reward=text", "task.answer_field=extra_info.answer"]
    config = load_config(["task=jsonl", f"task.path={file(tmp_path, VERL)}", *said, *HF], config_name="gsm8k")
    task: Any = config.task
    assert (task.question_field, task.answer_field, task.metric) == ("prompt", "extra_info.answer", "math")
    assert (config.prompt.name, [part.name for part in config.reward.parts.values()]) == ("boxed", ["text"])


def test_the_reward_follows_the_answers_under_a_metric_of_the_user(tmp_path: Path) -> None:
    path = file(tmp_path, {"question": "Who is {n}?", "answer": "king number {n}"})
    config = load_config(["task=jsonl", f"task.path={path}", "task.metric=exact", *HF], config_name="gsm8k")
    task: Any = config.task
    assert (task.metric, [part.name for part in config.reward.parts.values()]) == ("exact", ["text"])
    with pytest.raises(
        DataError, match=r"text, exact, each with its reward=, e\.g\. task\.metric=text reward=text\), but"
    ):
        opened_by("task=jsonl", f"task.path={path}", "task.metric=numeric", "reward=numeric")


def test_a_reward_that_a_configuration_file_chooses_stays(tmp_path: Path) -> None:
    path = file(tmp_path, {"question": "Who is {n}?", "answer": "king number {n}"})
    (tmp_path / "mine.yaml").write_text(
        f"defaults: [gsm8k, override task: jsonl, override reward: math, _self_]\n"
        f"task: {{path: {path}, metric: exact}}\n"
    )
    config = load_config(HF, config_name="mine", config_dir=tmp_path)
    task: Any = config.task
    assert (task.metric, [part.name for part in config.reward.parts.values()]) == ("exact", ["math"])


@pytest.mark.parametrize("names", [("question", "answer"), ("problem", "answer")])
def test_files_of_a_users_task_and_pinned_choices_come_before_the_layout(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    path = file(tmp_path, {names[0]: "{n} + 3 ?", names[1]: "{right}"})
    for folder, text in (
        ("task/sums", f"defaults: [jsonl]\npath: {path}\n"),
        ("reward/sums", "parts:\n  right: {type: math, weight: 3.0}\n"),
        ("mine", "defaults: [gsm8k, override task: sums]\n"),
        ("pinned", "defaults: [gsm8k, override task: sums, override reward: sums]\n"),
    ):
        (tmp_path / folder).parent.mkdir(exist_ok=True)
        (tmp_path / f"{folder}.yaml").write_text(text)
    for name in ("mine", "pinned"):
        assert [*load_config(HF, config_name=name, config_dir=tmp_path).reward.parts] == ["right"], name
    assert [*load_config(["task=sums", *HF], config_name="gsm8k", config_dir=tmp_path).reward.parts] == ["right"]
    other = ["task=jsonl", f"task.path={path}", *HF]
    assert [*load_config(other, config_name="mine", config_dir=tmp_path).reward.parts] == ["correct"]
    with pytest.raises(
        ConfigError, match=r"task=jsonl: goes with reward=numeric, and .*pinned\.yaml chooses reward=sums"
    ):
        load_config(other, config_name="pinned", config_dir=tmp_path)


def task_of(folder: Path, row: dict[str, Any], *more: str) -> Any:
    return opened_by("task=jsonl", f"task.path={file(folder, row)}", *more)


def test_verls_prompts_are_used_as_they_are_and_read_where_they_ask(tmp_path: Path) -> None:
    made = task_of(tmp_path, VERL)
    example = made.train_example(0)
    n = int(example.answer) - 3
    assert example.messages == (Message(role="user", content=ASKED.format(n=n)),)
    assert example.metadata["data_source"] == "openai/gsm8k"
    assert graded(made, example, f"so\n#### {n + 3}").correct
    assert graded(made, example, f"\\boxed{{{n + 3}}}").answer is None
    (solution,) = made.solutions(1)
    assert solution.turns == (f"#### {solution.example.answer}",)
    assert "answers in 'reward_model.ground_truth' (task.metric=numeric)" in made.notes[-1]


def test_a_system_message_and_earlier_turns_stay_in_their_places(tmp_path: Path) -> None:
    before = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    row = {"prompt": [BOXED[0], *before, BOXED[1]], "solution": "{right}"}
    roles = ["system", "user", "assistant", "user"]
    example = task_of(tmp_path, row).train_example(0)
    assert [message.role for message in example.messages] == roles
    assert example.messages[0].content == "Be brief."
    ours = task_of(tmp_path, row, "prompt=boxed", "prompt.user='Now: {question}'").train_example(0)
    assert [message.role for message in ours.messages] == roles
    assert ours.messages[0].content.startswith("Be brief.\n\nReason step by step")
    assert [message.content.startswith("Now: ") for message in ours.messages] == [False, False, False, True]


def test_the_tools_of_a_row_are_offered_with_its_prompt(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {}}}
    for tools in ([tool], json.dumps([tool])):
        rows = [{"prompt": [{"role": "user", "content": f"{n}?"}], "answer": str(n), "tools": tools} for n in range(4)]
        path = write_jsonl(tmp_path / "x.jsonl", rows)
        made = opened_by("task=jsonl", f"task.path={path}")
        example = made.train_example(0)
        assert [one["function"]["name"] for one in example.tools] == ["look"]
        assert made.env(example).tools == example.tools
    bad = [rows[0] | {"tools": ["look"]}, rows[1]]
    with pytest.raises(DataError, match=r"field 'tools.*' must be a valid dictionary"):
        opened_by("task=jsonl", f"task.path={write_jsonl(path, bad)}")


def test_a_prompt_must_ask_for_something(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    for prompt in (said, []):
        with pytest.raises(DataError, match="field 'prompt' must be messages that the assistant is to answer"):
            task_of(tmp_path, {"prompt": prompt, "answer": "{n}"})
    with pytest.raises(DataError, match=r"field 'prompt\.0\.role' must be 'system', 'user', 'assistant' or 'tool'"):
        task_of(tmp_path, {"prompt": [{"role": "robot", "content": "Hi"}], "answer": "{n}"})


def test_a_long_text_at_the_end_of_the_messages_is_no_answer(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "{n}?"}, {"role": "assistant", "content": "{n} " + "word " * 30}]
    with pytest.raises(
        DataError, match=r"field 'messages' must be messages .*belongs in a column of its own, `answer`"
    ):
        task_of(tmp_path, {"messages": said})


OWN = ["reward=custom", "reward.parts.custom.function=tests.unit.rewards.user_rewards:short"]


def test_prompts_without_answers_train_with_a_reward_that_needs_none(tmp_path: Path) -> None:
    path = file(tmp_path, {"prompt": SKY})
    with pytest.raises(ConfigError, match=r"no column known to hold answers.*\(there are prompt\)"):
        load_config(["task=jsonl", f"task.path={path}", *HF], config_name="gsm8k")
    with pytest.raises(ConfigError, match=r"reward\.parts\.correct compares with one"):
        load_config(["task=jsonl", f"task.path={path}", "reward=text", *HF], config_name="gsm8k")
    with pytest.raises(ConfigError, match=r"task\.metric=text compares with one"):
        load_config(["task=jsonl", f"task.path={path}", *OWN, "task.metric=text", *HF], config_name="gsm8k")
    made = opened_by("task=jsonl", f"task.path={path}", *OWN)
    assert made.solutions(1) == []
    assert "no answers: accuracy is the share of completions with a reward above 0" in made.notes[-1]


def test_folders_of_save_to_disk(tmp_path: Path) -> None:
    rows = [filled(VERL, n) for n in range(6)]
    Dataset.from_list(rows).save_to_disk(str(tmp_path / "one"))
    splits = {"train": Dataset.from_list(rows[:4]), "test": Dataset.from_list(rows[4:])}
    DatasetDict(splits).save_to_disk(str(tmp_path / "two"))
    for words in (
        ["task=jsonl", f"task.path={tmp_path / 'one'}"],
        ["task=hub", f"task.path={tmp_path / 'one'}"],
        ["task=hub", f"task.path={tmp_path / 'two'}", "task.eval_split=test"],
    ):
        made = opened_by(*words)
        num_train, num_held_out = made.sizes
        assert num_train + num_held_out == 6, words
        assert made.train_example(0).metadata["extra_info"]["split"] == "train"
    assert (num_train, num_held_out) == (4, 2)
    found = Hub.recognize({"path": str(tmp_path / "two"), "train_split": "train+test"})
    assert found["answer_field"] == "reward_model.ground_truth"
    for words in (["task=jsonl"], ["task=hub", "task.train_split=trian"]):
        with pytest.raises(ConfigError, match=r"two has the splits train, test: name one of them, with task=hub"):
            opened_by(*words, f"task.path={tmp_path / 'two'}")
    (tmp_path / "one" / "state.json").write_text("{}")
    with pytest.raises(DataError, match="one: cannot be loaded"):
        opened_by("task=jsonl", f"task.path={tmp_path / 'one'}")


@pytest.mark.parametrize(
    ("text", "gold", "working"),
    [
        ("24", "24", ""),
        ("48/2 = 24\n#### 24", "24", "48/2 = 24"),
        ("a #### b #### 7", "7", "a #### b"),
        ("So \\boxed{1} or \\boxed{\\frac{1}{2}}.", "\\frac{1}{2}", "So \\boxed{1} or \\boxed{\\frac{1}{2}}."),
        ("\\boxed{3", "\\boxed{3", ""),
        ("So \\boxed{ }", "", "So \\boxed{ }"),
        ("\\boxed{5} in a \\boxedsize{6}", "5", "\\boxed{5} in a \\boxedsize{6}"),
    ],
)
def test_the_gold_of_a_worked_solution(text: str, gold: str, working: str) -> None:
    assert gold_of(text) == (gold, working)


@pytest.mark.parametrize(
    "inside", ["{5}", " {5}", "{\\frac{1}{2}}", "{\\left\\{ 1, 2 \\right.}", "{ \\} }", "{5}}", "{\\\\{}}"]
)
def test_a_box_is_read_alike_in_golds_and_answers(inside: str) -> None:
    text = f"So \\boxed{inside}."
    answer = AnswerFormat(answer_in="boxed").extract(text)
    assert answer is not None
    assert gold_of(text) == (answer, text)


@pytest.mark.parametrize(
    ("golds", "kind"),
    [
        (["1", "2.5", "1,000"], "numeric"),
        (["yes", "no"], "numeric"),
        (["x^2", "3", "(1, 2)"], "math"),
        (["1", "2", "x^2"], "math"),
        (["x^2", "3", "because"], "math"),
        (["1", "2", "because"], "numeric"),  # a stray: the run names its row
        (["Paris", "the year 1984", "Berlin"], "text"),
        ([["Paris", "paris"]], "text"),
        ([None, "4"], "numeric"),
    ],
)
def test_the_kind_of_the_golds(golds: list[Any], kind: str) -> None:
    rows = [Row(f"row {n}", {"input": "?", "label": gold}) for n, gold in enumerate(golds)]
    layout = layout_of(rows, None, None)
    assert layout is not None
    assert layout.kind == kind


def test_unknown_columns_have_no_layout() -> None:
    assert layout_of([Row("row 1", {"frage": "?", "antwort": "4"})], None, None) is None
    assert layout_of([], None, None) is None


@pytest.mark.parametrize(
    "other", [{"role": "assistant", "content": None}, {"role": "assistant"}, {"role": "user", "content": "5"}, None]
)
def test_one_chat_without_an_answer_at_its_end_means_none(other: dict[str, Any] | None) -> None:
    asked, said = {"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}
    chats = [[asked, said], [] if other is None else [asked, other]]
    layout = layout_of([Row(f"row {n}", {"messages": chat}) for n, chat in enumerate(chats)], None, None)
    assert layout is not None
    assert layout.answer is None


def test_chats_of_sharegpt_are_messages(tmp_path: Path) -> None:
    turns = [("system", "Be brief."), ("human", "Hi"), ("gpt", "Hello"), ("user", "{n} + 3 ?"), ("gpt", "{right}")]
    made = task_of(tmp_path, {"conversations": [{"from": role, "value": text} for role, text in turns]})
    example = made.train_example(0)
    assert [message.role for message in example.messages] == ["system", "user", "assistant", "user"]
    assert example.messages[-1].content == f"{int(example.answer) - 3} + 3 ?"
    assert graded(made, example, example.answer).correct
    assert made.notes[-1] == "prompts in 'conversations', answers in 'conversations.-1.value' (task.metric=numeric)"


def schema(of: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": of, "description": "It does.", "parameters": parameters}}


NOTHING = {"anyOf": [{"type": "string"}, {"type": "null"}], "enum": ["a", None], "default": None}
EITHER = {"anyOf": [NOTHING, {"type": "number"}]}
TOOLS = [
    schema("add", a={"type": "integer"}, b={"type": "integer", "default": 3}),
    schema("greet", name={"type": "string"}, at={"type": "object", "properties": {"x": {"type": "integer"}}}),
    schema("note", default=NOTHING, at={"type": "object", "properties": {"y": EITHER}}),
]
ARGUMENTS = [
    ("add", {"a": 1, "b": 2}),
    ("greet", {"name": "Ann", "at": {"x": 1}}),
    ("note", {"default": "a", "at": {"y": None}}),
    ("note", {"default": None, "at": {"y": "z"}}),
]


def chats(n: int, num_calls: int = 4) -> dict[str, Any]:
    calls = [
        {"id": f"{place}", "function": {"name": name, "arguments": arguments}}
        for place, (name, arguments) in enumerate(ARGUMENTS[:num_calls])
    ]
    said = {"role": "assistant", "content": "", "reasoning_content": "I call.", "tool_calls": calls}
    messages = [{"role": "user", "content": f"{n}?"}, said, {"role": "tool", "content": "x", "tool_call_id": "0"}]
    return {"prompt": messages, "tools": TOOLS, "answer": str(n)}


@pytest.mark.parametrize("stored", ["text", "csv", "parquet", "save_to_disk", "arrow of no tools"])
def test_messages_are_the_same_however_rows_are_stored(stored: str, tmp_path: Path) -> None:
    """As JSON in a text, which is how CSV has them; or in Arrow, which gives each struct the fields of all others."""
    rows = [chats(n) for n in range(4)]
    if stored == "arrow of no tools":
        rows = [{name: value for name, value in chats(n, 2).items() if name != "tools"} for n in range(4)]
    plain = opened_by("task=jsonl", f"task.path={write_jsonl(tmp_path / 'x.jsonl', rows)}").train_example(0)
    assert plain.messages[1].reasoning == "I call."
    calls = [(call.name, call.arguments) for call in plain.messages[1].tool_calls]
    assert calls == ARGUMENTS[: len(calls)]
    path = tmp_path / f"y.{stored.partition(' ')[0].replace('arrow', 'parquet')}"
    texts = [{name: value if name == "answer" else json.dumps(value) for name, value in row.items()} for row in rows]
    if stored == "text":
        path = write_jsonl(tmp_path / "y.jsonl", texts)
    elif stored == "csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, [*texts[0]])
            writer.writeheader()
            writer.writerows(texts)
    elif stored == "save_to_disk":
        Dataset.from_list(rows).save_to_disk(path)
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    example = opened_by("task=jsonl", f"task.path={path}").train_example(0)
    assert (example.messages, example.tools) == (plain.messages, plain.tools)


def test_the_text_of_parts_is_joined_and_other_parts_are_refused(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "{n} + "}, {"type": "text", "text": "3 ?"}]
    row = {"messages": [{"role": "user", "content": parts}], "answer": "{right}"}
    example = task_of(tmp_path, row).train_example(0)
    assert example.messages[0].content == f"{int(example.answer) - 3} + 3 ?"
    parts.append({"type": "image_url", "text": "x"})
    said = r"line 1: field 'messages\.0\.content' must be text, or parts .* \(there is the text 'image_url'\), but is"
    with pytest.raises(DataError, match=said):
        task_of(tmp_path, row)


@pytest.mark.parametrize(
    ("question", "metric", "gold", "right", "wrong"),
    [
        ("Is {n} odd?", "text", "yes", ("Yes.", "true"), ("no", "False")),
        ("True or false: {n} is odd", "text", "true", ("True", "yes"), ("False", "no")),
        ("Is {n} odd?", "numeric", "yes", ("yes",), ("no",)),
    ],
)
def test_a_boolean_is_the_word_that_is_asked_for(
    tmp_path: Path, question: str, metric: str, gold: str, right: tuple[str, ...], wrong: tuple[str, ...]
) -> None:
    said = ["prompt=short_answer", f"task.metric={metric}", f"reward={metric}"]
    made = task_of(tmp_path, {"question": question, "answer": True}, *said)
    example = made.train_example(0)
    assert example.answer == gold
    assert [graded(made, example, text).correct for text in (*right, *wrong)] == [True] * len(right) + [False] * len(
        wrong
    )
