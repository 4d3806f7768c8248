from typing import Any

import numpy as np
import pytest

from rlvr.data.rows import DataError
from rlvr.errors import ConfigError
from rlvr.models.scratch import build_tokenizer
from rlvr.tasks.dataset import DatasetTask
from tests.unit.tasks import yielding
from tests.unit.tasks.data_tasks import graded, held_out_ids, ids, make, scored
from tests.unit.tasks.yielding import WORDS, token_ids

HERE = "tests.unit.tasks.yielding"


def generated(function: str, seed: int = 0, **changes: Any) -> DatasetTask:
    return make({"name": "generator", "source": f"{HERE}:{function}", **changes}, seed=seed)


def asked(task: DatasetTask, num: int) -> list[str]:
    return [task.train_example(index).messages[-1].content for index in range(num)]


def test_a_function_with_settings_is_a_task() -> None:
    made = generated("sums", settings={"size": 40}, eval_share=0.2, metric="numeric")
    held_out, trained = held_out_ids(made), {*ids(made, range(200))}
    assert 2 <= len(held_out) <= 16
    assert len(held_out | trained) == len(held_out) + len(trained) == 40
    example = made.eval_examples(1)[0]
    assert example.answer == str(int(example.messages[0].content.split()[2]) + 1)
    assert graded(made, example, f" {example.answer}.0").correct
    assert scored(made, example, example.answer).value == 1.0
    assert example.metadata == {"task": "generator"}


def test_pitfall_37_an_endless_generator_is_replayed() -> None:
    straight = ids(generated("endless"), range(60))
    assert len(set(straight)) == 60
    assert ids(generated("endless"), range(37, 60)) == straight[37:]


def test_an_array_of_examples_is_read_as_a_list_is() -> None:
    """Whose truth value is an error."""
    made = generated("in_an_array", settings={"size": 40}, eval_settings={"start": 30})
    assert {*asked(made, 100)} == {f"What is {n} plus one?" for n in range(30)}


def test_a_demonstration_is_used_word_for_word() -> None:
    made = generated("worked")
    prompt, completion = made.demonstration(0, 1.0)
    number = int(prompt.split()[1].rstrip("?"))
    assert completion == f"{number} and {number} is {2 * number}"
    assert made.demonstration(0, 0.0)[1] == str(2 * number)


def test_held_out_examples_may_come_from_other_settings() -> None:
    made = generated("sums", settings={"size": 40}, eval_settings={"start": 30, "size": 60})
    assert {*asked(made, 200)} == {f"What is {n} plus one?" for n in range(30)}
    assert [one.answer for one in made.eval_examples(100)] == [str(n + 1) for n in range(30, 60)]
    made = generated("sums", settings={"size": 40}, eval_settings={"start": 30})  # the others stay
    assert [one.answer for one in made.eval_examples(100)] == [str(n + 1) for n in range(30, 40)]
    with pytest.raises(DataError, match=r"task.source=.*:sums, held out: TypeError: .*'sise'"):
        generated("sums", eval_settings={"sise": 1})


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("nothing", "yields no example"),
        ("unseeded", "called again it begins with another example"),
        ("once", "called again it begins with another example"),
        ("no_iterator", "TypeError: 'int' object is not iterable"),
    ],
)
def test_examples_must_exist_and_repeat(function: str, said: str) -> None:
    yielding.ONCE = iter([("a?", "1"), ("b?", "2"), ("c?", "3")])
    with pytest.raises(DataError) as error:
        generated(function)
    assert f"task.source={HERE}:{function}" in str(error.value)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("no_such_module_here:f", "no_such_module_here"),
        (f"{HERE}:sum", "did you mean sums?"),
        (f"{HERE}:WORDS", "has WORDS, which is no function; there are sums"),
    ],
)
def test_a_bad_import_path_is_an_error_naming_it(source: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        make({"name": "generator", "source": source})
    assert said in str(error.value)
    assert "task.source" in str(error.value)


def check_bad_example(good: Any, bad: Any, said: str, **changes: Any) -> None:
    task = {"name": "generator", "source": "__main__:items", "eval_share": 0.5, **changes}
    with pytest.raises(DataError) as error:
        asked(make(task, functions={"__main__:items": lambda: [*good, bad]}), 3)
    assert f"example 3: {said}" in str(error.value)


NO_FIELDS = "must be (question, answer), (question, answer, demonstration) or a dict with these, but is"


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("just text", f"{NO_FIELDS} the text 'just text'"),
        (5, f"{NO_FIELDS} the number 5"),
        (("q",), f"{NO_FIELDS} a list of 1"),
        (("q", "a", "d", "m"), f"{NO_FIELDS} a list of 4"),
        ({"question": "q", "answer": "a", "reward": 1}, "field 'reward' must not be there"),
        ({"question": "q"}, "field 'answer' is missing; there are 'question'"),
        (("q", None), "field 'answer' must be an answer, but is null"),
        ((" ", "a"), "field 'question' must be a text that is not blank"),
        ({"question": "q", "answer": "a", "metadata": 5}, "field 'metadata' must be a valid dictionary, but is"),
        (("q", [True]), "field 'answer' must be a text, a number or a list of them (there is the boolean True), but"),
    ],
    ids=str,
)
def test_a_bad_example_is_an_error_naming_it(bad: Any, said: str) -> None:
    check_bad_example([("good?", "yes"), ("better?", "yes")], bad, said)


