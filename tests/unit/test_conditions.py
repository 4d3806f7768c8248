"""When a setting has an effect: what `only_if` may say, what it means, and how it reads."""

from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from pydantic import ValidationError

from rlvr.conditions import FACTS, condition
from rlvr.config import Config
from rlvr.settings import Component, Settings, setting

RUN: Any = SimpleNamespace(is_trained=True, model=SimpleNamespace(from_scratch=False, sizes={"a": 2}))
OWN = SimpleNamespace(enabled=True, kl_coef=0.5, every=None, tools=("search", "get"), hops=(1, 3), epochs=2, batches=1)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("enabled", True),
        ("not enabled", False),
        ("kl_coef > 0", True),
        ("0.5 <= kl_coef < 1", True),
        ("kl_coef >= 1 or every is None", True),
        ("every is not None", False),
        ("'search' in tools and 'get' != tools[0]", True),
        ("hops[1] == 3", True),
        ("epochs * batches > 2", False),
        ("is_trained and not model.from_scratch", True),
        ("model.sizes['a'] == 2", True),
        ("epochs in (1, 2) and epochs not in (3, 4)", True),
        ("kl_coef > -1", True),
        ("0 <= kl_coef < 0.1", False),
        ("enabled and model.from_scratch  # {enabled} and a model made from scratch", False),
    ],
)
def test_a_condition_holds_or_not(text: str, holds: bool) -> None:
    assert condition(text).holds(OWN, RUN) is holds


@pytest.mark.parametrize("text", ["f()", "[x for x in tools]", "kl_coef + 1 > 0", "lambda: 1", "a if 1 else 0", ""])
def test_nothing_else_is_a_condition(text: str) -> None:
    with pytest.raises(SyntaxError):
        condition(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kl_coef > 0", "a.b.kl_coef > 0"),
        ("every is not None", "a.b.every not null"),
        ("every is None", "a.b.every=null"),
        ("lr > 0 and lr_min < lr", "a.b.lr > 0 and a.b.lr_min < a.b.lr"),
        ("'search' in tools and scope == 'search'", "search in a.b.tools and a.b.scope == search"),
        ("model.from_scratch or prompt.few_shot > 0", "model.from_scratch or prompt.few_shot > 0"),
        ("enabled and model.from_scratch  # {enabled} and a new model", "a.b.enabled and a new model"),
    ],
)
def test_it_reads_with_whole_keys(text: str, words: str) -> None:
    assert condition(text).words("a.b") == words


def test_names_are_those_that_decide() -> None:
    assert condition("enabled and model.from_scratch and enabled").names == ("enabled", "model")


def test_a_name_that_is_nowhere_is_refused_with_its_class() -> None:
    with pytest.raises(NameError, match=r"only_if='kl_coeff > 0' of Mine: there is no kl_coeff"):

        class Mine(Settings):
            kl_coef: float = 0.0
            estimator: str = setting("k3", only_if="kl_coeff > 0")

    with pytest.raises(NameError, match="there is no reported"):

        class Other(Component):
            only_if: ClassVar[str] = "reported"
            every: int = 1


def test_what_no_component_sees_is_refused_where_it_is_written() -> None:
    with pytest.raises(NameError, match=r"model has no from_scrach .*; did you mean model.from_scratch\?"):

        class Mine(Settings):
            rate: float = setting(0.1, only_if="rate > 0 and model.from_scrach")

    with pytest.raises(NameError, match="prompt is a field of the class, and a fact of the run"):

        class Both(Settings):
            prompt: bool = False
            rate: float = setting(0.1, only_if="prompt")

    with pytest.raises(NameError, match="there is no copy"):

        class Method(Settings):
            rate: float = setting(0.1, only_if="copy")

    with pytest.raises(SyntaxError, match=r"only_if='rate >': "):
        condition("rate >")


def test_a_default_out_of_bounds_is_refused_at_once() -> None:
    class Mine(Settings):
        slope: float = setting(5.0, "steepness", le=1)

    with pytest.raises(ValidationError, match="less than or equal to 1"):
        Mine()


def test_every_fact_is_one_of_a_run() -> None:
    assert {"task", "model", "is_trained"} <= FACTS
    assert not [name for name in FACTS if name not in Config.model_fields and not hasattr(Config, name)]
