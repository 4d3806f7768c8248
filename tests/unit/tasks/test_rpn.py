import random
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from rlvr.errors import ConfigError
from rlvr.rewards.expressions import ExpressionError, derivation, evaluate
from rlvr.seeding import derive_seed
from rlvr.tasks.rpn import Rpn, RpnTask
from rlvr.types import Example, Message
from tests.unit.rewards.attempts import wrong_settings
from tests.unit.tasks.settings import INTEGERS, MODULAR, make_reward, make_task, score


def shape_of(expression: str) -> str:
    return "".join("o" if word in "+-*" else "n" for word in expression.split())


def is_uniform(counts: list[int], weights: list[float] | None = None) -> bool:
    """True unless a chi-square test at 0.1 % says otherwise."""
    total, weights = sum(counts), weights or [1.0] * len(counts)
    return chisquare(counts, [total * weight / sum(weights) for weight in weights]).pvalue > 0.001


def test_an_example_is_one_user_message_ending_in_equals() -> None:
    assert make_task(modulus=13, operand_range=(0, 12)).example("4 0 1 + +") == Example(
        id="4 0 1 + +",
        messages=(Message(role="user", content="<boe> 4 0 1 + + ="),),
        answer="5",
        metadata={"num_operators": 2, "expression": "4 0 1 + +"},
    )


def test_the_stream_is_a_function_of_seed_and_index_only() -> None:
    task, again = make_task(seed=3), make_task(seed=3)
    forward = [task.train_example(index) for index in range(50)]
    assert [again.train_example(index) for index in reversed(range(50))] == forward[::-1]
    assert [make_task(seed=4).train_example(index) for index in range(50)] != forward
    assert len({example.id for example in forward}) > 40


def test_pitfall_36_training_and_demonstrations_have_own_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []

    def recorded(*parts: Any) -> int:
        seeds.append(derive_seed(*parts))
        return seeds[-1]

    monkeypatch.setattr("rlvr.tasks.rpn.derive_seed", recorded)
    task = make_task()
    seeds.clear()  # the check of the settings draws too
    prompts = [task.train_example(index).messages[0].content for index in range(30)]
    assert [task.demonstration(index, 1.0)[0] for index in range(30)] != prompts
    assert len(seeds) == len(set(seeds)) == 60


@pytest.mark.parametrize(("num_operators", "num_shapes"), [(3, 5), (4, 14)])
def test_tree_shapes_are_uniform(num_operators: int, num_shapes: int) -> None:
    task = make_task(complexity_range=(num_operators, num_operators), max_prompt_tokens=11)
    counts = Counter(shape_of(task.train_example(index).id) for index in range(4000))
    assert len(counts) == num_shapes
    assert is_uniform(list(counts.values()))


def test_operands_and_operators_are_uniform() -> None:
    task = make_task(complexity_range=(3, 3))
    words = Counter(word for index in range(3000) for word in task.train_example(index).id.split())
    assert is_uniform([words[str(operand)] for operand in range(7)])
    assert is_uniform([words[operator] for operator in "+-*"])


def test_weights_are_the_shares_of_each_number_of_operators() -> None:
    def sizes(examples: list[Example]) -> list[int]:
        counts = Counter(example.metadata["num_operators"] for example in examples)
        return [counts[size] for size in (1, 2, 3)]

    task = make_task(complexity_weights=(1, 2, 4), eval_complexity_weights=(3, 1, 2), **(INTEGERS | {"shape": "chain"}))
    assert is_uniform(sizes([task.train_example(index) for index in range(3000)]), [1, 2, 4])
    assert is_uniform(sizes([make_task().train_example(index) for index in range(3000)]))
    assert is_uniform(sizes(make_task(modulus=97, operand_range=(0, 96)).eval_examples(600)))
    weighted = make_task(modulus=97, operand_range=(0, 96), eval_complexity_weights=(3, 1, 2))
    assert is_uniform(sizes(weighted.eval_examples(600)), [3, 1, 2])


