import asyncio
import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from rlvr.errors import ConfigError
from rlvr.retrieval import services
from rlvr.retrieval.base import Document, NoAnswerError, RetrievalError
from rlvr.retrieval.retriever import Retriever, open_retriever
from rlvr.retrieval.services import ServiceRetriever
from tests.unit.retrieval.passages import documents, retrieval

Answer = Callable[[dict[str, Any]], tuple[int, bytes]]


class Server:
    """Answers with `answer(body)` and keeps what was asked."""

    def __init__(self) -> None:
        self.answer: Answer = lambda body: (200, b'{"results": []}')
        self.asked: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.asked.append((self.path, dict(self.headers), body))
                status, data = server.answer(body)
                self.send_response(status)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.http.handle_error = lambda request, client_address: None  # a client that gave up
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def says(self, answer: object, status: int = 200) -> None:
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.answer = lambda body: (status, data)


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.http.shutdown()
    running.http.server_close()


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "FIRST_PAUSE_S", 0.01)


def reranker(server: Server, **settings: Any) -> Retriever:
    return open_retriever("rerank", retrieval(rerank_url=server.url, max_document_chars=30, **settings))


def searcher(server: Server, **settings: Any) -> Retriever:
    return open_retriever("search", retrieval(scope="corpus", search_url=server.url, **settings))


def rerank(server: Server, query: str = "capital", top_n: int = 2, **settings: Any) -> list[Document]:
    return search_once(reranker(server, **settings), query, top_n)


def search(server: Server, query: str = "capital", top_n: int = 2, **settings: Any) -> list[Document]:
    return search_once(searcher(server, **settings), query, top_n)


def search_once(retriever: Retriever, query: str, top_n: int) -> list[Document]:
    async def once() -> list[Document]:
        return await retriever.over(documents(), ())(query, top_n)

    return asyncio.run(once())


def test_rerank_takes_the_order_of_the_service(server: Server) -> None:
    results = [{"index": 1, "relevance_score": 0.5}, {"index": 4, "relevance_score": 0.9, "document": {"text": "x"}}]
    server.says({"results": results, "id": "x"})
    assert rerank(server) == [documents()[4], documents()[1]]
    path, _, body = server.asked[0]
    texts = [document.full[:30] for document in documents()]
    assert path == "/rerank"
    assert body == {"query": "capital", "documents": texts, "top_n": 2, "return_documents": False}


def test_search_takes_the_passages_of_the_service(server: Server) -> None:
    first = {"id": 7, "title": "T", "text": "one", "score": 2}
    server.says({"results": [first, "two", {"document": {"text": "three"}}]})
    found = search(server, top_n=3)
    assert [(document.title, document.text) for document in found] == [("T", "one"), ("", "two"), ("", "three")]
    assert found[0].id == "7"
    assert len({document.id for document in found}) == 3
    assert server.asked[0][0::2] == ("/search", {"query": "capital", "top_n": 3})
    assert search(server, top_n=1) == found[:1]
    server.says(b'{"results": [{"text": "cut \\ud83d"}]}')
    assert search(server)[0].text == "cut \ufffd"


@pytest.mark.parametrize("ask", [rerank, search])
def test_queries_are_cut_and_mended_and_empty_ones_not_sent(server: Server, ask: Any) -> None:
    assert ask(server, query="?") == ask(server, query=" \n") == ask(server, top_n=0) == []
    assert server.asked == []
    assert ask(server, query="\ud800 word " * 12_500) == []
    assert server.asked[0][2]["query"].startswith("\ufffd word ")
    assert len(server.asked[0][2]["query"]) == 10_000


@pytest.mark.parametrize("make", [reranker, searcher])
@pytest.mark.parametrize(("share", "told"), [(0.0, 0), (0.02, 1), (0.1, 5)])
def test_pitfall_26_a_search_may_fail_but_not_often(server: Server, make: Any, share: float, told: int) -> None:
    server.says(b"out of memory\n\x1b[31m", status=500)
    retriever = make(server, max_retries=1, max_error_share=share)
    for _ in range(told):
        with pytest.raises(NoAnswerError, match=r"does not answer after 2 requests \(status 500: 'out of memory"):
            search_once(retriever, "capital", 1)
    with pytest.raises(RetrievalError, match=rf"{told + 1} of the last 50 .* failed, more than .*={share:g}") as error:
        search_once(retriever, "capital", 1)
    assert "\x1b" not in str(error.value)
    assert not isinstance(error.value, NoAnswerError)
    assert len(server.asked) == 2 * (told + 1)


def test_pitfall_26_rare_failures_do_not_add_up(server: Server) -> None:
    """Of the last 50 searches at most one failed, of all of them three."""
    retriever = reranker(server, max_retries=0, max_error_share=0.02)
    for _ in range(3):
        server.says(b"busy", status=503)
        with pytest.raises(NoAnswerError):
            search_once(retriever, "capital", 1)
        server.says({"results": [{"index": 1, "relevance_score": 0.5}]})
        for _ in range(services.WATCHED_SEARCHES):
            search_once(retriever, "capital", 1)


