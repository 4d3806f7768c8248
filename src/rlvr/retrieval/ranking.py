"""The best of many scores, in one order whatever the machine: by score, then by index."""

import numpy as np
import numpy.typing as npt

from rlvr.retrieval.base import Hit

Scores = npt.NDArray[np.float32]
NO_HIT = np.float32(-np.inf)
"""Score of a document that is no hit at all."""


def best(scores: Scores, top_n: int) -> list[Hit]:
    """The `top_n` best of scores [N]; equal ones by index, those that are `NO_HIT` never.

    `best([0.1, 0.7, -inf, 0.7], 3)` is the hits 1, 3 and 0.
    """
    found = np.flatnonzero(scores != NO_HIT)
    values = scores[found]
    if 0 < top_n < len(found):
        worst_kept = np.partition(values, len(values) - top_n)[len(values) - top_n]
        kept = values >= worst_kept  # all that equal the last one: the index decides between them below
        found, values = found[kept], values[kept]
    order = np.argsort(-values, kind="stable")[: max(top_n, 0)]
    return list(map(Hit, found[order].tolist(), values[order].tolist()))
