"""Services over HTTP: `rerank` orders a question's own documents, `search` has documents of its own.

    POST /rerank {"query", "documents": [text], "top_n", "return_documents": false[, "model"]}
        -> {"results": [{"index": 2, "relevance_score": 0.93}, ...]}
    POST /search {"query", "top_n"} -> {"results": [{"id", "title", "text"[, "score"]}, ...]}

A request that fails for a reason that may pass (no connection, no answer in time, status 408, 429 or 5xx) is made
again after a pause; then, and for any other failure, `RetrievalError` ends the run: a service that is down must not
turn into episodes without documents, and so into reward 0.

Connections are closed when their event loop ends.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import weakref
from abc import ABC
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from rlvr.errors import ConfigError
from rlvr.registry import register
from rlvr.retrieval.base import Document, RetrievalError
from rlvr.retrieval.retriever import Retriever
from rlvr.retrieval.text import readable

if TYPE_CHECKING:
    from httpx2 import AsyncClient

MAX_CONCURRENT = 32
MAX_ANSWER_BYTES = 16 << 20
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 8.0
PASSING = frozenset({408, 429, 500, 502, 503, 504})


@dataclass(frozen=True, kw_only=True)
class Service:
    """`Service(url="http://127.0.0.1:8931/rerank", timeout_s=10.0, max_retries=2)`"""

    url: str
    timeout_s: float
    max_retries: int
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Connection:
    """What belongs to one event loop. The gate, not the pool, makes requests wait, so that waiting is no time-out.

    `closing` is a generator that stands still until the event loop, at its own end, has it close the client.
    """

    client: AsyncClient
    gate: asyncio.Semaphore
    closing: AsyncIterator[AsyncClient]


class ServiceClient:
    """Posts JSON to a service. One object may be used from several event loops, one after another."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._connections: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Connection] = (
            weakref.WeakKeyDictionary()
        )

    async def post(self, body: Mapping[str, Any]) -> Any:
        """The service's answer to `body`. RetrievalError if there is none after `max_retries` further requests."""
        connection = await self._connection()
        async with connection.gate:  # also between the requests: else those who wait would be in turn before the last
            return await self._post(connection.client, body)

    async def _post(self, client: AsyncClient, body: Mapping[str, Any]) -> Any:
        problem = ""
        for attempt in range(self.service.max_retries + 1):
            if attempt:
                await asyncio.sleep(min(FIRST_PAUSE_S * 2 ** (attempt - 1), LONGEST_PAUSE_S))
            status, answer = await self._request(client, body)
            if status == 200:
                return self._parsed(answer)
            problem = f"status {status}: {_shown(answer)}" if status else _shown(answer)
            if status and status not in PASSING:
                raise self._error(f"refuses the request ({problem}); check its address, key and model.")
        tries = self.service.max_retries + 1
        raise self._error(f"does not answer after {tries} request{'s' * (tries > 1)} ({problem}); see that it runs.")

    async def _request(self, client: AsyncClient, body: Mapping[str, Any]) -> tuple[int, bytes]:
        """Status and answer; status 0 and the reason if there is no answer."""
        try:
            async with asyncio.timeout(self.service.timeout_s):  # httpx's own limits are for each read
                return await self._exchange(client, body)
        except TimeoutError:
            return 0, f"nothing within {self.service.timeout_s:g} s".encode()
        except RetrievalError:
            raise
        except Exception as error:  # not all that the library raises has one base class; a tool would tell the model
            return 0, (str(error) or type(error).__name__).encode("utf-8", "replace")

    async def _exchange(self, client: AsyncClient, body: Mapping[str, Any]) -> tuple[int, bytes]:
        content = json.dumps(body).encode()  # escapes what UTF-8 cannot hold
        headers = {"Content-Type": "application/json", **self.service.headers}
        async with client.stream("POST", self.service.url, content=content, headers=headers) as answer:
            data = b""
            async for block in answer.aiter_bytes():
                data += block
                if len(data) > MAX_ANSWER_BYTES:
                    raise self._error(f"answers with more than {MAX_ANSWER_BYTES:,} bytes; nothing so large is read.")
            return answer.status_code, data

    async def _connection(self) -> _Connection:
        loop = asyncio.get_running_loop()
        if loop not in self._connections:
            opened = _opened(self.service.url)
            client = await anext(opened)
            gate = asyncio.Semaphore(MAX_CONCURRENT)
            self._connections[loop] = _Connection(client=client, gate=gate, closing=opened)
        return self._connections[loop]

    def _parsed(self, answer: bytes) -> Any:
        try:
            return json.loads(answer)
        except (ValueError, RecursionError):
            raise self._error(
                f"answers with something that is not JSON ({_shown(answer)}); is it the right one?"
            ) from None

    def malformed(self, what: str) -> RetrievalError:
        """The error for an answer that cannot be used."""
        return self._error(f"answers with {what}; is it the right one?")

    def _error(self, what: str) -> RetrievalError:
        return RetrievalError(f"the service at {self.service.url} {what}")