NO_IDS = "must be an array of whole numbers from 0 to 14, the places in task.vocabulary, in one dimension, but is"


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (np.array([1.0, 2.0]), f"{NO_IDS} float64[2]"),
        (np.array([[1, 2]]), f"{NO_IDS} int64[1, 2]"),
        (np.array([1, 99]), f"{NO_IDS} int64[2]"),
        (np.array([], dtype=np.int64), "must be a text that is not blank"),
        ("<boe> three =", "the word 'three' is not in task.vocabulary"),
    ],
)
def test_bad_token_ids_and_words_are_errors(bad: Any, said: str) -> None:
    good = [(np.array([1, 5, 3]), np.array([6])), (np.array([3, 7, 5]), "8 9")]
    said = said if said.startswith("the word") else f"field 'question' {said}"
    check_bad_example(good, (bad, "1"), said, vocabulary=WORDS)


def test_a_later_failure_is_an_error_with_its_message() -> None:
    made = generated("late_failure")
    with pytest.raises(DataError, match=r"example 61: RuntimeError: the \\x1b\[31mdisk\\nis gone"):
        asked(made, 60)


@pytest.mark.parametrize("library", ["numpy", "torch", "jax.numpy"])
def test_arrays_of_token_ids_give_the_same_ids_back(library: str) -> None:
    made = generated("arrays", settings={"library": library}, vocabulary=WORDS, eval_share=0.3)
    tokenizer = build_tokenizer(made.vocabulary or ())
    rows = {tuple(question): (answer, demonstration) for question, answer, demonstration in token_ids()}
    examples = {e.id: e for e in [*made.eval_examples(25), *(made.train_example(i) for i in range(25))]}
    assert len(examples) == 25
    for example in examples.values():
        prompt = tuple(tokenizer.encode(example.messages[-1].content, add_special_tokens=False))
        answer, _ = rows[prompt]
        assert [*tokenizer.encode(example.answer, add_special_tokens=False), 2] == answer  # <eoe> is sampled
        assert graded(made, example, example.answer).correct
    prompt, completion = made.demonstration(3, 1.0)
    _, demonstration = rows[tuple(tokenizer.encode(prompt, add_special_tokens=False))]
    assert [*tokenizer.encode(completion, add_special_tokens=False), 0] == demonstration  # but for the padding


@pytest.mark.parametrize("vocabulary", [("<pad>", "<boe>", "1"), (*WORDS, "1"), (*WORDS, "two words")])
def test_a_vocabulary_no_tokenizer_can_have_is_an_error(vocabulary: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="needs <pad>, <boe>, <eoe>, and each word once"):
        generated("arrays", settings={"library": "numpy"}, vocabulary=vocabulary)


def test_functions_of_a_script_are_found_by_name() -> None:
    made = make(
        {"name": "generator", "source": "__main__:mine"},
        functions={"__main__:mine": lambda: [(f"{n}?", str(n)) for n in range(20)]},
    )
    assert len(set(asked(made, 20))) > 10
