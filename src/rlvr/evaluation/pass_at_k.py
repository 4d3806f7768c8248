"""pass@k and maj@k from n samples of one example."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import comb


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Unbiased estimate of the probability that at least one of k samples is correct, arXiv:2107.03374 equation 1.

    1 - C(n - c, k) / C(n, k): the share of the k-subsets of the n samples that hold a correct one. Averaging
    1 - (1 - c/n)^k instead is biased downward. ValueError for k > n or impossible counts.
    """
    if not 0 <= num_correct <= num_samples:
        raise ValueError(f"{num_correct} of {num_samples} samples correct makes no sense")
    if not 1 <= k <= num_samples:
        raise ValueError(f"pass@{k} is undefined for {num_samples} samples; take at least {k} samples per example")
    return 1.0 - comb(num_samples - num_correct, k) / comb(num_samples, k)


def majority_vote(answers: Sequence[str | None], correct: Sequence[bool]) -> float:
    """1.0 if the most frequent answer is correct, shared among ties: 0.5 when a right and a wrong one tie.

    An answer of None could not be parsed and has no vote; without any vote the result is 0.
    """
    votes = Counter(answer for answer in answers if answer is not None)
    if not votes:
        return 0.0
    most = max(votes.values())
    tied = [answer for answer, count in votes.items() if count == most]
    right = {answer for answer, is_right in zip(answers, correct, strict=True) if is_right}
    return sum(answer in right for answer in tied) / len(tied)


def powers_of_two(limit: int) -> list[int]:
    """`powers_of_two(10) == [1, 2, 4, 8]`: the k of pass@k worth a column."""
    return [1 << i for i in range(limit.bit_length()) if 1 << i <= limit]
