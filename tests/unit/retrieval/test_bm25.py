import math
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from rlvr.retrieval.base import Document
from rlvr.retrieval.bm25 import K1, B
from rlvr.retrieval.corpus import open_corpus
from rlvr.retrieval.settings import RetrievalSettings
from rlvr.retrieval.text import make_stemmer, words
from tests.unit.retrieval.passages import PLAIN, STEMMED, bm25, documents, ranked, write_corpus
from tests.unit.rewards.official.rows import data_folder, read_gzip

QUERIES = ("capital of Poland", "river rivers river", "Paris", "Which city is on the Vistula?", "華沙")


def formula(query: str, found: list[Document], settings: RetrievalSettings) -> dict[int, float]:
    """Scores above 0."""
    stem = make_stemmer(settings)
    tokens = [[stem(word) for word in words(document.full, settings)] for document in found]
    mean = sum(map(len, tokens)) / len(tokens)
    frequency = Counter(token for row in tokens for token in set(row))
    scores: dict[int, float] = {}
    for word in words(query, settings):
        df = frequency[stem(word)]
        idf = math.log(1 + (len(found) - df + 0.5) / (df + 0.5))
        for index, row in enumerate(tokens):
            tf = row.count(stem(word))
            if tf:
                gain = idf * tf / (tf + K1 * (1 - B + B * len(row) / mean))
                scores[index] = scores.get(index, 0) + gain
    return scores


@pytest.mark.parametrize("settings", [STEMMED, PLAIN])
@pytest.mark.parametrize("query", QUERIES)
def test_scores_are_those_of_the_formula(query: str, settings: RetrievalSettings) -> None:
    hits = bm25(settings).index(documents()).search(query, 100)
    expected = formula(query, documents(), settings)
    assert {int(hit.document.id[1:]): hit.score for hit in hits} == pytest.approx(expected, rel=1e-5)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


@pytest.mark.parametrize("query", ["", "   ", "?!", "a", "unheardof", "\ud800", "\x00", "x" * 100_000 + " Vistula"])
def test_a_query_that_says_nothing_finds_nothing(query: str) -> None:
    assert ranked(bm25(), documents(), query) == []


def test_a_stored_index_finds_the_same(tmp_path: Path) -> None:
    corpus = open_corpus(write_corpus(tmp_path), tmp_path / "indexes")
    for settings in (STEMMED, PLAIN):
        built = bm25(settings).index(documents())
        for _ in range(2):  # written, then only read
            stored = bm25(settings).corpus_index(corpus)
            assert [stored.search(query, 5) for query in QUERIES] == [built.search(query, 5) for query in QUERIES]
    assert len(list(corpus.folder.glob("bm25-*"))) == 2


def test_bm25s_does_not_start_jax() -> None:
    code = """if True:
        import sys
        from rlvr.retrieval.base import Document
        from rlvr.retrieval.retriever import open_retriever
        from rlvr.retrieval.settings import RetrievalSettings
        open_retriever("bm25", RetrievalSettings()).index([Document(id="1", title="a", text="bc")])
        assert "jax" not in sys.modules and "torch" not in sys.modules
        import bm25s.selection
        assert not bm25s.selection.JAX_IS_AVAILABLE
        """
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_recall_on_the_musique_corpus_is_that_of_the_reference(tmp_path: Path) -> None:
    index = bm25().corpus_index(open_corpus(data_folder() / "musique/corpus.jsonl.gz", tmp_path))
    shares = []
    for row in read_gzip(data_folder() / "musique/dev.jsonl.gz"):
        gold = {(entry["title"], entry["paragraph_text"]) for entry in row["paragraphs"] if entry["is_supporting"]}
        found = {(document.title, document.text) for document, _ in index.search(row["question"], 5)}
        shares.append(len(gold & found) / len(gold))
    assert 100 * sum(shares) / len(shares) == pytest.approx(50.3, abs=0.05)
