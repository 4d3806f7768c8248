import bm25s
import pytest
import Stemmer

from rlvr.retrieval.text import MAX_QUERY_CHARS, STOP_WORDS, bounded, has_words, make_stemmer, words
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


def test_the_stop_words_are_lucenes() -> None:
    assert len(STOP_WORDS) == 33
    assert set(bm25s.stopwords.STOPWORDS_EN) == STOP_WORDS


def test_stems_only_where_asked() -> None:
    assert make_stemmer(STEMMED)("cities") == "citi"
    assert make_stemmer(PLAIN)("cities") == "cities"


def test_queries_are_bounded_and_become_text() -> None:
    assert len(bounded("word " * 20_000)) == MAX_QUERY_CHARS
    assert bounded("Lyon \ud800") == "Lyon \ufffd"
    assert bounded("Lyon") == "Lyon"


def test_what_has_words() -> None:
    assert has_words("is it")
    assert not any(map(has_words, ("", "  ", "a ?", "?!")))
