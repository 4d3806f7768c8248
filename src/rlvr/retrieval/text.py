"""Splits text into words for BM25."""

import re
import threading
from collections.abc import Callable
from functools import lru_cache

from rlvr.retrieval.settings import RetrievalSettings

WORD = re.compile(r"\b\w\w+\b")
"""Words of two characters and more, in any script; the default of bm25s and scikit-learn."""
_LUCENE = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with"
)
STOP_WORDS = frozenset(_LUCENE.split())  # Lucene's 33 English stop words
CACHED_WORDS = 65_536
MAX_QUERY_CHARS = 10_000  # longer queries are cut: a model may write 100 kB of anything
_SURROGATE = re.compile("[\ud800-\udfff]")


def readable(text: str) -> str:
    """Replace lone surrogates, which JSON allows but UTF-8 does not, by U+FFFD."""
    return _SURROGATE.sub("\ufffd", text)


def words(text: str, settings: RetrievalSettings) -> list[str]:
    """Lower-cased words in order, unstemmed: "The Bay of Bengal" -> ["bay", "bengal"] without stop words."""
    found = WORD.findall(text.lower())
    return [word for word in found if word not in STOP_WORDS] if settings.remove_stop_words else found


def make_stemmer(settings: RetrievalSettings) -> Callable[[str], str]:
    """A function from a lower-cased word to its Snowball stem ("cities" -> "citi"), or to itself without stemming.

    Thread-safe; caches the last `CACHED_WORDS`, which makes it several times faster.
    """
    if not settings.stem:
        return lambda word: word
    import Stemmer

    stem, lock = Stemmer.Stemmer("english").stemWord, threading.Lock()  # a Stemmer's own cache is not thread-safe

    @lru_cache(maxsize=CACHED_WORDS)
    def stem_alone(word: str) -> str:
        with lock:
            return stem(word)

    return stem_alone
