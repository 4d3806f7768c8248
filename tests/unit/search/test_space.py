"""The space of a search: Hydra's grammar, what it becomes, and what is refused."""

import math

import pytest

optuna = pytest.importorskip("optuna")

from rlvr.errors import ConfigError  # noqa: E402
from rlvr.search.settings import SweepSettings, read_settings  # noqa: E402
from rlvr.search.space import read_space  # noqa: E402

FLOAT, INT = optuna.distributions.FloatDistribution, optuna.distributions.IntDistribution
CHOICE = optuna.distributions.CategoricalDistribution


@pytest.mark.parametrize(
    ("line", "distribution", "size"),
    [
        ("a.b=interval(1e-5,1e-3)", FLOAT(1e-5, 1e-3), math.inf),
        ("a.b=tag(log,interval(1e-5,1e-3))", FLOAT(1e-5, 1e-3, log=True), math.inf),
        ("a.b=interval(1,5)", FLOAT(1.0, 5.0), math.inf),  # as in Hydra: whole numbers only where it is said
        ("a.b=int(interval(1,5))", INT(1, 5), 5),
        ("a.b=tag(log,int(interval(1,64)))", INT(1, 64, log=True), 64),
        ("a.b=range(1,10,3)", INT(1, 7, step=3), 3),  # the end is not included
        ("a.b=range(9,1,-4)", INT(5, 9, step=4), 2),
        ("a.b=1..10", INT(1, 10), 10),  # ours: included
        ("a.b=range(0.1,0.5,0.1)", FLOAT(0.1, 0.4, step=0.1), 4),
        ("a.b=x,my_algo:Foo", CHOICE(["x", "my_algo:Foo"]), 2),
        ("a.b=choice([1,2],'y z')", CHOICE(["[1,2]", "y\\ z"]), 2),
    ],
)
def test_every_way_to_write_an_axis(line: str, distribution: object, size: float) -> None:
    space = read_space([line, "trainer.max_steps=5"])
    (axis,) = space.axes
    assert (axis.distribution, axis.size, space.size) == (distribution, size, size)
    assert space.fixed == ("trainer.max_steps=5",)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("a.b=interval(1e-3,1e-5)", "the interval is empty"),
        ("a.b=interval(1,1)", "the interval is empty"),
        ("a.b=interval(0,inf)", "finite"),
        ("a.b=interval(x,1)", "two numbers"),
        ("a.b=interval(1)", "two numbers"),
        ("a.b=range(5,1)", "the range is empty"),
        ("a.b=range(1,5,0)", "the range is empty"),
        ("a.b=tag(log,interval(0,1))", "above 0"),
        ("a.b=tag(log,range(1,9,2))", "whole steps of 1"),
        ("a.b=tag(log,range(1.0,9.0))", "whole steps of 1"),
        ("a.b=tag(log,choice(1,2))", "a choice has no logarithm"),
        ("a.b=tag(square,interval(0,1))", "there is no tag square"),
        ("a.b=glob(*)", "cannot be searched"),
        ("seed=1..5", "luckiest seed"),
        ("trainer.max_steps=5", "nothing to search"),
    ],
)
def test_what_is_no_axis_is_refused(line: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        read_space([line])


def test_a_number_is_rounded_inside_of_its_interval() -> None:
    (axis,) = read_space(["a.b=interval(1.23456e-5,1.98765e-5)"]).axes
    assert axis.rounded(1.5432198e-5) == 1.543e-5
    assert axis.rounded(1.23457e-5) == 1.235e-5
    assert axis.rounded(1.987649e-5) == 1.98765e-5  # 1.988e-5 is beyond it
    assert axis.override(1.543e-5) == "a.b=1.543e-05"


def test_the_settings_of_a_search() -> None:
    assert read_settings(["sweep.trials=20", "sweep.prune=false"]) == SweepSettings(trials=20, prune=False)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["sweep.jobs=2"], "add sweep.trials=20"),
        (["sweep=20"], "sweep.trials=20"),
        (["sweep.trials=1,2"], "one of each"),
        (["sweep.trials=2", "sweep.trials=3"], "given before"),
        (["sweep.trials=0"], "sweep.trials=0: must be greater than or equal to 1"),
        (["sweep.trials=x"], "sweep.trials=x: must be a whole number"),
        (["sweep.trials=2", "sweep.sampler=tp"], "did you mean tpe"),
        (["sweep.trial=2"], "did you mean sweep.trials"),
    ],
)
def test_wrong_settings_of_a_search(lines: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        read_settings(lines)
