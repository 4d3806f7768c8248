import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlvr.retrieval.ranking import best

values = st.lists(st.sampled_from([0.0, 0.25, 0.5, -1.0, -math.inf]), max_size=12)


@given(values, st.integers(-1, 15), st.sampled_from([-math.inf, 0.0, 0.25]))
def test_hits_are_those_of_a_full_sort_with_ties_by_index(values: list[float], top_n: int, above: float) -> None:
    found = sorted((-value, index) for index, value in enumerate(values) if value > above)
    expected = [index for _, index in found][: max(top_n, 0)]
    assert best(np.array(values, dtype=np.float32), top_n, above).tolist() == expected
