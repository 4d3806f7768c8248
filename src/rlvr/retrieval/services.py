"""Services over HTTP: `rerank` orders a question's own documents, `search` has its own documents.

    POST /rerank {"query", "documents": [text], "top_n", "return_documents": false[, "model"]}
        -> {"results": [{"index": 2, "relevance_score": 0.93}, ...]}
    POST /search {"query", "top_n"} -> {"results": [{"id", "title", "text"[, "score"]}, ...]}

A request with a transient failure (no connection, time-out, status 408, 429 or 5xx) is retried after a pause; then the
search has failed, and the model is told (`NoAnswerError`). More failures than `max_error_share` of the last 50
searches, and any other failure, end the run with `RetrievalError`: a service that is down must not become episodes
without documents, and so reward 0.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import weakref
from abc import ABC
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    HttpUrl,
    PrivateAttr,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from rlvr.errors import ConfigError
from rlvr.registry import register
from rlvr.retrieval.base import Document, Found, NoAnswerError, RetrievalError, first_wrong
from rlvr.retrieval.retriever import Retriever
from rlvr.retrieval.text import readable

if TYPE_CHECKING:
    from httpx2 import AsyncClient

MAX_CONCURRENT = 32
MAX_ANSWER_BYTES = 16 << 20
WATCHED_SEARCHES = 50
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 8.0
PASSING = frozenset({408, 429, 500, 502, 503, 504})
_URL = TypeAdapter(HttpUrl)


class _Answer(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class _Rank(_Answer):
    index: Annotated[int, Field(ge=0)]
    relevance_score: FiniteFloat


class _Ranks(_Answer):
    results: list[_Rank]


class _Passage(_Answer):
    """`{"id", "title", "text"}`, or the same under "document"; "body" is accepted for "text", and the id is optional.

    A passage or document may also be a plain text.
    """

    id: Any = None
    title: str = ""
    text: str = Field(validation_alias=AliasChoices("text", "body"))

    @model_validator(mode="before")
    @classmethod
    def _unwrapped(cls, value: Any) -> Any:
        outer = value if isinstance(value, dict) else {"text": value}
        inner = outer.get("document", outer)
        return {"id": outer.get("id")} | (inner if isinstance(inner, dict) else {"text": inner})


class _Passages(_Answer):
    results: list[_Passage]


Answer = TypeVar("Answer", bound=_Answer)


class ServiceRetriever(Retriever, ABC):
    """Client of a service at `task.retrieval.<name>_url`. Supports several event loops."""

    is_local: ClassVar[bool] = False
    uses: ClassVar[frozenset[str]] = frozenset({"api_key_var", "timeout_s", "max_retries", "max_error_share"})
    address_var: ClassVar[str]  # environment variable of the service's address, if no setting has it
    _url: str = ""
    _headers: Mapping[str, str] = PrivateAttr(default_factory=dict)
    _failed: deque[bool] = PrivateAttr(default_factory=lambda: deque(maxlen=WATCHED_SEARCHES))
    """Whether each of the last searches failed."""
    _connections: Any = PrivateAttr(default_factory=weakref.WeakKeyDictionary)

    def check(self, tool_timeout_s: float = math.inf) -> None:
        settings = self.retrieval
        patience_s = settings.timeout_s * (settings.max_retries + 1) + sum(map(_pause_s, range(settings.max_retries)))
        if tool_timeout_s <= patience_s:
            raise ConfigError(
                f"task.tool_timeout_s={tool_timeout_s:g}: a service that is down must end the run, and its client "
                f"tries for {patience_s:g} s (task.retrieval.timeout_s={settings.timeout_s:g}, "
                f"max_retries={settings.max_retries}); raise it, or lower one of these."
            )

    def load(self) -> None:
        key = f"task.retrieval.{self.name}_url"
        url = getattr(self.retrieval, f"{self.name}_url") or os.environ.get(self.address_var)
        if not url:
            raise ConfigError(
                f"the retriever {self.name} needs the address of a service: set {key} or {self.address_var}."
            )
        _check_address(key, url)
        self._url = f"{url.rstrip('/').removesuffix(f'/{self.name}')}/{self.name}"
        self._headers = {"Content-Type": "application/json"} | _authorization(self.retrieval.api_key_var)

    async def post(self, body: Mapping[str, Any], kind: type[Answer]) -> Answer:
        """The service's answer to `body`. NoAnswerError if there is none after `max_retries` retries."""
        client, gate, _ = await self._connection()
        tries, problem = self.retrieval.max_retries + 1, ""
        async with gate:  # held between retries too, so that waiting searches do not overtake
            for attempt in range(tries):
                await asyncio.sleep(_pause_s(attempt - 1) if attempt else 0)
                try:
                    async with asyncio.timeout(self.retrieval.timeout_s):  # httpx's own limits are per read
                        status, text = await self._exchange(client, body)
                except RetrievalError:
                    raise
                except Exception as error:  # no common base class; uncaught, the tool would tell the model
                    late = f"nothing within {self.retrieval.timeout_s:g} s"
                    reason = str(error) or type(error).__name__
                    problem = late if isinstance(error, TimeoutError) else f"{reason[:200]!a}"
                    continue
                if status == 200:
                    self._failed.append(False)
                    return self._parsed(text, kind)
                problem = f"status {status}: {text[:200]!a}"
                if status not in PASSING:
                    raise self._error(f"refuses the request ({problem}); check its address, key and model.")
        self._failed.append(True)
        share, number = self.retrieval.max_error_share, sum(self._failed)
        reason = f"does not answer after {tries} request{'s' * (tries > 1)} ({problem})"
        if number > share * WATCHED_SEARCHES:
            raise self._error(
                f"{reason}; {number} of the last {WATCHED_SEARCHES} searches failed, more than "
                f"task.retrieval.max_error_share={share:g}; see that it runs, and go on with resume=true."
            )
        raise NoAnswerError(f"the service at {self._url} {reason}; see that it runs.")

    async def _exchange(self, client: AsyncClient, body: Mapping[str, Any]) -> tuple[int, str]:
        content = json.dumps(body).encode()  # escapes lone surrogates
        async with client.stream("POST", self._url, content=content, headers=self._headers) as answer:
            data = b""
            async for block in answer.aiter_bytes():
                data += block
                if len(data) > MAX_ANSWER_BYTES:
                    raise self._error(f"answers with more than {MAX_ANSWER_BYTES:,} bytes; nothing so large is read.")
            return answer.status_code, data.decode("utf-8-sig", "replace")

    async def _connection(self) -> tuple[AsyncClient, asyncio.Semaphore, AsyncIterator[AsyncClient]]:
        """Client and gate of this event loop. Requests wait at the gate, not in the pool, so that waiting is no
        time-out."""
        loop = asyncio.get_running_loop()
        if loop not in self._connections:
            opened = _opened(self._url)
            self._connections[loop] = await anext(opened), asyncio.Semaphore(MAX_CONCURRENT), opened
        return self._connections[loop]

    def _parsed(self, text: str, kind: type[Answer]) -> Answer:
        try:
            return kind.model_validate(json.loads(text))  # unlike pydantic's parser, accepts lone surrogates
        except ValidationError as error:
            wrong = first_wrong(error)
        except (ValueError, RecursionError):
            wrong = "this is not JSON"
        raise self._error(f"answers with {text[:200]!a} ({wrong}); is it the right one?")

    def _error(self, what: str) -> RetrievalError:
        return RetrievalError(f"the service at {self._url} {what}")


