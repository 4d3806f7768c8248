"""Which cases are left to `-m long`."""

import pytest

from tests.variants import variants


def test_all_but_the_first_cases_are_long_too() -> None:
    gpu = pytest.param("c", marks=pytest.mark.gpu)
    found = variants([("a", 1), "b", gpu], always=2)
    assert [one.values for one in found] == [("a", 1), ("b",), ("c",)]
    assert [[mark.name for mark in one.marks] for one in found] == [[], [], ["gpu", "long"]]
    assert [len(one.marks) for one in variants(["a", "b"])] == [0, 1]
