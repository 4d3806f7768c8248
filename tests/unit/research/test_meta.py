"""The meta task: meanings that are held out, supports, demonstrations, questions of a user."""

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from itertools import permutations

import pytest

from rlvr.config.compose import load_config
from rlvr.errors import ConfigError, UserError
from rlvr.research.meta import MetaTask
from rlvr.run.tasks import open_tasks
from rlvr.types import Example, Message, StopReason, TurnText


def make_task(*overrides: str) -> MetaTask:
    with open_tasks(load_config(overrides, config_name="meta"), "llama", {}) as tasks:
        assert isinstance(tasks.own, MetaTask)
        return tasks.own


TASK = make_task()


def prompt_of(example: Example) -> str:
    (message,) = example.messages
    return message.content


def supports(prompt: str) -> list[tuple[str, str]]:
    """Word and relation of each."""
    return re.findall(r"(w\d+) (r\d+) \.", prompt)


def asked(prompt: str) -> str:
    return prompt.split()[-1]


def word_of(example: Example) -> str:
    return asked(prompt_of(example))


def is_of(shown: Sequence[tuple[str, str]], *, held_out: bool) -> bool:
    """Whether any held-out (or trained) permutation has these meanings."""
    every = [p for p in permutations(range(4)) if TASK.is_held_out(p) is held_out]
    return any(all(relation == f"r{p[int(word[1:])]}" for word, relation in shown) for p in every)


def test_an_example_asks_what_its_supports_tell() -> None:
    examples = [example for example in map(TASK.train_example, range(100)) if example.metadata["num_supports"] == 4]
    assert examples
    for example in examples:
        prompt = prompt_of(example)
        assert re.fullmatch(r"(e\d+ w\d r\d \. ){4}<q> e\d+ w\d", prompt)
        assert {word for word, _ in supports(prompt)} == {"w0", "w1", "w2", "w3"}
        assert example.answer == dict(supports(prompt))[asked(prompt)]
        assert TASK.tags(example) == ("k_4",)


def test_pitfall_38_a_latin_square_of_meanings_is_held_out() -> None:
    held_out = [p for p in permutations(range(4)) if TASK.is_held_out(p)]
    assert held_out == [(0, 1, 2, 3), (1, 2, 3, 0), (2, 3, 0, 1), (3, 0, 1, 2)]
    for word in range(4):
        assert {p[word] for p in held_out} == {0, 1, 2, 3}
    trained = [TASK.train_example(index) for index in range(600)]
    shown = [supports(prompt_of(one)) for one in trained if one.metadata["num_supports"] == 4]
    assert not any(is_of(one, held_out=True) for one in shown)
    assert len({tuple(sorted(one)) for one in shown}) == 20
    taught = [supports(TASK.demonstration(index, 0.0)[0]) for index in range(300)]
    assert all(is_of(one, held_out=False) for one in taught)
    tested = [prompt_of(one) for one in TASK.eval_examples(300)]
    assert all(is_of(supports(prompt), held_out=True) for prompt in tested)


def test_evaluation_has_equally_many_of_each_number_of_supports() -> None:
    examples = TASK.eval_examples(500)
    assert len({example.id for example in examples}) == 500
    assert set(Counter(TASK.tags(example) for example in examples).values()) == {100}
    assert TASK.eval_examples(20) == examples[:20] == make_task("seed=1").eval_examples(20)
    without = [example for example in examples if example.metadata["num_supports"] == 0]
    assert max(Counter(example.answer for example in without).values()) < 40  # no relation is likelier


def test_few_different_examples_end_the_evaluation() -> None:
    task = make_task("task.num_entities=1", "task.max_supports=0", "task.num_relations=3")
    assert len(task.eval_examples(100)) == 9  # a word and its meaning


def test_pitfall_36_the_stream_is_a_function_of_seed_and_index() -> None:
    forward = [TASK.train_example(index) for index in range(30)]
    assert [make_task().train_example(index) for index in reversed(range(30))] == forward[::-1]
    assert [make_task("seed=1").train_example(index) for index in range(30)] != forward


def test_shuffled_supports_tell_nothing() -> None:
    task = make_task("task.shuffled_supports=true")
    for examples in (task.eval_examples(1000), list(map(task.train_example, range(2000)))):
        shown = [
            (example.answer, dict(supports(prompt_of(example))), asked(prompt_of(example))) for example in examples
        ]
        right = [meaning[word] == answer for answer, meaning, word in shown if word in meaning]
        assert len(right) > 300
        assert sum(right) / len(right) == pytest.approx(0.25, abs=0.05)
    assert all(is_of(supports(prompt_of(one)), held_out=True) for one in task.eval_examples(300))
    assert [task.demonstration(index, 1.0) for index in range(20)] == [
        TASK.demonstration(index, 1.0) for index in range(20)
    ]