async def _opened(url: str) -> AsyncIterator[AsyncClient]:
    """A client; nothing is awaited before it is there."""
    from httpx2 import AsyncClient, Limits

    verify = url.startswith("https:")  # else the system's certificates are read for nothing
    client = AsyncClient(verify=verify, timeout=None, limits=Limits(max_connections=MAX_CONCURRENT))
    try:
        yield client
    finally:
        await client.aclose()


class ServiceRetriever(Retriever, ABC):
    """Asks a service, at `task.retrieval.<name>_url`."""

    is_local: ClassVar[bool] = False
    uses: ClassVar[frozenset[str]] = frozenset({"api_key_var", "timeout_s", "max_retries"})
    address_var: ClassVar[str]
    """The variable with the service's address, where no setting has it."""
    _client: Any = None

    @property
    def patience_s(self) -> float:
        """The longest time that the client tries before it gives up and ends the run."""
        retries = self.retrieval.max_retries
        pauses = [min(FIRST_PAUSE_S * 2**number, LONGEST_PAUSE_S) for number in range(retries)]
        return self.retrieval.timeout_s * (retries + 1) + sum(pauses)

    def check(self, tool_timeout_s: float = math.inf) -> None:
        """See `Retriever.check`."""
        if tool_timeout_s <= self.patience_s:
            raise ConfigError(
                f"task.tool_timeout_s={tool_timeout_s:g}: a service that is down must end the run, and its client "
                f"tries for {self.patience_s:g} s (task.retrieval.timeout_s={self.retrieval.timeout_s:g}, "
                f"max_retries={self.retrieval.max_retries}); raise it, or lower one of these."
            )

    def load(self) -> None:
        """Make the client. ConfigError if there is no address or key."""
        key = f"task.retrieval.{self.name}_url"
        url = getattr(self.retrieval, f"{self.name}_url") or os.environ.get(self.address_var)
        if not url:
            raise ConfigError(
                f"the retriever {self.name} needs the address of a service: set {key} or {self.address_var}."
            )
        _check_address(key, url)
        url = url.rstrip("/")
        service = Service(
            url=url if url.endswith(f"/{self.name}") else f"{url}/{self.name}",
            timeout_s=self.retrieval.timeout_s,
            max_retries=self.retrieval.max_retries,
            headers=_headers(self.retrieval.api_key_var),
        )
        self._client = ServiceClient(service)


@register("retriever", "rerank")
class Rerank(ServiceRetriever):
    """A service that orders the question's own documents."""

    uses: ClassVar[frozenset[str]] = ServiceRetriever.uses | {"rerank_url", "service_model", "max_document_chars"}
    address_var: ClassVar[str] = "RERANK_API_URL"

    def check(self, tool_timeout_s: float = math.inf) -> None:
        """See `Retriever.check`; no request could hold a corpus."""
        if self.retrieval.scope == "corpus":
            raise ConfigError(
                "task.retriever=rerank: orders the question's own paragraphs, and cannot search a corpus; choose "
                "another retriever or task.retrieval.scope=paragraphs."
            )
        super().check(tool_timeout_s)

    async def search(self, query: str, documents: Sequence[Document], top_n: int) -> list[Document]:
        """Each document is cut to `max_document_chars`."""
        if not documents:
            return []
        texts = [document.full[: self.retrieval.max_document_chars] for document in documents]
        body = {"query": query, "documents": texts, "top_n": min(top_n, len(documents)), "return_documents": False}
        model = {} if self.retrieval.service_model is None else {"model": self.retrieval.service_model}
        answer = await self._client.post(model | body)
        scores = [self._result(result, len(documents)) for result in _results(answer, self._client)]
        order = dict.fromkeys(index for _, index in sorted((-score, index) for index, score in scores))
        return [documents[index] for index in order]

    def _result(self, result: Any, num_documents: int) -> tuple[int, float]:
        index = result.get("index") if isinstance(result, dict) else None
        score = result.get("relevance_score") if isinstance(result, dict) else None
        if type(index) is not int or not 0 <= index < num_documents:
            raise self._client.malformed(f"the index {_shown(index)} for {num_documents} documents")
        if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
            raise self._client.malformed(f"the relevance_score {_shown(score)}")
        return index, score


