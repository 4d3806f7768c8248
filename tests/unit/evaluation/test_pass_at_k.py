"""pass@k and maj@k against brute force."""

from __future__ import annotations

import itertools

import pytest

from rlvr.evaluation.summary import majority_vote, pass_at_k, powers_of_two


@pytest.mark.parametrize("n", range(1, 8))
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_sample(n: int) -> None:
    for correct, k in itertools.product(range(n + 1), range(1, n + 1)):
        samples = [True] * correct + [False] * (n - correct)
        subsets = list(itertools.combinations(samples, k))
        assert pass_at_k(n, correct, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12)


def test_pass_at_k_is_unbiased() -> None:
    """Over all outcomes of n draws with success p, its expectation is 1 - (1 - p)^k; the plug-in estimate is below."""
    n, k, p = 6, 3, 0.3
    expected = plug_in = 0.0
    for outcome in itertools.product([True, False], repeat=n):
        correct = sum(outcome)
        probability = p**correct * (1 - p) ** (n - correct)
        expected += probability * pass_at_k(n, correct, k)
        plug_in += probability * (1 - (1 - correct / n) ** k)
    assert expected == pytest.approx(1 - (1 - p) ** k, abs=1e-12)
    assert plug_in < expected - 0.02


@pytest.mark.parametrize(("n", "correct", "k"), [(4, 2, 5), (4, 2, 0), (4, 5, 1), (4, -1, 1), (0, 0, 1)])
def test_pass_at_k_refuses_what_is_undefined(n: int, correct: int, k: int) -> None:
    with pytest.raises(ValueError, match=r"undefined|makes no sense"):
        pass_at_k(n, correct, k)


@pytest.mark.parametrize(
    ("answers", "correct", "expected"),
    [
        (["7", "7", "3"], [True, True, False], 1.0),
        (["7", "3", "3"], [True, False, False], 0.0),
        (["7", "3"], [True, False], 0.5),
        (["7", "3", "4"], [True, False, False], 1 / 3),
        ([None, None, "7"], [False, False, True], 1.0),
        ([None, None], [False, False], 0.0),
        (["The Beatles", "Beatles", "the Beatles.", "Queen", "Queen"], [True, True, True, False, False], 1.0),
        (["a", "A", "b"], [True, False, False], 1 / 3),  # a metric that tells them from each other
    ],
)
def test_majority_vote_by_hand(answers: list[str | None], correct: list[bool], expected: float) -> None:
    assert majority_vote(answers, correct) == pytest.approx(expected)


def test_powers_of_two() -> None:
    assert powers_of_two(1) == [1]
    assert powers_of_two(10) == [1, 2, 4, 8]
