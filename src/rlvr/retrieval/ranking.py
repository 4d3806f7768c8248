"""Document scores, and the best ones in a machine-independent order: by score, then by index."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rlvr.retrieval.base import Document, Found

Scores = npt.NDArray[np.float32]


class Index(ABC):
    """A searchable set of documents. Read-only, so any number of threads may search at once."""

    floor: float = -math.inf  # a document with this score is no hit

    def __init__(self, documents: Sequence[Document]) -> None:
        self.documents = documents

    @abstractmethod
    def scores(self, query: str) -> Scores:
        """[N], for a query as in `Retriever.search`."""

    def search(self, query: str, top_n: int) -> list[Found]:
        """At most `top_n` hits, best first; equal scores by index."""
        scores = self.scores(query)
        return [Found(self.documents[hit], float(scores[hit])) for hit in best(scores, top_n, self.floor).tolist()]


def best(scores: Scores, top_n: int, above: float = -math.inf) -> npt.NDArray[np.int64]:
    """Indices of the `top_n` best scores [N] greater than `above`; ties by index.

    `best([0.1, 0.7, -inf, 0.7], 3)` is [1, 3, 0].
    """
    places = np.flatnonzero(scores > above)
    values = scores[places]
    if 0 < top_n < len(places):
        place = len(places) - top_n
        kept = values >= np.partition(values, place)[place]  # includes all ties with the last one; sorted below
        places, values = places[kept], values[kept]
    return places[np.argsort(-values, kind="stable")[: max(top_n, 0)]]