@register("retriever", "rerank")
class Rerank(ServiceRetriever):
    """A service that orders the question's own documents."""

    uses: ClassVar[frozenset[str]] = ServiceRetriever.uses | {"rerank_url", "service_model", "max_document_chars"}
    address_var: ClassVar[str] = "RERANK_API_URL"

    def check(self, tool_timeout_s: float = math.inf) -> None:
        if self.retrieval.scope == "corpus":
            raise ConfigError(
                "task.retriever=rerank: orders the question's own paragraphs, and cannot search a corpus; choose "
                "another retriever or task.retrieval.scope=paragraphs."
            )
        super().check(tool_timeout_s)

    async def search(self, query: str, documents: Sequence[Document], top_n: int) -> list[Found]:
        if not documents:
            return []
        texts = [document.full[: self.retrieval.max_document_chars] for document in documents]
        body = {"query": query, "documents": texts, "top_n": min(top_n, len(documents)), "return_documents": False}
        model = {} if self.retrieval.service_model is None else {"model": self.retrieval.service_model}
        results = (await self.post(model | body, _Ranks)).results
        ranked: dict[int, Found] = {}
        for result in sorted(results, key=lambda one: (-one.relevance_score, one.index)):
            if result.index >= len(documents):
                raise self._error(f"answers with the index {result.index} for {len(documents)} documents.")
            ranked.setdefault(result.index, Found(documents[result.index], result.relevance_score))
        return list(ranked.values())


