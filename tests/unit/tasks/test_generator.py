from typing import Any

import pytest

from rlvr.errors import ConfigError
from rlvr.models.scratch import build_tokenizer
from rlvr.rows import DataError
from rlvr.tasks.dataset import DatasetTask
from tests.unit.tasks import yielding
from tests.unit.tasks.data_tasks import graded, ids, make, scored
from tests.unit.tasks.yielding import WORDS, token_ids

HERE = "tests.unit.tasks.yielding"


def generated(function: str, seed: int = 0, **changes: Any) -> DatasetTask:
    return make({"name": "generator", "source": f"{HERE}:{function}", **changes}, seed=seed)


def asked(task: DatasetTask, num: int) -> list[str]:
    return [task.train_example(index).messages[-1].content for index in range(num)]


def test_a_function_with_settings_is_a_task() -> None:
    made = generated("sums", settings={"size": 40}, eval_share=0.2, metric="numeric")
    held_out = made.eval_examples(40)
    assert 2 <= len(held_out) <= 16
    assert len(set(asked(made, 200))) == 40 - len(held_out)
    assert not set(ids(made, range(200))) & {example.id for example in held_out}
    example = held_out[0]
    assert example.answer == str(int(example.messages[0].content.split()[2]) + 1)
    assert graded(made, example, f" {example.answer}.0").correct
    assert scored(made, example, example.answer).value == 1.0
    assert example.metadata == {"task": "generator"}


def test_pitfall_37_an_endless_generator_is_replayed_to_where_it_was() -> None:
    straight = asked(generated("endless"), 60)
    assert len(set(straight)) == 60
    resumed = generated("endless")
    assert [resumed.train_example(index).messages[-1].content for index in range(37, 60)] == straight[37:]


def test_a_demonstration_is_used_word_for_word() -> None:
    made = generated("worked")
    prompt, completion = made.demonstration(0, 1.0)
    number = int(prompt.split()[1].rstrip("?"))
    assert completion == f"{number} and {number} is {2 * number}"
    assert made.demonstration(0, 0.0)[1] == str(2 * number)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("nothing", "yields no example"),
        ("unseeded", "called again it begins with another example"),
        ("once", "called again it begins with another example"),
        ("no_iterator", "TypeError: 'int' object is not iterable"),
    ],
)
def test_a_function_that_cannot_be_repeated_or_gives_nothing_is_an_error(function: str, said: str) -> None:
    yielding.ONCE = iter([("a?", "1"), ("b?", "2"), ("c?", "3")])
    with pytest.raises(DataError) as error:
        generated(function)
    assert f"task.source={HERE}:{function}" in str(error.value)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("source", "settings", "said"),
    [
        ("no_such_module_here:f", {}, "no_such_module_here"),
        (f"{HERE}:sum", {}, "did you mean sums?"),
        (f"{HERE}:WORDS", {}, "has WORDS, which is no function; there are sums"),
    ],
)
def test_a_bad_import_path_or_setting_is_an_error_naming_it(source: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        make({"name": "generator", "source": source, "settings": settings})
    assert said in str(error.value)
    assert "task.s" in str(error.value)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("text", "but is the text 'just text'"),
        ("number", "but is the number 5"),
        ("one", "but is a list of 1"),
        ("four", "but is a list of 4"),
        ("field", "field 'reward' must not be there"),
        ("missing", "field 'answer' is missing; there are 'question'"),
        ("null", "field 'answer' must be an answer, but is null"),
        ("blank", "field 'question' must be a text that is not blank"),
        ("metadata", "field 'metadata' must be a valid dictionary, but is the number 5"),
        ("bool", "field 'answer' must be a text, a number or a list of them, but is the boolean True"),
    ],
)
def test_something_else_than_an_example_is_an_error_naming_which(kind: str, said: str) -> None:
    with pytest.raises(DataError) as error:
        asked(generated("items", settings={"kind": kind}, eval_share=0.5), 3)
    assert "example 3: " in str(error.value)
    assert said in str(error.value)


def test_a_generator_that_fails_later_is_an_error_with_its_message() -> None:
    made = generated("late_failure")
    with pytest.raises(DataError, match=r"example 61: RuntimeError: the \\x1b\[31mdisk\\nis gone"):
        asked(made, 60)


@pytest.mark.parametrize("library", ["numpy_arrays", "torch_arrays", "jax_arrays"])
def test_arrays_of_token_ids_come_through_dlpack_and_give_the_same_ids_back(library: str) -> None:
    made = generated(library, vocabulary=WORDS, eval_share=0.3)
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


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("float", "in one dimension, but is float64[2]"),
        ("matrix", "must be an array of whole numbers from 0 to 14, the places in task.vocabulary, in one dimension"),
        ("unknown", "must be an array of whole numbers from 0 to 14"),
        ("empty", "must be a text that is not blank"),
    ],
)
def test_arrays_that_are_no_token_ids_are_an_error(kind: str, said: str) -> None:
    with pytest.raises(DataError) as error:
        asked(generated("arrays", settings={"kind": kind}, vocabulary=WORDS, eval_share=0.5), 3)
    assert "example 3: field 'question'" in str(error.value)
    assert said in str(error.value)


def test_texts_may_be_made_of_the_words_and_of_no_others() -> None:
    made = generated("words", settings={"kind": "good"}, vocabulary=WORDS, eval_share=0.5)
    assert made.vocabulary == WORDS
    with pytest.raises(DataError, match=r"the word 'three' is not in task\.vocabulary"):
        generated("words", settings={"kind": "bad"}, vocabulary=WORDS, eval_share=0.5).eval_examples(3)


@pytest.mark.parametrize("vocabulary", [("<pad>", "<boe>", "1"), (*WORDS, "1"), (*WORDS, "two words")])
def test_a_vocabulary_that_no_tokenizer_can_be_made_of_is_an_error(vocabulary: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="needs <pad>, <boe>, <eoe>, and each word once"):
        generated("numpy_arrays", vocabulary=vocabulary)


def test_functions_of_a_script_are_given_by_their_name() -> None:
    made = make(
        {"name": "generator", "source": "__main__:mine"},
        functions={"__main__:mine": lambda: [(f"{n}?", str(n)) for n in range(20)]},
    )
    assert len(set(asked(made, 20))) > 10
