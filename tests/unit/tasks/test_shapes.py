from itertools import product

import pytest

from rlvr.tasks.shapes import count_shapes, unrank_shape


def is_valid(shape: str) -> bool:
    heights = [shape[:end].count("n") - shape[:end].count("o") for end in range(1, len(shape) + 1)]
    return all(height >= 1 for height in heights) and heights[-1] == 1


def test_shapes_are_counted_by_the_catalan_numbers() -> None:
    assert [count_shapes(k) for k in range(7)] == [1, 1, 2, 5, 14, 42, 132]


@pytest.mark.parametrize("num_operators", range(6))
def test_ranks_number_every_valid_shape_once(num_operators: int) -> None:
    every = sorted("".join(symbols) for symbols in product("no", repeat=2 * num_operators + 1))
    ranked = [unrank_shape(num_operators, rank) for rank in range(count_shapes(num_operators))]
    assert ranked == [shape for shape in every if is_valid(shape)]
    for rank in (-1, len(ranked)):
        with pytest.raises(ValueError, match=f"rank {rank} is not in 0..{len(ranked) - 1}"):
            unrank_shape(num_operators, rank)