def test_pitfall_38_held_out_expressions_are_never_trained_on() -> None:
    held_out = {example.id for example in make_task().eval_examples(500)}
    assert len(held_out) == 500
    for seed in range(5):
        task = make_task(seed=seed)
        trained = {task.train_example(index).id for index in range(2000)}
        shown = {" ".join(task.demonstration(index, 0.5)[0].split()[1:-1]) for index in range(2000)}
        assert not held_out & (trained | shown)
        assert not any(map(task.is_held_out, trained | shown))


def test_pitfall_38_held_out_examples_are_the_same_for_every_run() -> None:
    first = make_task(seed=0).eval_examples(200)
    assert make_task(seed=1, complexity_weights=(5, 1, 1)).eval_examples(200) == first
    assert make_task(seed=0).eval_examples(50) == first[:50]
    assert all(make_task().is_held_out(example.id) for example in first)
    assert [example.id for example in first[:3]] == ["3 2 - 3 +", "0 4 +", "1 2 - 5 +"]  # pinned


def test_the_hash_holds_out_the_share_asked_for() -> None:
    less, more = (make_task(modulus=97, operand_range=(0, 96), held_out_share=share) for share in (0.05, 0.1))
    rng = random.Random(0)
    expressions = [f"{rng.randrange(97)} {rng.randrange(97)} {rng.randrange(97)} + *" for _ in range(20000)]
    assert sum(more.is_held_out(expression) for expression in expressions) == pytest.approx(2000, abs=150)
    assert not any(less.is_held_out(expression) > more.is_held_out(expression) for expression in expressions)


def test_a_small_space_gives_what_it_has_and_no_duplicates() -> None:
    task = make_task(complexity_range=(1, 1))
    every = [f"{a} {b} {operator}" for a in range(7) for b in range(7) for operator in "+-*"]
    examples = task.eval_examples(500)
    assert sorted(example.id for example in examples) == sorted(filter(task.is_held_out, every))


def test_demonstrations_are_worked_or_direct() -> None:
    task = make_task()
    for index in range(200):
        prompt, worked = task.demonstration(index, 1.0)
        same_prompt, direct = task.demonstration(index, 0.0)
        lines = derivation(prompt.split()[1:-1], task.arithmetic)
        assert same_prompt == prompt == f"<boe> {lines[0]} ="
        assert worked == " = ".join(lines[1:]) + " <eoe>"
        assert direct == f"{lines[-1]} <eoe>"
        assert (worked == direct) == (len(lines) == 2)


def test_the_worked_demonstration_of_the_specification() -> None:
    task = make_task(
        operators=("+",), modulus=13, operand_range=(0, 12), complexity_range=(2, 2), shape="tree", held_out_share=0.01
    )
    found = dict(task.demonstration(index, 1.0) for index in range(20000))
    assert found["<boe> 4 0 1 + + ="] == "4 1 + = 5 <eoe>"


def test_the_vocabulary_of_the_specification_has_18_words() -> None:
    task = make_task(operators=("+",), modulus=13, operand_range=(0, 12))
    assert task.vocabulary == ("<pad>", "<boe>", "<eoe>", "=", "+", *(str(value) for value in range(13)))
    assert len(make_task().vocabulary) == 14
    assert len(make_task(modulus=None, max_abs_value=50, operand_range=(0, 4)).vocabulary) == 108


@st.composite
def tasks(draw: st.DrawFn) -> RpnTask:
    fewest = draw(st.integers(1, 4))
    most = draw(st.integers(fewest, 5))
    operators = draw(st.lists(st.sampled_from("+-*"), min_size=1, unique=True))
    if draw(st.booleans()):
        modulus = draw(st.integers(3, 19))
        values = {"modulus": modulus, "max_abs_value": None, "operand_range": (0, modulus - 1)}
    else:
        values = {"modulus": None, "max_abs_value": draw(st.integers(10, 60)), "operand_range": (-2, 3)}
    try:
        return make_task(
            seed=draw(st.integers(0, 10**9)),
            reward=make_reward(0.3, 0.7),
            operators=operators,
            shape=draw(st.sampled_from(["tree", "chain"])),
            complexity_range=(fewest, most),
            max_prompt_tokens=13,
            held_out_share=0.3,
            **values,
        )
    except ConfigError:  # so few expressions that none of them is held out, or all are
        reject()


