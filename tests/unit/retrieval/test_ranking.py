import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlvr.retrieval.base import Hit
from rlvr.retrieval.ranking import NO_HIT, best

values = st.lists(st.sampled_from([0.0, 0.25, 0.5, -1.0, float(NO_HIT)]), max_size=12)


def test_the_example_of_the_docstring() -> None:
    scores = np.array([0.25, 0.5, NO_HIT, 0.5], dtype=np.float32)
    assert best(scores, 3) == [Hit(1, 0.5), Hit(3, 0.5), Hit(0, 0.25)]


@given(values, st.integers(-1, 15))
def test_hits_are_those_of_a_full_sort_with_ties_by_index(values: list[float], top_n: int) -> None:
    found = sorted((-value, index) for index, value in enumerate(values) if value != NO_HIT)
    expected = [Hit(index, -value) for value, index in found][: max(top_n, 0)]
    assert best(np.array(values, dtype=np.float32), top_n) == expected


@given(values, st.integers(0, 15), st.sampled_from([0.0, 0.25]))
def test_only_what_is_above_the_floor_is_a_hit(values: list[float], top_n: int, above: float) -> None:
    kept = [value if value > above else float(NO_HIT) for value in values]
    expected = best(np.array(kept, dtype=np.float32), top_n)
    assert best(np.array(values, dtype=np.float32), top_n, above=above) == expected


def test_hits_are_a_sequence() -> None:
    hits = best(np.array([0.25, 0.5, 0.75], dtype=np.float32), 3)
    assert list(hits) == [Hit(2, 0.75), Hit(1, 0.5), Hit(0, 0.25)] == [hits[0], hits[1], hits[-1]]
    assert hits[1:] == [Hit(1, 0.5), Hit(0, 0.25)]
    assert repr(hits[:1]) == "[Hit(index=2, score=0.75)]"
    assert hits != 3
