"""Filtered search: documents by a weighted sum of eleven features of words, names and titles, without any model.

BM25 sees one document at a time. The second document of a chain often shares no word with the question, but the first
one names its title:

    Where was the director of Solaris born?
    Solaris             Solaris is a film by Andrei Tarkovsky.      shares words with the question
    Andrei Tarkovsky    Tarkovsky was born in Zavrazhye.            is named by the best document
"""

import math
import re
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Any, ClassVar
from zlib import crc32

import numpy as np
import numpy.typing as npt

from rlvr.registry import register
from rlvr.retrieval.base import Corpus, Document
from rlvr.retrieval.bm25 import Bm25, Bm25Index
from rlvr.retrieval.ranking import Index, Scores, best
from rlvr.retrieval.retriever import IndexRetriever, find_retriever
from rlvr.retrieval.text import CACHED_WORDS

WEIGHTS = {
    "BM25": 1.0,
    "cosine of letters": -0.07,
    "words of the question": -0.19,
    "title in the question": 0.74,
    "words of the title": 0.37,
    "named by a document": 1.36,
    "names a document": 0.45,
    "BM25 of those that name it": 1.1,
    "names of the question": -0.11,
    "length": 0.39,
    "named by the best": 0.92,
}
"""Of the features, in order; learnt without labels of documents, see benchmarks/results/filtered.md."""
POOL = 50
"""Of more documents, the best by BM25 are filtered."""
BUCKETS = 2048  # of hashed trigrams
SMALLEST_SPREAD = 1e-6
_WORD, _NAME, _BRACKETS = re.compile(r"\w+"), re.compile(r"\b[A-Z]\w+"), re.compile(r"\(.*?\)")

Numbers = npt.NDArray[np.float64]
Split = Callable[[str], list[str]]
"""A text to its words."""


class Described:
    """What a few documents have in common with any query, and with each other."""

    def __init__(self, documents: Sequence[Document], split: Split) -> None:
        self._documents, self._split = documents, split

    def features(self, query: str, by_words: Numbers) -> Numbers:
        """[N, 11], for BM25 scores [N]; counts and scores are standardized over the documents, the rest is 0 or 1."""
        asked, names = set(self._split(query)), set(_NAME.findall(query[1:]))  # its first word is no name
        bm25, question = standardized(by_words), _plain(query)
        best_first = bm25 == bm25.max(initial=-math.inf)
        columns = (
            bm25,
            standardized(self._letters @ _letters(self._split(query))),
            standardized([_share(asked.intersection(words), asked) for words in self._words]),
            [bool(title) and title in question for title in self._titles],
            standardized([_share(asked & words, words) for words in self._title_words]),
            self._naming.max(0, initial=0),
            self._naming.max(1, initial=0),
            (self._naming * np.maximum(bm25, 0)[:, None]).max(0, initial=0),
            standardized([_share(names & found, names) for found in self._names]),
            standardized([math.log1p(len(document.text)) for document in self._documents]),
            (self._naming * best_first[:, None]).max(0, initial=0),
        )
        return np.stack([np.asarray(column, dtype=float) for column in columns], axis=1)

    @cached_property
    def _words(self) -> list[list[str]]:
        return [self._split(document.full) for document in self._documents]

    @cached_property
    def _title_words(self) -> list[set[str]]:
        return [set(self._split(document.title)) for document in self._documents]

    @cached_property
    def _names(self) -> list[set[str]]:
        return [set(_NAME.findall(document.full)) for document in self._documents]

    @cached_property
    def _titles(self) -> list[str]:
        return [_plain(_BRACKETS.sub("", document.title)) for document in self._documents]

    @cached_property
    def _letters(self) -> Numbers:
        return np.stack([_letters(words) for words in self._words])

    @cached_property
    def _naming(self) -> Numbers:
        """[N, N]: 1 where the text of a row's document holds the title of a column's, another one."""
        texts = [_plain(document.text) for document in self._documents]
        named = [
            [bool(title) and title != own and title in text for title in self._titles]
            for text, own in zip(texts, self._titles, strict=True)
        ]
        return np.array(named, dtype=float).reshape(len(texts), len(texts))


class FilteredIndex(Index):
    """Documents ranked by the weighted sum of their features."""

    def __init__(self, bm25: Bm25Index) -> None:
        super().__init__(bm25.documents)
        self._bm25 = bm25

    def scores(self, query: str) -> Scores:
        by_words = self._bm25.scores(query)
        scores = np.full(len(by_words), -math.inf, dtype=np.float32)
        if len(by_words) <= POOL:
            places, described = np.arange(len(by_words)), self._described
        else:
            places = best(by_words, POOL, self._bm25.floor)
            described = Described([self.documents[place] for place in places.tolist()], self._bm25.split)
        if len(places):
            features = described.features(query, by_words[places].astype(float))
            scores[places] = features @ np.array([*WEIGHTS.values()])
        return scores

    @cached_property
    def _described(self) -> Described:
        return Described(self.documents, self._bm25.split)


@register("retriever", "filtered")
class Filtered(IndexRetriever):
    """Words, names and titles: a weighted sum of eleven features, which also find a document that another one names."""

    uses: ClassVar[frozenset[str]] = Bm25.uses
    _bm25: Any = None

    def load(self) -> None:
        self._bm25 = find_retriever("bm25", self.retrieval)
        self._bm25.load()

    def index(self, documents: Sequence[Document]) -> FilteredIndex:
        return FilteredIndex(self._bm25.index(documents))

    def corpus_index(self, corpus: Corpus) -> FilteredIndex:
        return FilteredIndex(self._bm25.corpus_index(corpus))


def standardized(values: Any) -> Numbers:
    """Values [N] with mean 0 and deviation 1: `standardized([1, 3])` is [-1, 1]; zeros if all are equal."""
    values = np.asarray(values, dtype=float)
    return (values - values.mean()) / max(float(values.std()), SMALLEST_SPREAD) if len(values) else values


def _plain(text: str) -> str:
    """Lower-cased words between spaces, so that `in` finds whole words: " the bay of bengal "; without any, ""."""
    found = _WORD.findall(text.lower())
    return f" {' '.join(found)} " if found else ""


def _share(part: set[str], whole: set[str]) -> float:
    return len(part) / max(1, len(whole))


def _letters(words: Sequence[str]) -> Numbers:
    """[BUCKETS], unit length: roots of the counts of three letters in a row, hashed. It sees through endings."""
    hashed = [place for word in words for place in _places(word)]
    counts = np.sqrt(np.bincount(hashed, minlength=BUCKETS)) if hashed else np.zeros(BUCKETS)
    return counts / max(float(np.linalg.norm(counts)), SMALLEST_SPREAD)


@lru_cache(maxsize=CACHED_WORDS)
def _places(word: str) -> list[int]:
    padded = f"#{word}#"
    return [crc32(padded[i : i + 3].encode(errors="replace")) % BUCKETS for i in range(len(word))]
