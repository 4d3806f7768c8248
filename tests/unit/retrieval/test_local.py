"""Searches of episodes: each over its own documents, however many run at once."""

import asyncio
import threading

import pytest

from rlvr.errors import ConfigError
from rlvr.retrieval.base import Document, Index, Search
from rlvr.retrieval.bm25 import Bm25
from rlvr.retrieval.factory import make_retriever
from rlvr.retrieval.local import KEPT_INDEXES, ParagraphRetriever
from tests.unit.retrieval.passages import STEMMED, documents, retrieval, write_corpus


def own_documents(number: int) -> list[Document]:
    """Ten, which differ from those of another number in their texts only: ids and titles are the same."""
    return [
        Document(id=str(place), title=f"Town {place}", text=f"The secret word is word{number} here.")
        for place in range(10)
    ]


@pytest.mark.parametrize("in_thread", [False, True])
def test_pitfall_38_a_thousand_episodes_at_once_see_their_own_documents_only(in_thread: bool) -> None:
    retriever = ParagraphRetriever(Bm25(settings=STEMMED), in_thread=in_thread)

    async def episode(number: int) -> None:
        search = retriever.over(f"example {number}", own_documents(number), {"0"})
        for _ in range(2):
            found = await search("secret word Town", 3)
            assert found == own_documents(number)[:3]
            await asyncio.sleep(0)
            assert await search(f"word{number + 1}", 3) == []

    async def episodes() -> None:
        await asyncio.gather(*(episode(number) for number in range(1_000)))

    asyncio.run(episodes())
    assert len(retriever._indexes) == KEPT_INDEXES


def test_pitfall_38_the_same_key_with_other_documents_shows_those() -> None:
    retriever = ParagraphRetriever(Bm25(settings=STEMMED), in_thread=False)
    first = retriever.over("key", own_documents(1), ())
    second = retriever.over("key", own_documents(2), ())
    for _ in range(2):
        assert asyncio.run(first("secret", 1)) == own_documents(1)[:1]
        assert asyncio.run(second("secret", 1)) == own_documents(2)[:1]


def test_the_episodes_of_a_group_share_an_index() -> None:
    made: list[int] = []

    class Counting(Bm25):
        def build(self, documents: object) -> Index:  # type: ignore[override]
            made.append(threading.get_ident())
            return super().build(documents)  # type: ignore[arg-type]

    retriever = ParagraphRetriever(Counting(settings=STEMMED), in_thread=False)
    for _ in range(8):
        assert asyncio.run(retriever.over("key", own_documents(1), ())("secret", 1))
    assert len(made) == 1


def test_documents_changed_by_the_caller_afterwards_do_not_matter() -> None:
    mine = own_documents(1)
    search = make_retriever("bm25", retrieval()).over("key", mine, ())
    mine.clear()
    assert len(asyncio.run(search("secret", 20))) == 10


@pytest.mark.parametrize("top_n", [0, -3])
def test_no_documents_for_nothing(top_n: int) -> None:
    for name in ("bm25", "golden"):
        search = make_retriever(name, retrieval()).over("key", documents(), {"d1"})
        assert asyncio.run(search("Warsaw", top_n)) == []


def test_a_question_without_paragraphs_finds_nothing() -> None:
    for name in ("bm25", "lexical", "golden"):
        search = make_retriever(name, retrieval()).over("key", [], ())
        assert asyncio.run(search("Warsaw", 3)) == []


def test_the_oracle_gives_what_supports_whatever_is_asked() -> None:
    retriever = make_retriever("golden", retrieval())

    def ids(search: Search, query: str, top_n: int) -> list[str]:
        return [document.id for document in asyncio.run(search(query, top_n))]

    search = retriever.over("key", documents(), {"d3", "d0", "unknown"})
    assert ids(search, "", 5) == ids(search, "Texas", 5) == ["d0", "d3"]
    assert ids(search, "Texas", 1) == ["d0"]


def test_a_corpus_is_searched_instead_of_the_documents(tmp_path: object) -> None:
    settings = retrieval(scope="corpus", corpus=str(write_corpus(tmp_path)), index_dir=f"{tmp_path}/i")  # type: ignore
    retriever = make_retriever("bm25", settings)
    search = retriever.over("key", own_documents(1), ())
    assert [document.id for document in asyncio.run(search("longest river", 1))] == ["d3"]
    assert asyncio.run(search("secret", 5)) == []
    golden = make_retriever("golden", settings).over("key", own_documents(1), {"4"})
    assert [document.id for document in asyncio.run(golden("", 5))] == ["4"]


@pytest.mark.parametrize("name", ["bm26", "bm25/x", "golden2", "", "semantic/", "hybrid/", "lexical/"])
def test_an_unknown_retriever_is_a_setting_to_mend(name: str) -> None:
    with pytest.raises(ConfigError, match="there is no retriever"):
        make_retriever(name, retrieval())


def test_a_corpus_must_be_named() -> None:
    with pytest.raises(ConfigError, match=r"task\.retrieval\.corpus"):
        make_retriever("bm25", retrieval(scope="corpus"))
