import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rlvr.errors import ConfigError
from rlvr.retrieval.base import Document, RetrievalError, Search
from rlvr.retrieval.bm25 import Bm25
from rlvr.retrieval.retriever import Retriever, find_retriever, open_retriever
from rlvr.retrieval.settings import RetrievalSettings
from tests.unit.retrieval.passages import bm25, documents, retrieval, write_corpus


def own_documents(number: int) -> list[Document]:
    """Ten, which differ from those of another number in their texts only: ids and titles are the same."""
    text = f"The secret word is word{number} here."
    return [Document(id=str(place), title=f"Town {place}", text=text) for place in range(10)]


@pytest.mark.slow
@pytest.mark.parametrize(("is_instant", "num"), [(True, 1_000), (False, 200)])
def test_pitfall_38_a_thousand_episodes_see_their_own_documents(
    is_instant: bool, num: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bm25, "is_instant", is_instant)
    monkeypatch.setattr("rlvr.retrieval.retriever.KEPT_INDEXES", num // 2)
    retriever = bm25()

    async def episode(number: int) -> None:
        search = retriever.over(own_documents(number), {"0"})
        for _ in range(2):
            found = await search("secret word Town", 3)
            assert found == own_documents(number)[:3]
            await asyncio.sleep(0)
            assert await search(f"word{number + 1}", 3) == []

    async def episodes() -> None:
        await asyncio.gather(*(episode(number) for number in range(num)))

    asyncio.run(episodes())
    assert retriever.kept_index.cache_info().currsize == num // 2


def test_the_oracle_gives_what_supports_whatever_is_asked() -> None:
    retriever = open_retriever("golden", retrieval())

    def ids(search: Search, query: str, top_n: int) -> list[str]:
        return [document.id for document in asyncio.run(search(query, top_n))]

    search = retriever.over(documents(), {"d3", "d0", "unknown"})
    assert ids(search, "", 5) == ids(search, "Texas", 5) == ["d0", "d3"]
    assert ids(search, "Texas", 1) == ["d0"]


def in_corpus(folder: Path) -> RetrievalSettings:
    return retrieval(scope="corpus", corpus=str(write_corpus(folder)), index_dir=f"{folder}/i")


def test_a_corpus_is_searched_instead_of_the_documents(tmp_path: Path) -> None:
    search = open_retriever("bm25", in_corpus(tmp_path)).over(own_documents(1), ())
    assert [document.id for document in asyncio.run(search("longest river", 1))] == ["d3"]
    assert asyncio.run(search("secret", 5)) == []
    golden = open_retriever("golden", in_corpus(tmp_path)).over(own_documents(1), {"4"})
    assert [document.id for document in asyncio.run(golden("", 5))] == ["4"]


@pytest.mark.parametrize("name", ["bm26", "bm25/x", "golden2", "", "semantic/", "hybrid/", "lexical/"])
def test_an_unknown_retriever_is_one_sentence(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^task.retriever={name}: there is no such retriever; ") as error:
        find_retriever(name, retrieval())
    assert "\n" not in str(error.value)


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
    """One's own: the last documents that have the query in them, case and all. Some queries have it go wrong."""

    least: int = 0

    async def search(self, query: str, documents: Sequence[Document], top_n: int) -> Any:
        if query == "fail":
            raise ConnectionError("nobody\nanswers")
        if query in WRONG:
            return WRONG[query]
        return [document for document in reversed(documents) if query in document.full][self.least :]


BACKWARDS = f"{Backwards.__module__}:Backwards"
OTHER = Document(id="caf\u00e9", title="", text="of its own")
WRONG = {"none": None, "number": 3, "text": "d1", "dict": {"d1": 1.0}, "ids": ["d1", "d2"]}
WRONG |= {"pairs": [(documents()[0], 0.5)], "unknown": [documents()[0], OTHER]}


def test_a_retriever_of_ones_own_searches_paragraphs_and_corpora(tmp_path: Path) -> None:
    own = open_retriever(BACKWARDS, retrieval(own={"least": 1}))
    assert asyncio.run(own.over(documents(), ())("Paris", 1)) == [documents()[2]]
    assert asyncio.run(own.over(documents(), ())("?", 1)) == []
    over_corpus = open_retriever(BACKWARDS, in_corpus(tmp_path))
    assert asyncio.run(over_corpus.over([], ())("Paris", 2)) == [documents()[5], documents()[2]]
    ranked = asyncio.run(own.ranked("river", documents(), 3))
    assert [(found.document.id, found.score) for found in ranked] == [("d3", 1.0), ("d1", 0.5)]


def test_pitfall_26_a_failure_of_ones_own_retriever_ends_the_run() -> None:
    search = open_retriever(BACKWARDS, retrieval()).over(documents(), ())
    with pytest.raises(RetrievalError, match="its search failed \\(ConnectionError: nobody") as error:
        asyncio.run(search("fail", 1))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("query", WRONG)
def test_a_wrong_result_of_ones_own_retriever_is_one_sentence(tmp_path: Path, query: str) -> None:
    for settings in (retrieval(), in_corpus(tmp_path)):
        with pytest.raises(RetrievalError, match=r":Backwards: its search returned .*; it must return a list") as error:
            asyncio.run(open_retriever(BACKWARDS, settings).over(documents(), ())(query, 1))
        assert "\n" not in str(error.value)