@settings(max_examples=150, deadline=None)
@given(tasks(), st.integers(0, 10**6), st.sampled_from([0.0, 1.0]), st.data())
def test_pitfall_28_only_the_gold_scores_full_marks(
    task: RpnTask, index: int, worked_share: float, data: st.DataObject
) -> None:
    prompt, completion = task.demonstration(index, worked_share)
    assert set(f"{prompt} {completion}".split()) <= set(task.vocabulary)
    answer = str(evaluate(prompt.split()[1:-1], task.arithmetic))
    right = score(task, prompt, completion, answer)
    assert (right.value, right.status, dict(right.parts)) == (1.0, "scored", {"boxed": 1.0, "correct": 1.0})
    assert right.diagnostics.get("valid_steps", 1.0) == 1.0

    wrong = data.draw(st.sampled_from([word for word in task.arithmetic.values if word != answer]))
    perturbed = completion.rsplit(maxsplit=2)[:-2]
    found = score(task, prompt, " ".join([*perturbed, wrong, "<eoe>"]), answer)
    assert (found.value, dict(found.parts)) == (0.3, {"boxed": 1.0, "correct": 0.0})


def test_a_users_expression_is_checked() -> None:
    task = make_task()
    assert task.example("  3 4   + ").id == "3 4 +"
    with pytest.raises(ExpressionError, match="left over"):
        task.example("3 4")
    with pytest.raises(ExpressionError, match=r"11 tokens, above task\.max_prompt_tokens=9"):
        task.example("1 1 + 1 + 1 + 1 +")
    assert task.example("1 1 + 1 + 1 +").id == "1 1 + 1 + 1 +"  # nine tokens, and no more are allowed


@pytest.mark.parametrize(
    ("key", "changes", "remedy"),
    [
        ("operators", {"operators": ("+", "+")}, "names an operator twice; name each once"),
        ("complexity_range", {"complexity_range": (3, 1)}, r"the smaller number comes first; write \[1,3\]"),
        ("complexity_weights", {"complexity_weights": (1, 2)}, "one weight for each number of operators"),
        ("eval_complexity_weights", {"eval_complexity_weights": (1,)}, "one weight for each number of operators"),
        ("max_prompt_tokens", {"max_prompt_tokens": 8}, "3 operators need 9; raise it"),
        ("operand_range", {"operand_range": (0, 7)}, "leaves the numbers 0..6; narrow it"),
        ("modulus", {"modulus": None}, "plain integers need a bound on results; set task.max_abs_value"),
        ("operand_range", {"modulus": None, "max_abs_value": 5}, "leaves the numbers -5..5; narrow it"),
    ],
)
def test_contradicting_settings_are_named_with_their_remedy(key: str, changes: dict[str, Any], remedy: str) -> None:
    ((found, message),) = wrong_settings(Rpn, MODULAR | changes)
    assert found == key
    assert re.search(remedy, message), message


@pytest.mark.parametrize(
    "changes",
    [
        {"modulus": None, "max_abs_value": 6, "operand_range": (4, 6), "operators": ("+",)},
        {"modulus": 2, "operand_range": (1, 1), "operators": ("+",), "complexity_range": (1, 1)},
        {"modulus": 2, "operand_range": (1, 1), "complexity_range": (1, 1), "held_out_share": 0.999},
    ],
)
def test_settings_that_leave_no_expression_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"task\.held_out_share=.*, task\.max_abs_value=.* leave no .*expression"):
        make_task(**changes)


def test_prompts_that_do_not_fit_are_an_error_naming_the_setting() -> None:
    def count(messages: Sequence[Message], tools: object = ()) -> int:
        return len(messages[0].content.split())

    made = make_task()
    made.limit_prompts(count, 9)
    with pytest.raises(ConfigError, match=r"task\.complexity_range=\[1, 3\]: 3 operators make a prompt of 9 tokens"):
        made.limit_prompts(count, 8)
