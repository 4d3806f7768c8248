"""A task of the user's own: a class whose `examples` yields problems, with tools where it has some."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from rlvr.config.compose import load_task_config
from rlvr.errors import ConfigError, UserError
from rlvr.rewards.base import Grade, Part
from rlvr.tasks.generator import ExamplesTask
from rlvr.types import Attempt, Example
from tests.unit.tasks.data_tasks import graded, held_out_ids, ids, make, scored
from tests.unit.tasks.multihop_episodes import call, play, said

HERE = __name__
PEN = {"name": "price", "arguments": {"item": "pen"}}
HERMES_CALL = '<tool_call>\n{"name": "price", "arguments": {"item": "pen"}}\n</tool_call>'


class Doubles(ExamplesTask):
    """Twice a number."""

    num: int = 40
    _data: Any = None  # private names are the user's: ours must not hide behind them
    _problems: Any = ()
    _text: Any = ""

    def examples(self) -> Iterator[tuple[str, int]]:
        return ((f"Twice {n}?", 2 * n) for n in range(self.num))


def price(item: str, state: dict[str, Any]) -> int:
    """What one costs.

    Args:
        item: what to buy.
    """
    state["asked"] = [*state.get("asked", []), item]
    return state["prices"][item]


class Shop(Doubles):
    """Prices that a tool tells."""

    has_tools = True
    shown: Any = (PEN, "It costs {}.")

    def examples(self) -> Iterator[dict[str, Any]]:
        for n in range(self.num):
            said = [turn.format(n) if isinstance(turn, str) else turn for turn in self.shown or ()]
            example = {"question": f"A pen in shop {n}?", "answer": n, "metadata": {"prices": {"pen": n}}}
            yield example | ({"demonstration": said} if self.shown is not None else {})

    def tools(self) -> tuple[Any, ...]:
        return (price,)

    def state(self, example: Example) -> dict[str, Any]:
        return dict(example.metadata) | {"asked": []}


class Asked(Part):
    """How often the tool was asked."""

    in_process = True

    def grade(self, attempt: Attempt) -> Grade:
        return Grade(value=float(len(attempt.state["asked"])))


def shop(**more: Any) -> Any:
    return make({"name": f"{HERE}:Shop", **more}, reward={"asked": {"type": f"{HERE}:Asked"}})


def test_a_class_that_yields_examples_is_a_task() -> None:
    made = make({"name": f"{HERE}:Doubles", "num": 20, "eval_share": 0.3, "metric": "numeric"})
    held_out, trained = held_out_ids(made), {*ids(made, range(100))}
    assert made.name == "doubles"
    assert made.notes == (f"examples from {HERE}:Doubles, 30% of them, chosen by hash, held out",)
    assert len(held_out | trained) == len(held_out) + len(trained) == 20
    example = made.eval_examples(1)[0]
    assert graded(made, example, f"{example.answer}.0").correct
    assert scored(made, example, example.answer).value == 1.0


def test_it_is_chosen_by_its_path() -> None:
    config = load_task_config(f"{HERE}:Shop", ["task.num=30", "task.max_turns=2"])
    assert (config.task.name, config.task.label, config.task.num_turns) == (f"{HERE}:Shop", "shop", 2)
    with pytest.raises(ConfigError, match=r"task\.max_turns=2: has no effect; it needs a task with tools"):
        load_task_config(f"{HERE}:Doubles", ["task.max_turns=2"])


def test_tools_and_reward_share_the_state_of_an_episode() -> None:
    made = shop()
    example = made.eval_examples(1)[0]
    asked = [said(call("price", item=item)) for item in ("pen", "hat")]
    for _ in range(2):
        score, grade, messages = play(made, example, *asked, said(text=example.answer))
        assert [message.content for message in messages] == [example.answer, "Error: price: KeyError: 'hat'"]
        assert (score.value, score.diagnostics["tool_errors"], grade.correct) == (2.0, 1.0, True)


def test_a_demonstration_is_played_through_the_tools() -> None:
    made = shop()
    prompt, first, reply, last = made.demonstration(0, 1.0)
    question = prompt.splitlines()[-1]
    number = question.removeprefix("A pen in shop ").removesuffix("?")
    assert '"name": "price"' in prompt
    assert (first, reply, last) == (HERMES_CALL, number, f"It costs {number}.")
    assert made.demonstration(0, 0.0) == (prompt, last)
    assert first in next(made.texts())


def test_without_a_demonstration_none_can_be_shown() -> None:
    made = shop(shown=None)
    with pytest.raises(UserError, match=r"shop has no demonstrations of its tools: .* warm_start\.enabled=false"):
        made.demonstration(0, 1.0)
    assert next(made.texts()).startswith("A pen in shop ")


@pytest.mark.parametrize(
    "shown", [[], [PEN], [PEN, PEN], ["text", "text"], [{"arguments": {}}, "3"], [PEN | {"arguments": "pen"}, "3"]]
)
def test_a_bad_demonstration_is_an_error_naming_the_example(shown: Any) -> None:
    with pytest.raises(
        ConfigError, match=f"task={HERE}:Shop, example 1: field 'demonstration' must be .* text, but is"
    ):
        shop(shown=shown)


class Longer(Doubles):
    """Trained on numbers below 40, tested on 30 and more."""

    start: int = 30

    def eval_examples(self) -> Iterator[tuple[str, int]] | None:
        return None if self.start == 0 else ((f"Twice {n}?", 2 * n) for n in range(self.start, 60))


def test_held_out_examples_of_their_own_are_never_trained_on() -> None:
    made = make({"name": f"{HERE}:Longer"})
    trained = {made.train_example(index).messages[-1].content for index in range(200)}
    shown = {made.demonstration(index, 1.0)[0] for index in range(200)}
    assert trained == shown == {f"Twice {n}?" for n in range(30)}
    assert [one.answer for one in made.eval_examples(100)] == [str(2 * n) for n in range(30, 60)]
    assert made.eval_examples(5) == made.eval_examples(100)[:5]
    assert made.notes == (f"examples from {HERE}:Longer; 30 held-out ones of their own, never trained on",)


def test_they_are_left_out_of_other_tasks_too_and_long_ones_are_dropped() -> None:
    made, other = make({"name": f"{HERE}:Longer"}), make({"name": f"{HERE}:Doubles"})
    other.hold_out_for(made)
    asked = {other.train_example(index).messages[-1].content for index in range(200)}
    assert asked.isdisjoint({f"Twice {n}?" for n in range(30, 60)})
    made.limit_prompts(lambda messages, tools=(): int(messages[-1].content.split()[1].rstrip("?")), 50)
    assert [one.answer for one in made.eval_examples(100)] == [str(2 * n) for n in range(30, 51)]


def test_none_means_a_share_by_hash() -> None:
    made = make({"name": f"{HERE}:Longer", "start": 0, "num": 20, "eval_share": 0.3})
    assert made.notes == (f"examples from {HERE}:Longer, 30% of them, chosen by hash, held out",)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"start": -100}, r"every example to train on is also held out"),
        ({"start": 60}, rf"task={HERE}:Longer, held out: yields no example"),
    ],
)
def test_held_out_examples_that_cannot_be_used_are_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        make({"name": f"{HERE}:Longer", **more})


class Endless(Doubles):
    """Held-out examples without an end."""

    def eval_examples(self) -> Iterator[tuple[str, int]]:
        return ((f"Thrice {n}?", 3 * n) for n in count())


class Failing(Doubles):
    """Held-out examples that fail."""

    def eval_examples(self) -> Iterator[tuple[str, int]]:
        yield "Three?", 3
        raise ValueError("no more")


def test_held_out_examples_must_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlvr.tasks.generator.MAX_HELD_OUT", 1000)
    with pytest.raises(UserError, match=r"Endless, held out: yields more than 1,000 examples; let it end\."):
        make({"name": f"{HERE}:Endless"})
    with pytest.raises(UserError, match=r"Failing, held out, example 2: ValueError: no more"):
        make({"name": f"{HERE}:Failing"})


def test_a_share_has_no_effect_beside_held_out_examples() -> None:
    with pytest.raises(ConfigError, match=r"task\.eval_share=0.2: has no effect; it needs a task without held-out ex"):
        load_task_config(f"{HERE}:Longer", ["task.eval_share=0.2"])


class Unprompted(Doubles):
    prompt = "boxd"


class Unrewarded(Doubles):
    reward = "nummeric"


class Empty(ExamplesTask):
    """Nothing."""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Unprompted", r"Unprompted\.prompt=boxd: there is no such prompt; did you mean boxed\?"),
        ("Unrewarded", r"Unrewarded\.reward=nummeric: there is no such reward; did you mean numeric\?"),
        ("Empty", r"has no method examples, which every ExamplesTask needs"),
    ],
)
def test_a_missing_or_misspelled_member_is_named(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"^task={HERE}:{name}: {said}"):
        load_task_config(f"{HERE}:{name}", [])


class Stateless(Shop):
    """Its state cannot be made."""

    def state(self, example: Example) -> dict[str, Any]:
        return example.metadata["no"]


def test_a_failing_state_is_an_error_naming_it() -> None:
    made = make({"name": f"{HERE}:Stateless"}, reward="text")
    failed = rf"^task={HERE}:Stateless: state of example generator/.*: KeyError: 'no' \(.*, line \d+\)$"
    with pytest.raises(UserError, match=failed):
        made.env(made.train_example(0))
