"""What answers at a state: in the prompt's own format, with the answer's tokens marked."""

from typing import Any

import pytest

from rlvr.chat.rendering import Chat
from rlvr.config.compose import load_config
from rlvr.core.value import State, states
from rlvr.models.scratch import build_tokenizer
from rlvr.run.tasks import open_tasks
from rlvr.tasks.base import Task
from rlvr.tasks.gold import gold_branch, gold_branches
from tests.unit.chat.tokenizers import byte_tokenizer
from tests.unit.core.fakes import completion, episode
from tests.unit.tasks.data_tasks import FIXTURES, make
from tests.unit.tasks.multihop_episodes import make_qa

QUESTIONS = {"name": "jsonl", "path": str(FIXTURES / "gsm8k" / "train.jsonl"), "metric": "text"}
TEXT = Chat(byte_tokenizer(), ())


def words(name: str) -> tuple[Task, Chat]:
    with open_tasks(load_config([], config_name=name), "llama", {}) as tasks:
        task = tasks.own
    assert task.vocabulary is not None
    return task, Chat(build_tokenizer(task.vocabulary), task.stop_words, tool_format="words")


def marked(task: Task, chat: Chat, answer: str, before: str = "", tools: Any = ()) -> tuple[str, str]:
    """The completion, and its counted part."""
    branch = gold_branch(task, chat, answer, before, tools)
    assert branch is not None
    return chat.decode(branch.ids), chat.decode([branch.ids[place] for place in branch.counted])


def test_tasks_made_of_words() -> None:
    two_hop, rpn = words("two_hop"), words("rpn_test")
    assert marked(*two_hop, "c4") == ("<ans> c4 </ans> <eoe>", "c4")
    assert marked(*rpn, "7") == ("7 <eoe>", "7")
    assert marked(*rpn, "7", "3 4 +") == ("= 7 <eoe>", "7")
    assert marked(*rpn, "7", "3 4 + =") == ("7 <eoe>", "7")


SOLUTION = {"answer_in": "solution", "markers": "think"}


@pytest.mark.parametrize(
    ("prompt", "before", "expected"),
    [
        ({"answer_in": "whole"}, "", "{}"),
        ({"answer_in": "hash", "system": "####"}, "", "#### {}"),
        ({"answer_in": "hash", "system": "####"}, "It is 71 + 1", "\n#### {}"),
        ({"answer_in": "hash", "system": "####"}, "It is 71 + 1\n", "#### {}"),
        ({"answer_in": "boxed", "system": r"\boxed"}, "", r"\boxed{{{}}}"),
        (SOLUTION, "", "<answer>{}</answer>"),
        (SOLUTION, "<think>71 and", "</think><answer>{}</answer>"),
        (SOLUTION, "<think>71 and</think>", "<answer>{}</answer>"),
    ],
)
def test_answers_in_text(prompt: dict[str, Any], before: str, expected: str) -> None:
    system = prompt.get("system") or "{solution_start} {solution_end}"
    task = make(QUESTIONS, prompt={**prompt, "system": system})
    for answer in ("72", "seventy-two é"):
        said, counted = marked(task, TEXT, answer, before)
        assert said == expected.format(answer) + "<|im_end|>"
        assert counted == answer


@pytest.mark.parametrize(("before", "rest"), [("", "Oslo"), ("Os", "lo"), (" Osl", "o"), ("Bergen", "Oslo")])
def test_a_bare_answer_goes_on_where_it_has_begun(before: str, rest: str) -> None:
    task = make(QUESTIONS, prompt={"answer_in": "whole", "system": "{solution_start} {solution_end}"})
    assert marked(task, TEXT, "Oslo", before) == (f"{rest}<|im_end|>", rest)
    end = gold_branch(task, TEXT, "Oslo", "Oslo")
    assert end is not None
    assert TEXT.decode([end.ids[place] for place in end.counted]) == "<|im_end|>"


def test_a_call_answers_where_the_prompt_asks_for_one() -> None:
    task = make_qa()
    tools = task.env(task.train_example(0)).tools
    said, counted = marked(task, TEXT, 'the "Old" Löwe', tools=tools)
    assert '"final_answer": "the \\"Old\\" Löwe"' in said
    assert counted == 'the \\"Old\\" Löwe'
    assert gold_branch(task, TEXT, "") is None


def test_the_answer_is_marked_where_it_is_given() -> None:
    """And not where the format has the same word."""
    task = make_qa()
    tools = task.env(task.train_example(0)).tools
    branch = gold_branch(task, TEXT, "final", tools=tools)
    assert branch is not None
    assert TEXT.decode(branch.ids[: branch.start]).endswith('"final_answer": "')
    assert TEXT.decode([branch.ids[place] for place in branch.counted]) == "final"


def test_an_answer_that_the_tokenizer_spells_otherwise_counts_with_its_marks() -> None:
    assert marked(*words("two_hop"), "c4  c5") == ("<ans> c4 c5 </ans> <eoe>", "<ans> c4 c5 </ans>")


def test_each_state_has_its_branch() -> None:
    task, chat = words("rpn_test")
    ids = chat.encode_text("3 4 + = 7")
    one = episode((chat.encode_text("<boe> 3 4 + ="), completion(*ids)))
    found = gold_branches(task, chat, one, "7", states(one, 2))
    assert found is not None
    said = {state: chat.decode(branch.ids) for state, branch in found.items()}
    assert said == {State(turn=0): "7 <eoe>", State(turn=0, tokens=2): "= 7 <eoe>", State(turn=0, tokens=4): "7 <eoe>"}
    assert gold_branches(task, chat, one, "", states(one)) is None
