"""Searches of episodes: each over its own documents, however many run at once."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rlvr.errors import ConfigError
from rlvr.retrieval.base import Document, Index, RetrievalError, Search
from rlvr.retrieval.bm25 import Bm25
from rlvr.retrieval.retriever import KEPT_INDEXES, Retriever, find_retriever, open_retriever
from tests.unit.retrieval.passages import bm25, documents, retrieval, write_corpus


def own_documents(number: int) -> list[Document]:
    """Ten, which differ from those of another number in their texts only: ids and titles are the same."""
    return [
        Document(id=str(place), title=f"Town {place}", text=f"The secret word is word{number} here.")
        for place in range(10)
    ]


@pytest.mark.parametrize("is_instant", [True, False])
def test_pitfall_38_a_thousand_episodes_at_once_see_their_own_documents_only(
    is_instant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bm25, "is_instant", is_instant)
    retriever = bm25()

    async def episode(number: int) -> None:
        search = retriever.over(own_documents(number), {"0"})
        for _ in range(2):
            found = await search("secret word Town", 3)
            assert found == own_documents(number)[:3]
            await asyncio.sleep(0)
            assert await search(f"word{number + 1}", 3) == []

    async def episodes() -> None:
        await asyncio.gather(*(episode(number) for number in range(1_000)))

    asyncio.run(episodes())
    assert len(retriever._indexes) == KEPT_INDEXES


def test_pitfall_38_equal_ids_and_titles_do_not_share_an_index() -> None:
    retriever = bm25()
    first = retriever.over(own_documents(1), ())
    second = retriever.over(own_documents(2), ())
    for _ in range(2):
        assert asyncio.run(first("secret", 1)) == own_documents(1)[:1]
        assert asyncio.run(second("secret", 1)) == own_documents(2)[:1]


def test_the_episodes_of_a_group_share_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    index = Bm25.index

    def counting(retriever: Bm25, documents: Sequence[Document]) -> Index:
        made.append(1)
        return index(retriever, documents)

    monkeypatch.setattr(Bm25, "index", counting)
    retriever = bm25()
    for _ in range(8):
        assert asyncio.run(retriever.over(own_documents(1), ())("secret", 1))
    assert len(made) == 1


def test_documents_changed_by_the_caller_afterwards_do_not_matter() -> None:
    mine = own_documents(1)
    search = open_retriever("bm25", retrieval()).over(mine, ())
    mine.clear()
    assert len(asyncio.run(search("secret", 20))) == 10


@pytest.mark.parametrize("top_n", [0, -3])
def test_no_documents_for_nothing(top_n: int) -> None:
    for name in ("bm25", "golden"):
        search = open_retriever(name, retrieval()).over(documents(), {"d1"})
        assert asyncio.run(search("Warsaw", top_n)) == []


def test_a_question_without_paragraphs_finds_nothing() -> None:
    for name in ("bm25", "lexical", "golden"):
        search = open_retriever(name, retrieval()).over([], ())
        assert asyncio.run(search("Warsaw", 3)) == []


def test_the_oracle_gives_what_supports_whatever_is_asked() -> None:
    retriever = open_retriever("golden", retrieval())

    def ids(search: Search, query: str, top_n: int) -> list[str]:
        return [document.id for document in asyncio.run(search(query, top_n))]

    search = retriever.over(documents(), {"d3", "d0", "unknown"})
    assert ids(search, "", 5) == ids(search, "Texas", 5) == ["d0", "d3"]
    assert ids(search, "Texas", 1) == ["d0"]


def test_a_corpus_is_searched_instead_of_the_documents(tmp_path: object) -> None:
    settings = retrieval(scope="corpus", corpus=str(write_corpus(tmp_path)), index_dir=f"{tmp_path}/i")  # type: ignore
    retriever = open_retriever("bm25", settings)
    search = retriever.over(own_documents(1), ())
    assert [document.id for document in asyncio.run(search("longest river", 1))] == ["d3"]
    assert asyncio.run(search("secret", 5)) == []
    golden = open_retriever("golden", settings).over(own_documents(1), {"4"})
    assert [document.id for document in asyncio.run(golden("", 5))] == ["4"]


@pytest.mark.parametrize("name", ["bm26", "bm25/x", "golden2", "", "semantic/", "hybrid/", "lexical/"])
def test_an_unknown_retriever_is_one_sentence(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^task.retriever={name}: there is no such retriever; ") as error:
        find_retriever(name, retrieval())
    assert "\n" not in str(error.value)


def test_a_corpus_must_be_named() -> None:
    with pytest.raises(ConfigError, match=r"task\.retrieval\.corpus"):
        open_retriever("bm25", retrieval(scope="corpus"))


def test_what_a_retriever_declares() -> None:
    """What the tasks make of the settings; nothing is loaded for it."""
    found = {name: find_retriever(name, retrieval()) for name in ("bm25", "semantic", "hybrid", "golden", "search")}
    assert found["bm25"].uses == found["hybrid"].uses == {"stem", "remove_stop_words"}
    assert found["semantic"].uses == found["golden"].uses == frozenset()
    assert "search_url" in found["search"].uses
    assert [name for name, one in found.items() if one.gives_all] == ["golden"]
    assert [name for name, one in found.items() if not one.is_local] == ["golden", "search"]
    assert find_retriever("semantic/a/b", retrieval()).model == "a/b"


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("golden", {"scope": "corpus"}, "needs a file of passages with task.retriever=golden; set task.retrieval.cor"),
        ("rerank", {"scope": "corpus", "corpus": "c"}, "task.retriever=rerank: orders the question's own paragraphs"),
        ("search", {}, "task.retriever=search: the service has documents of its own; set task.retrieval.scope=corpus"),
        ("rerank", {"max_retries": 3, "timeout_s": 10.0}, "task.tool_timeout_s=41: a service that is down must end"),
    ],
)
def test_settings_that_do_not_go_together_are_one_sentence(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_retriever(name, retrieval(**settings)).check(tool_timeout_s=41)
    find_retriever("rerank", retrieval(max_retries=1)).check(tool_timeout_s=30)


class Backwards(Retriever):
    """One's own: the last documents that have the query in them, case and all."""

    least: int = 0

    async def search(self, query: str, documents: Sequence[Document], top_n: int) -> list[Document]:
        if query == "fail":
            raise ConnectionError("nobody\nanswers")
        return [document for document in reversed(documents) if query in document.full][self.least :]


