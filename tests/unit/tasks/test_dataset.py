import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from rlvr.errors import ConfigError, UserError
from rlvr.tasks.problems import fingerprint
from rlvr.types import Message
from tests.unit.tasks.data_tasks import FIXTURES, graded, make, scored, solved, sums, write_jsonl

TASK = {"name": "gsm8k", "path": str(FIXTURES / "gsm8k")}


def shots(messages: Sequence[Message]) -> list[tuple[str, str]]:
    turns = [message for message in messages if message.role != "system"][:-1]
    return [(question.content, answer.content) for question, answer in zip(turns[::2], turns[1::2], strict=True)]


def words(messages: Sequence[Message], tools: Sequence[object] = ()) -> int:
    return sum(len(message.content.split()) for message in messages)


def test_shown_examples_are_solved_as_asked_for_and_never_the_example_itself_or_held_out() -> None:
    made = make(TASK, prompt={"few_shot": 3})
    train = [made.train_example(index) for index in range(12)]
    held_out = made.eval_examples(6)
    hidden = {fingerprint(example.messages[-1].content) for example in held_out}
    for example in [*train, *held_out]:
        shown = shots(example.messages)
        keys = [fingerprint(question) for question, _ in shown]
        assert len(set(keys)) == 3
        assert fingerprint(example.messages[-1].content) not in keys
        assert not hidden & set(keys)
        for _, completion in shown:
            assert re.fullmatch(
                r"<start_working_out>.+<end_working_out><SOLUTION>-?\d+</SOLUTION>", completion, re.DOTALL
            )


def test_pitfall_38_examples_shown_before_held_out_questions_do_not_depend_on_the_seed() -> None:
    made, other = make(TASK, seed=0, prompt={"few_shot": 3}), make(TASK, seed=1, prompt={"few_shot": 3})
    assert made.eval_examples(6) == other.eval_examples(6)
    assert len({tuple(shots(example.messages)) for example in made.eval_examples(6)}) == 1


def test_pitfall_38_what_another_task_holds_out_is_not_shown_either(tmp_path: Path) -> None:
    other = make(TASK)
    hidden = {fingerprint(example.messages[-1].content) for example in other.eval_examples(6)}
    copies = [{"question": e.messages[-1].content, "answer": e.answer} for e in other.eval_examples(6)]
    path = write_jsonl(tmp_path / "copy.jsonl", [*sums(20), *copies])
    made = make({"name": "jsonl", "path": str(path), "eval_share": 0.01}, prompt={"few_shot": 8})
    made.hold_out_for(other)
    examples = [*map(made.train_example, range(20)), *made.eval_examples(5)]
    assert not hidden & {fingerprint(question) for e in examples for question, _ in shots(e.messages)}


def test_pitfall_36_demonstrations_come_in_an_order_of_their_own() -> None:
    made = make(TASK)
    trained = ["\n".join(m.content for m in made.train_example(index).messages) for index in range(12)]
    shown = [made.demonstration(index, 1.0)[0] for index in range(12)]
    assert sorted(shown) == sorted(trained)
    assert shown != trained


def test_too_many_shown_examples_are_an_error_with_the_numbers() -> None:
    make(TASK, prompt={"few_shot": 11})
    with pytest.raises(ConfigError, match=r"prompt\.few_shot=12: gsm8k has 12 different .* and 13 are needed"):
        make(TASK, prompt={"few_shot": 12})


def test_long_prompts_are_left_out_counted_and_noted() -> None:
    made = make(TASK)
    lengths = [words(made.train_example(index).messages) for index in range(12)]
    limit = sorted(lengths)[8]
    num_long = sum(length > limit for length in lengths)
    made.limit_prompts(words, limit)
    assert f"{num_long} of 12 training examples have prompts of more than {limit} tokens: left out" in made.notes
    assert max(words(made.train_example(index).messages) for index in range(100)) <= limit
    assert all(words(example.messages) <= limit for example in made.eval_examples(100))


def test_a_limit_that_leaves_nothing_is_an_error() -> None:
    with pytest.raises(UserError, match=r"the prompts of all 12 training examples have more than 5 tokens"):
        make(TASK).limit_prompts(words, 5)


def test_a_question_of_ones_own_is_asked_in_the_same_way_and_has_no_answer() -> None:
    made = make(TASK)
    example = made.example("  Six times\x00 seven? ")
    assert example.messages[0] == made.eval_examples(1)[0].messages[0]
    assert example.messages[1].content == "Six times seven?"
    grade = graded(made, example, solved("42"))
    assert (grade.answer, grade.correct) == ("42", False)
    assert graded(made, example, "42").answer is None
    with pytest.raises(UserError, match="blank"):
        made.example(" \n")


def test_a_completion_that_cannot_be_read_is_invalid_and_not_zero() -> None:
    made = make(TASK)
    example = made.train_example(0)
    for text in ("", "0", "The answer is 0.", solved("many"), solved("0") + solved("0")):
        assert graded(made, example, text).answer is None
        assert scored(made, example, text).status == "invalid"