def test_a_worked_demonstration_also_teaches_the_relations_of_its_supports() -> None:
    parts, plain = TASK.demonstration(0, 1.0), TASK.demonstration(0, 0.0)
    assert parts == ("e0 w3", "r1", ". e11 w0", "r0", ". e12 w2", "r2", ". <q> e10 w0", "<ans> r0 </ans> <eoe>")
    assert plain == ("e0 w3 r1 . e11 w0 r0 . e12 w2 r2 . <q> e10 w0", "<ans> r0 </ans> <eoe>")
    for index in range(50):
        parts, (prompt, guess) = TASK.demonstration(index, 1.0), TASK.demonstration(index, 0.0)
        assert " ".join(parts[:-1]) == prompt  # the prompt does not depend on the share
        assert guess == "<ans> r0 </ans> <eoe>"
        assert index % 4 == 0 or asked(prompt) in dict(supports(prompt))
        if asked(prompt) in dict(supports(prompt)):
            assert parts[-1] == f"<ans> {dict(supports(prompt))[asked(prompt)]} </ans> <eoe>"
    worked = sum(len(TASK.demonstration(index, 0.3)) != 2 for index in range(1000) if index % 4)
    assert worked / 750 == pytest.approx(0.3, abs=0.05)


def test_three_in_four_demonstrations_repeat_one_to_all_words() -> None:
    words = [supports(TASK.demonstration(index, 0.0)[0]) for index in range(400)]
    assert {len(shown) for index, shown in enumerate(words) if index % 4} == {8}
    assert {len(shown) for index, shown in enumerate(words) if not index % 4} == {0, 1, 2, 3, 4}
    different = Counter(len(dict(shown)) for index, shown in enumerate(words) if index % 4)
    assert min(different.values()) > 50


def test_more_supports_than_words_repeat_any_of_them() -> None:
    task = make_task("task.max_supports=8")
    shown = [supports(prompt_of(task.train_example(index))) for index in range(300)]
    most = [one for one in shown if len(one) == 8]
    assert all(len({word for word, _ in one[:4]}) == 4 for one in most)
    assert len({word for one in most for word, _ in one[4:]}) == 4


def test_the_answer_between_the_marks_is_right() -> None:
    example = TASK.train_example(0)
    wrong = "r0" if example.answer != "r0" else "r1"

    def score(text: str) -> tuple[float, bool]:
        turn = TurnText(prompt="", completion=text, text=text, stop_reason=StopReason.STOP, num_tokens=4)
        env = TASK.env(example)

        async def both() -> tuple[float, bool]:
            await env.start()
            return (await env.score([turn])).value, (await TASK.grade(example, [turn])).correct

        return asyncio.run(both())

    assert score(f"<ans> {example.answer} </ans>") == (1.0, True)
    assert score(f"<ans> {wrong} </ans>") == (0.0, False)
    assert score(example.answer) == (0.0, False)


@pytest.mark.parametrize(
    ("text", "answer", "num"),
    [
        ("e1 w2 r3 . <q> e7 w2", "r3", 1),
        ("  e1 w2 r3 .\n e4 w1 r0 . e1 w2 r3 . <q> e7 w1", "r0", 3),
        ("e1 w2 r3 . <q> e7 w0", "", 1),
        ("<q> e7 w0", "", 0),
    ],
)
def test_a_users_question_is_answered_by_its_supports(text: str, answer: str, num: int) -> None:
    example = TASK.example(text)
    assert (example.answer, TASK.tags(example)) == (answer, (f"k_{num}",))
    assert prompt_of(example) == " ".join(text.split())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "e7 w2",
        "e1 w2 r3 <q> e7 w2",
        "e1 w2 r3 . <q> e7 w4",
        "e1 w2 r9 . <q> e7 w2",
        "e1 w2 r3 . e1 w2 r1 . <q> e7 w2",
        "e1 w2 r3 . e1 w1 r3 . <q> e7 w2",
        "x" * 10_000,
    ],
)
def test_other_questions_are_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"is no question of task=meta: ask e1 w2 r3 \. <q> e7 w2") as caught:
        TASK.example(text)
    assert len(str(caught.value)) < 500


def test_a_context_that_is_too_short_for_a_demonstration_is_refused() -> None:
    def words(messages: Sequence[Message], tools: object = ()) -> int:
        return sum(len(message.content.split()) for message in messages)

    make_task().limit_prompts(words, 35)  # 8 x 4 + 3
    with pytest.raises(ConfigError, match=r"have 35 tokens, but 34 are left for them; .*task.demonstrated_supports"):
        make_task().limit_prompts(words, 34)


def test_demonstrations_for_any_model_answer_right() -> None:
    for one in TASK.demonstrations(20):
        assert one.turns == (f"<ans> {one.example.answer} </ans>",)
