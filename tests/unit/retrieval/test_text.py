import bm25s
import pytest
import Stemmer

from rlvr.retrieval.text import make_stemmer, words
from tests.unit.retrieval.passages import PLAIN, STEMMED, TEXTS

HARD = "U.S. don't re-enter I a_b 3.14 x² Ünïted naïve 東京 ﬁne\tTHE the cities\x00"


@pytest.mark.parametrize("text", [HARD, "", "a b c", *(text for _, text in TEXTS)])
def test_words_are_those_of_bm25s(text: str) -> None:
    def reference(**options: object) -> list[str]:
        return bm25s.tokenize([text], return_ids=False, show_progress=False, **options)[0]  # type: ignore[index]

    assert words(text, PLAIN) == reference(stopwords=[])
    stem = make_stemmer(STEMMED)
    stemmer = Stemmer.Stemmer("english")
    assert [stem(word) for word in words(text, STEMMED)] == reference(stopwords="en", stemmer=stemmer)