@register("retriever", "search")
class SearchService(ServiceRetriever):
    """A service that has documents of its own."""

    uses: ClassVar[frozenset[str]] = ServiceRetriever.uses | {"search_url"}
    address_var: ClassVar[str] = "WIKI_SEARCH_API_URL"

    def check(self, tool_timeout_s: float = math.inf) -> None:
        """See `Retriever.check`; it needs no file of passages."""
        if self.retrieval.scope == "paragraphs":
            raise ConfigError(
                "task.retriever=search: the service has documents of its own; set task.retrieval.scope=corpus."
            )
        super().check(tool_timeout_s)

    async def search(self, query: str, documents: Sequence[Document], top_n: int) -> list[Document]:
        """The question's documents are not searched."""
        results = _results(await self._client.post({"query": query, "top_n": top_n}), self._client)
        found: dict[str, Document] = {}
        for document in map(self._document, results):
            found.setdefault(document.id, document)
        return list(found.values())

    def _document(self, result: Any) -> Document:
        """`{"id", "title", "text"}`, or the same under "document"; "body" stands for "text", an id may be missing.

        A document that is only a text is that text.
        """
        inner = result.get("document", result) if isinstance(result, dict) else result
        fields = inner if isinstance(inner, dict) else {"text": inner}
        title, text = fields.get("title", ""), fields.get("text", fields.get("body"))
        if not isinstance(title, str) or not isinstance(text, str):
            raise self._client.malformed(f"the passage {_shown(result)} without a text")
        document_id = fields.get("id", result.get("id") if isinstance(result, dict) else None)
        if document_id is None:
            document_id = hashlib.sha256(f"{title}\n{text}".encode("utf-8", "replace")).hexdigest()[:12]
        return Document(id=readable(str(document_id)), title=readable(title), text=readable(text))


def _check_address(key: str, url: str) -> None:
    """ConfigError for what is no address, and for a password in one: it would stand in logs."""
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"{key}={url}: an address begins with http:// or https://.")
    try:
        parts = urlsplit(url)
        is_usable = bool(parts.hostname) and parts.port != 0
    except ValueError:
        parts, is_usable = None, False
    if parts is not None and ("@" in parts.netloc or parts.query or parts.fragment):
        raise ConfigError(
            f"{key}: an address is http://HOST:PORT or http://HOST:PORT/PATH and nothing more; give a key with "
            "task.retrieval.api_key_var."
        )
    if not is_usable or not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigError(f"{key}={url!a}: this is no address; write http://HOST:PORT.")


def _headers(api_key_var: str | None) -> dict[str, str]:
    if api_key_var is None:
        return {}
    key = os.environ.get(api_key_var)
    if not key:
        raise ConfigError(f"task.retrieval.api_key_var={api_key_var}: there is no such environment variable; set it.")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(
            f"task.retrieval.api_key_var={api_key_var}: its value has a space, a line break or another character that "
            "no key has; set it again."
        )
    return {"Authorization": f"Bearer {key}"}


def _results(answer: Any, client: ServiceClient) -> list[Any]:
    results = answer.get("results") if isinstance(answer, dict) else None
    if not isinstance(results, list):
        raise client.malformed(f"no list of results ({_shown(answer)})")
    return results


def _shown(value: object) -> str:
    """Foreign text, short, in one line and without control characters."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return ascii(text[:200])