BACKWARDS = f"{Backwards.__module__}:Backwards"


def test_a_retriever_of_ones_own_searches_paragraphs_and_corpora(tmp_path: Path) -> None:
    own = open_retriever(BACKWARDS, retrieval(own={"least": 1}))
    assert asyncio.run(own.over(documents(), ())("Paris", 1)) == [documents()[2]]
    assert asyncio.run(own.over(documents(), ())("?", 1)) == []
    settings = retrieval(scope="corpus", corpus=str(write_corpus(tmp_path)), index_dir=str(tmp_path))
    over_corpus = open_retriever(BACKWARDS, settings)
    assert asyncio.run(over_corpus.over([], ())("Paris", 2)) == [documents()[5], documents()[2]]
    assert [(found.document.id, found.score) for found in own.ranked("river", documents(), 3)] == [
        ("d3", 1.0),
        ("d1", 0.5),
    ]


def test_pitfall_26_a_failure_of_ones_own_retriever_ends_the_run() -> None:
    search = open_retriever(BACKWARDS, retrieval()).over(documents(), ())
    with pytest.raises(RetrievalError, match="its search failed \\(ConnectionError: 'nobody") as error:
        asyncio.run(search("fail", 1))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("own", "message"), [({"most": 1}, "own.most=1: there is no such key"), ({"least": "a"}, "own.least=a: must be")]
)
def test_wrong_settings_of_ones_own_retriever_are_one_sentence(own: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"{message}.*; .*least"):
        find_retriever(BACKWARDS, retrieval(own=own))
    with pytest.raises(ConfigError, match="bm25 has no settings"):
        find_retriever("bm25", retrieval(own=own))
