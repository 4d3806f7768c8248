import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlvr.cli.main import main
from rlvr.retrieval.base import Document, RetrievalError
from rlvr.retrieval.retriever import open_retriever
from tests.unit.retrieval.passages import documents, retrieval, write_corpus


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running `rlvr retrieve --serve`."""
    process, url = start(tmp_path_factory.mktemp("serve"))
    yield url
    assert stop(process, signal.SIGTERM) == (143, "")


def start(folder: Path, *options: str) -> tuple[subprocess.Popen[str], str]:
    corpus = str(write_corpus(folder))
    command = [sys.executable, "-m", "rlvr", "retrieve", corpus, "--serve", "--port", "0", "--index-dir", str(folder)]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    line = process.stderr.readline()
    found = re.search(r"http://127\.0\.0\.1:\d+", line)
    assert found, line + process.stderr.read()
    return process, found[0]


def stop(process: subprocess.Popen[str], number: signal.Signals) -> tuple[int, str]:
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    return process.returncode, err


def ask(url: str, body: object) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data=data), timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def found(name: str, url: str, query: str, top_n: int, **settings: object) -> list[Document]:
    scope = "corpus" if name == "search" else "paragraphs"
    retriever = open_retriever(name, retrieval(scope=scope, rerank_url=url, search_url=url, max_retries=0, **settings))

    async def once() -> list[Document]:
        return await retriever.over(documents()[:5], ())(query, top_n)

    return asyncio.run(once())


def test_our_clients_understand_our_service(url: str) -> None:
    assert found("rerank", url, "longest river of Poland", 2) == [documents()[3], documents()[1]]
    assert found("rerank", url, "Vistula", 5, service_model="bm25")[:1] == [documents()[3]]
    assert len(found("rerank", url, "unheardof", 5)) == 5
    assert found("search", url, "Texas", 2) == [documents()[5]]
    assert found("search", url, "unheardof", 2) == []
    with pytest.raises(RetrievalError, match="this service has bm25 only"):
        found("rerank", url, "Vistula", 5, service_model="bge")


def test_rerank_answers_like_cohere(url: str) -> None:
    body = {"query": "river", "documents": ["a river", {"text": "b", "title": "c"}], "model": "", "other": 1}
    status, answer = ask(f"{url}/rerank", body)
    assert status == 200
    assert [result["index"] for result in answer["results"]] == [0, 1]
    assert answer["results"][0]["relevance_score"] > 0 == answer["results"][1]["relevance_score"]
    status, answer = ask(f"{url}/rerank", body | {"top_n": 1, "return_documents": True})
    assert [result["document"] for result in answer["results"]] == [{"text": "a river", "title": ""}]
    assert ask(f"{url}/rerank", {"query": "", "documents": []}) == (200, {"model": "bm25", "results": []})


BAD = {
    "search": [
        *(b"{", [], {}, {"query": 3}, {"query": "x" * 100_001}),
        *({"query": "a", "top_n": top_n} for top_n in (0, 10**9, "3")),
    ],
    "rerank": [{"query": "a"}]
    + [{"query": "a", "documents": given} for given in ("abc", [3], [{"title": "a"}], ["a"] * 1_001)],
}


@pytest.mark.parametrize("path", BAD)
def test_bad_requests_are_refused_with_a_reason(url: str, path: str) -> None:
    for body in BAD[path]:
        status, answer = ask(f"{url}/{path}", body)
        assert status == 400, body
        assert answer["error"]


def test_a_retriever_of_ones_own_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).resolve().parents[3] / "examples" / "own")
    process, url = start(tmp_path, "--retriever", "my_retriever:Trigrams")
    status, answer = ask(f"{url}/search", {"query": "Vistla", "top_n": 2})
    assert (status, [result["id"] for result in answer["results"]]) == (200, ["d1", "d3"])
    status, answer = ask(f"{url}/rerank", {"query": "Seine", "documents": ["Loire", "Seinaert", "Seine"]})
    scores = [(result["index"], result["relevance_score"]) for result in answer["results"]]
    assert scores == [(2, 1.0), (1, 0.5), (0, 0.0)]
    assert stop(process, signal.SIGTERM) == (143, "")


def test_a_taken_port_is_one_sentence(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port, folder = url.rpartition(":")[2], str(tmp_path)
    assert main(["retrieve", str(write_corpus(tmp_path)), "--serve", "--port", port, "--index-dir", folder]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"rlvr: error: --host 127.0.0.1 --port {port} cannot be used")
