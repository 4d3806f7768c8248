"""Which cases of a behavior the README's test command meets; `-m long` meets the others too."""

from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def variants(cases: Iterable[Any], always: int = 1) -> list[ParameterSet]:
    """Cases for `parametrize`: the first `always` of them as they are, the others also `long`. They are the same
    behavior in another precision, strategy or algorithm, in a second or more."""
    params = [one if isinstance(one, ParameterSet) else pytest.param(*as_tuple(one)) for one in cases]
    return [
        one if place < always else one._replace(marks=[*one.marks, pytest.mark.long])
        for place, one in enumerate(params)
    ]


def as_tuple(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
