"""`rlvr train --help-config`: keys with their types, bounds, defaults and meanings (rlvr.commands.train.help)."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge, Gt, Le, Lt, MinLen

from rlvr.commands.train.help import SHOWN, _type, help_lines
from rlvr.settings import NonNegativeInt, Settings
from tests.unit.cli.conftest import Rlvr


@pytest.mark.parametrize(
    ("annotation", "metadata", "text"),
    [
        (int, (), "int"),
        (bool, (), "true or false"),
        (float, (Gt(0), Lt(1)), "number > 0, < 1"),
        (int, (Ge(1), Le(9)), "int >= 1, <= 9"),
        (str, (MinLen(1),), "text not empty"),
        (str, (MinLen(3),), "text at least 3"),
        (str, ("no bound",), "text"),
        (bytes, (), "value"),
        (NonNegativeInt, (), "int >= 0"),
        (int | None, (), "int or null"),
        (int | None, (Ge(1),), "int or null >= 1"),
        (Annotated[int, Ge(1)] | Literal["all"], (), "int >= 1 or all"),
        (Literal["a", 2], (), "a | 2"),
        (tuple[int, ...], (MinLen(1),), "[int, ...] not empty"),
        (tuple[int, str], (), "[int, text]"),
        (dict[str, float], (), "mapping of number"),
        (Annotated[float, Ge(0)], (Lt(1),), "number >= 0, < 1"),
        (Settings, (), "section"),
    ],
)
def test_a_type_is_written_with_its_bounds(annotation: Any, metadata: Sequence[Any], text: str) -> None:
    assert _type(annotation, metadata) == text


@pytest.mark.parametrize(
    ("key", "lines"),
    [
        (
            "rollout.group_size",
            [
                "rollout.group_size   int <= 100000, >= 1   default: 8",
                "    completions of one example, compared with each other",
            ],
        ),
        ("sweep.trials", ["sweep.trials   int >= 1   no default", "    points of the space to try; a run each"]),
        ("seed", ["seed   int >= 0   default: 0", "    the one seed; every other is derived from it"]),
        (
            "algorithm.kl_placement",
            [
                "algorithm.kl_placement   loss | reward   default: loss",
                "    add the KL to the loss or subtract it from the reward. Only with algorithm.kl_coef > 0.",
            ],
        ),
    ],
)
def test_a_key_has_its_type_default_and_meaning(key: str, lines: list[str], rlvr: Rlvr) -> None:
    assert help_lines(key).splitlines()[:2] == lines
    assert rlvr("train", "--help-config", key).out == help_lines(key) + "\n"


def test_a_section_has_its_choices_and_keys_and_a_key_that_holds_others_all_of_them() -> None:
    head, empty, choose, *rest = help_lines("algorithm").splitlines()
    assert (head, empty, choose) == ("algorithm: Settings common to all algorithms.", "", "choose with algorithm=")
    assert [line.split()[0] for line in rest if line.startswith("  grpo ")] == ["grpo"]
    assert rest.index("") == max(place for place, line in enumerate(rest) if line[:2] == "  " and line[2] != " ") + 1
    assert help_lines("evaluation").splitlines()[1] == ""
    assert "choose with" not in help_lines("evaluation")
    keys = [line.split()[0] for line in help_lines("model.lora").splitlines() if line[:1].strip()]
    assert {key.rpartition(".")[0] for key in keys} == {"model.lora"}
    assert len(keys) == len(set(keys)) > 2  # several models have them
    assert "types of reward.parts.<name> (--help-config reward.parts=TYPE):\n  " in help_lines("reward")


def test_everything_has_every_section_once() -> None:
    text = help_lines("")
    assert text.startswith("name   text   default: run\n")
    assert [text.count(f"\n\n{help_lines(section)}") for section in SHOWN] == [1] * len(SHOWN)


@pytest.mark.parametrize("choice", ["algorithm=ppo", "reward.parts=numeric", "task=rpn", "tracker.report_to=[mlflow]"])
def test_a_choice_has_its_own_keys(choice: str) -> None:
    key, _, name = choice.partition("=")
    first, empty, *lines = help_lines(choice).splitlines()
    assert first.startswith(f"{choice}: ")
    assert empty == ""
    prefix = {"reward.parts": "reward.parts.<name>.", "tracker.report_to": f"tracker.{name.strip('[]')}."}
    named = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert named
    assert all(one.startswith(prefix.get(key, f"{key}.")) for one in named)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("rollout.dead", "--help-config rollout.dead: there is no such key; did you mean rollout.dead_groups?"),
        ("zzzzzz", "--help-config zzzzzz: there is no such key."),
        ("evaluation=x", "--help-config evaluation=x: there are choices of task, "),
    ],
)
def test_what_is_no_key_is_refused(key: str, said: str, rlvr: Rlvr) -> None:
    assert said in rlvr("train", "--help-config", key).error
