import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from rlvr.retrieval import filtered
from rlvr.retrieval.base import Document
from rlvr.retrieval.corpus import open_corpus
from rlvr.retrieval.filtered import POOL, WEIGHTS, Described, FilteredIndex, standardized
from rlvr.retrieval.retriever import open_retriever
from rlvr.retrieval.settings import RetrievalSettings

ASKED = "Where was the director of Solaris born?"
FILM = Document(id="film", title="Solaris (1972 film)", text="Solaris is a film by Andrei Tarkovsky.")
PERSON = Document(id="person", title="Andrei Tarkovsky", text="He grew up in a village, Zavrazhye.")
TOWN = Document(id="town", title="Gdansk", text="A pope was born there, where else.")
OTHER = Document(id="other", title="Wine", text="It is made of grapes.")
FOUR = (OTHER, TOWN, PERSON, FILM)


def index(documents: Sequence[Document], **settings: bool) -> FilteredIndex:
    found = open_retriever("filtered", RetrievalSettings(**settings)).index(documents)  # type: ignore[attr-defined]
    assert isinstance(found, FilteredIndex)
    return found


def column(name: str, documents: Sequence[Document] = FOUR, asked: str = ASKED) -> list[float]:
    made = Described(documents, str.split).features(asked, np.arange(len(documents), dtype=float))
    assert made.shape == (len(documents), len(WEIGHTS))
    return made[:, [*WEIGHTS].index(name)].tolist()


def test_a_document_is_found_that_shares_no_word_with_the_question_but_is_named_by_one_that_does() -> None:
    bm25 = open_retriever("bm25", RetrievalSettings()).index(FOUR)  # type: ignore[attr-defined]
    assert [found.document.id for found in bm25.search(ASKED, 4)] == ["town", "film"]
    assert [found.document.id for found in index(FOUR).search(ASKED, 2)] == ["film", "person"]


def test_titles_are_found_in_the_question_and_in_other_documents_as_whole_words() -> None:
    assert column("title in the question") == [0, 0, 0, 1]  # without what is in brackets
    assert column("named by a document") == [0, 0, 1, 0]
    assert column("names a document") == [0, 0, 0, 1]
    assert column("named by the best") == [0, 0, 1, 0]
    assert column("BM25 of those that name it") == pytest.approx([0, 0, standardized([0, 1, 2, 3])[3], 0])
    part = Document(id="part", title="Sol", text="")
    assert column("title in the question", (part, FILM)) == [0, 1]
    assert column("named by a document", (part, FILM)) == [0, 0]


def test_documents_of_one_title_do_not_name_each_other() -> None:
    twins = (Document(id="a", title="Lyon", text="Lyon is old."), Document(id="b", title="Lyon", text="Lyon is big."))
    assert column("named by a document", twins) == [0, 0]
    assert column("names a document", twins) == [0, 0]


def test_shares_of_words_and_names_are_standardized() -> None:
    three = [Document(id=str(n), title=title, text="") for n, title in enumerate(("Rome", "Rome Oslo", "x"))]
    asked = "Is Rome Oslo"
    assert column("words of the question", three, asked) == pytest.approx(standardized([1 / 3, 2 / 3, 0]))
    assert column("names of the question", three, asked) == pytest.approx(standardized([1 / 2, 1, 0]))
    assert column("words of the title", three, asked) == pytest.approx(standardized([1, 1, 0]))
    first = [three[1], Document(id="is", title="Is", text="")]  # the first word of a question is no name
    assert column("names of the question", first, asked) == pytest.approx([1, -1])
    assert column("names of the question", [*first, three[2]], asked) == pytest.approx(standardized([1, 0, 0]))
    assert standardized([2, 4, 6]).tolist() == pytest.approx([-(1.5**0.5), 0, 1.5**0.5])
    assert standardized([5, 5]).tolist() == [0, 0]


def test_letters_see_through_endings() -> None:
    ends = [Document(id=str(n), title="", text=text) for n, text in enumerate(("directing", "grapes", "direct"))]
    same, nothing, nearly = column("cosine of letters", ends, "direct")
    assert nearly > same > nothing


@pytest.mark.parametrize("text", ["", "?!", "\ud800", "x" * 20_000])
@pytest.mark.parametrize("title", ["", "()", "..."])
def test_any_document_and_query_has_finite_scores(text: str, title: str) -> None:
    odd = Document(id="odd", title=title, text=text)
    for documents in ((odd,), (odd, odd), (odd, FILM), ()):
        for asked in (ASKED, "", "\ud800", "?"):
            assert np.isfinite(index(documents).scores(asked)).all()


def test_of_many_documents_the_best_by_words_are_filtered() -> None:
    """Above POOL documents each of the others would have to be compared with all."""
    crowd = tuple(Document(id=str(n), title=f"Film {n}", text="A director was born.") for n in range(POOL))
    many = (*FOUR, *crowd)
    scores = index(many).scores(ASKED)
    assert len(scores) == POOL + 4
    assert int(np.isfinite(scores).sum()) == POOL
    found = [one.document.id for one in index(many).search(ASKED, POOL + 4)]
    assert len(found) == POOL
    assert found[0] == "film"
    assert "other" not in found  # no word in common
    assert index(many).search("zzz", 5) == []


def test_a_corpus_is_searched_as_its_documents_are(tmp_path: Path) -> None:
    lines = [{"id": one.id, "title": one.title, "text": one.text} for one in FOUR]
    (tmp_path / "corpus.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    corpus = open_corpus(tmp_path / "corpus.jsonl.gz", tmp_path / "indexes")
    retriever = open_retriever("filtered", RetrievalSettings())
    stored = retriever.corpus_index(corpus).search(ASKED, 4)  # type: ignore[attr-defined]
    assert stored == index(FOUR).search(ASKED, 4)


def test_settings_of_words_are_read() -> None:
    """With stems `directors` is a word of the question."""
    plural = (Document(id="a", title="x", text="wine grapes"), Document(id="b", title="y", text="film directors"))
    stemmed, plain = (index(plural, stem=stem).scores("director").tolist() for stem in (True, False))
    assert stemmed[1] > plain[1]


def test_weights_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    only = {name: float(name == "length") for name in WEIGHTS}
    monkeypatch.setattr(filtered, "WEIGHTS", only)
    assert [found.document.id for found in index(FOUR).search(ASKED, 4)] == ["film", "person", "town", "other"]


def test_up_to_pool_documents_all_are_compared() -> None:
    """Also those without a word of the question."""
    crowd = tuple(Document(id=str(n), title=f"Film {n}", text="A director was born.") for n in range(POOL - len(FOUR)))
    assert np.isfinite(index((*FOUR, *crowd)).scores(ASKED)).all()