def test_pitfall_26_a_service_that_hangs_ends_the_run(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one to ask makes all its requests first; else all might reach the time limit of the tool together."""
    monkeypatch.setattr(services, "MAX_CONCURRENT", 1)
    server.answer = lambda body: (time.sleep(0.3), (200, b'{"results": []}'))[1]
    retriever = searcher(server, timeout_s=0.05, max_retries=2, max_error_share=0)
    begun, exchange = [], ServiceRetriever._exchange

    def noted(self: ServiceRetriever, http: Any, body: Any) -> Any:
        begun.append(body["query"])  # the server hears no more than the pool lets through
        return exchange(self, http, body)

    monkeypatch.setattr(ServiceRetriever, "_exchange", noted)

    async def many() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(5):
                group.create_task(retriever.over((), ())(f"query {number}", 1))

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(many())
    assert isinstance(caught.value.exceptions[0], RetrievalError)
    assert begun[:3] == ["query 0"] * 3


@pytest.mark.parametrize("status", [203, 400, 401, 404, 302])
def test_a_refused_request_is_not_made_again(server: Server, status: int) -> None:
    server.says({"error": "no such model"}, status=status)
    with pytest.raises(RetrievalError, match=f"refuses the request .*{status}.*no such model"):
        rerank(server)
    assert len(server.asked) == 1


NONSENSE: list[object] = [b"<html>", b"", [], {"results": {}}, {"result": []}, b"[" * 100_000, None]
NO_RANKS: list[object] = [
    *(3, {}, {"index": 1}),
    *({"index": index, "relevance_score": 1} for index in (8, -1, "1", True)),
    *({"index": 1, "relevance_score": score} for score in ("high", math.nan)),
]
NO_PASSAGES: list[object] = [
    *(3, None, {}, {"text": 3}, {"text": "a", "title": 3}),
    *({"document": document} for document in ([1], {"body": 3})),
]


@pytest.mark.parametrize(("ask", "results"), [(rerank, NO_RANKS), (search, NO_PASSAGES)])
def test_an_answer_that_is_nonsense_ends_the_run(server: Server, ask: Any, results: list[object]) -> None:
    for answer in (*NONSENSE, *({"results": [result]} for result in results)):
        server.says(answer)
        with pytest.raises(RetrievalError, match="answers with"):
            ask(server)


def test_an_answer_without_end_is_not_read(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlvr.retrieval.services.MAX_ANSWER_BYTES", 1_000)
    server.says(b" " * 5_000)
    with pytest.raises(RetrievalError, match="more than 1,000 bytes"):
        search(server)


ADDRESSES = [
    *("localhost:8931", "http://", "http://[::1", "http://host:port", "http://127.0.0.1:99999", "http://a host"),
    *("http:/host", "http:host:80", "http://host\x00", "http://me:secret@host", "http://host/?key=secret"),
]


@pytest.mark.parametrize("url", ADDRESSES)
def test_pitfall_26_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"task\.retrieval\.search_url") as error:
        open_retriever("search", retrieval(scope="corpus", search_url=url))
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("key", ["secret\n", "secret\r\nHost: x", "secr\u00e9t", "my secret"])
def test_pitfall_26_what_is_no_key_is_not_shown(server: Server, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("MY_KEY", key)
    with pytest.raises(ConfigError, match=r"api_key_var=MY_KEY: .* its value has") as error:
        open_retriever("rerank", retrieval(rerank_url=server.url, api_key_var="MY_KEY"))
    assert "secr" not in str(error.value)


def test_pitfall_26_whatever_a_request_raises_ends_the_run(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool's own exceptions are told to the model, which would go on without documents."""

    async def fail(*_: object) -> tuple[int, bytes]:
        raise ExceptionGroup("unhandled errors", [OSError("no more files")])

    monkeypatch.setattr(ServiceRetriever, "_exchange", fail)
    with pytest.raises(RetrievalError, match=r"does not answer after 3 requests \('unhandled errors"):
        search(server)


def test_addresses_and_keys_may_be_in_variables(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    paragraphs, corpus = ("rerank", "paragraphs", "RERANK_API_URL"), ("search", "corpus", "WIKI_SEARCH_API_URL")
    for name, scope, variable in (paragraphs, corpus):
        monkeypatch.delenv(variable, raising=False)
        with pytest.raises(ConfigError, match=f"set task.retrieval.{name}_url or {variable}"):
            open_retriever(name, retrieval(scope=scope))
    with pytest.raises(ConfigError, match=r"api_key_var=NO_SUCH_KEY: there is no such environment variable"):
        open_retriever("rerank", retrieval(rerank_url=server.url, api_key_var="NO_SUCH_KEY"))
    with pytest.raises(ConfigError, match="scope=paragraphs"):
        open_retriever("rerank", retrieval(rerank_url=server.url, scope="corpus"))
    monkeypatch.setenv("RERANK_API_URL", f"{server.url}/rerank/")
    monkeypatch.setenv("MY_KEY", "secret")
    retriever = open_retriever("rerank", retrieval(api_key_var="MY_KEY", service_model="bge"))
    assert search_once(retriever, "capital", 1) == []
    path, headers, body = server.asked[0]
    assert (path, headers["Authorization"], body["model"]) == ("/rerank", "Bearer secret", "bge")
