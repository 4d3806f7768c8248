"""The best of many scores, in one order whatever the machine: by score, then by index."""

import numpy as np
import numpy.typing as npt

from rlvr.retrieval.base import Hits

Scores = npt.NDArray[np.float32]
NO_HIT = np.float32(-np.inf)
"""Score of a document that is no hit at all."""


def best(scores: Scores, top_n: int, above: float = float("-inf")) -> Hits:
    """The `top_n` best of scores [N] that are greater than `above`; equal ones by index.

    `best([0.1, 0.7, -inf, 0.7], 3)` is the hits 1, 3 and 0.
    """
    top_n = min(max(top_n, 0), len(scores))
    is_hit = scores > above
    if top_n < len(scores) // 2 < np.count_nonzero(is_hit):  # as good as all: look for the threshold at once
        found = np.flatnonzero(scores >= max(_nth(scores, top_n), np.nextafter(np.float32(above), np.float32(np.inf))))
        values = scores[found]
    else:
        found = np.flatnonzero(is_hit)
        values = scores[found]
        if 0 < top_n < len(found):
            kept = values >= _nth(values, top_n)  # all that equal the last one: the index decides between them below
            found, values = found[kept], values[kept]
    order = np.argsort(-values, kind="stable")[:top_n]
    return Hits(found[order], values[order])


def _nth(values: Scores, number: int) -> np.float32:
    """The `number`-th largest, from 1; the largest for 0."""
    place = len(values) - max(number, 1)
    return np.partition(values, place)[place]