@register("retriever", "search")
class SearchService(ServiceRetriever):
    """A service with its own documents."""

    uses: ClassVar[frozenset[str]] = ServiceRetriever.uses | {"search_url"}
    address_var: ClassVar[str] = "WIKI_SEARCH_API_URL"

    def check(self, tool_timeout_s: float = math.inf) -> None:
        if self.retrieval.scope == "paragraphs":
            raise ConfigError(
                "task.retriever=search: the service has documents of its own; set task.retrieval.scope=corpus."
            )
        super().check(tool_timeout_s)

    async def search(self, query: str, documents: Sequence[Document], top_n: int) -> list[Document]:
        by_id: dict[str, Document] = {}
        for passage in (await self.post({"query": query, "top_n": top_n}, _Passages)).results:
            full = f"{passage.title}\n{passage.text}".encode("utf-8", "replace")
            name = passage.id if passage.id is not None else hashlib.sha256(full).hexdigest()[:12]
            name, title, text = map(readable, (str(name), passage.title, passage.text))
            by_id.setdefault(name, Document(id=name, title=title, text=text))
        return list(by_id.values())


async def _opened(url: str) -> AsyncIterator[AsyncClient]:
    """A client, closed at the end of the event loop. Creation awaits nothing."""
    from httpx2 import AsyncClient, Limits

    verify = url.startswith("https:")  # otherwise the system's certificates are not needed
    async with AsyncClient(verify=verify, timeout=None, limits=Limits(max_connections=MAX_CONCURRENT)) as client:
        yield client


def _pause_s(number: int) -> float:
    return min(FIRST_PAUSE_S * 2**number, LONGEST_PAUSE_S)


def _check_address(key: str, url: str) -> None:
    """ConfigError for an invalid address, and for a password in one, which would appear in logs."""
    with suppress(ValidationError):
        parts = _URL.validate_python(url)
        is_whole = url.lower().startswith(("http://", "https://")) and _is_plain(url)  # pydantic reads http:/x, too
        if not (parts.username or parts.password or parts.query or parts.fragment) and is_whole and parts.port:
            return
    raise ConfigError(
        f"{key}: this is no address; write http://HOST:PORT or http://HOST:PORT/PATH and nothing more (a key goes into "
        "task.retrieval.api_key_var)."
    )


def _authorization(api_key_var: str | None) -> dict[str, str]:
    if api_key_var is None:
        return {}
    key = os.environ.get(api_key_var, "")
    if not key or not _is_plain(key):
        raise ConfigError(
            f"task.retrieval.api_key_var={api_key_var}: there is no such environment variable, or its value has a "
            "space or another character that no key has; set it."
        )
    return {"Authorization": f"Bearer {key}"}


def _is_plain(text: str) -> bool:
    return all("!" <= char <= "~" for char in text)
