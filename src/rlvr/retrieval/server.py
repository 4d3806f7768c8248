"""Serves a retriever: the two requests that `services` makes.

POST /rerank {"query", "documents": [text or {"title", "text"}][, "top_n", "return_documents", "model"]}
POST /search {"query"[, "top_n"]}
GET /health
"""

from __future__ import annotations

import socket
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from rlvr.http_server import address, run
from rlvr.retrieval.base import Document, RetrievalError, first_wrong
from rlvr.retrieval.retriever import Retriever

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse

MAX_BODY_BYTES = 8 << 20
MAX_DOCUMENTS = 1_000
MAX_TOP_N = 100
DEFAULT_TOP_N = 10
MAX_CONNECTIONS = 128
SHUTDOWN_S = 5

Text = Annotated[str, StringConstraints(max_length=100_000)]


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)  # unknown fields are ignored: other clients send more


class _Passage(_Body):
    text: Text
    title: Text = ""


class _Rerank(_Body):
    query: Text
    documents: Annotated[list[Text | _Passage], Field(max_length=MAX_DOCUMENTS)]
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool = False
    model: str | None = None


class _Search(_Body):
    query: Text
    top_n: Annotated[int, Field(ge=1, le=MAX_TOP_N)] = DEFAULT_TOP_N


def serve(name: str, retriever: Retriever, host: str, listening: socket.socket) -> None:
    """Answer requests until Ctrl-C or SIGTERM, see `http_server.run`; the address is printed on stderr.

    `name` is the retriever's, accepted as "model" in requests; `retriever` is open, with scope=corpus.
    """
    assert retriever.corpus is not None
    passages = f"{len(retriever.corpus.documents):,} passages"

    def ready() -> None:
        where = address(host, listening)
        print(f"rlvr: {name} over {passages} at {where}; Ctrl-C stops it", file=sys.stderr, flush=True)

    run(make_app(name, retriever), listening, ready, max_connections=MAX_CONNECTIONS, shutdown_s=SHUTDOWN_S)


def make_app(name: str, retriever: Retriever) -> Starlette:
    """The application; see `serve`. Refuses bodies that are too large or invalid."""
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    assert retriever.corpus is not None
    passages = retriever.corpus.documents

    async def rerank(request: Request) -> JSONResponse:
        """All documents in order, including those without a match (score 0)."""
        body = _Rerank.model_validate_json(await _read(request))
        if body.model not in (None, "", name):
            raise HTTPException(400, f"model: this service has {name} only")
        sent = [_Passage(text=entry) if isinstance(entry, str) else entry for entry in body.documents]
        documents = [Document(id=str(place), title=one.title, text=one.text) for place, one in enumerate(sent)]
        scores = {found.id: score for found, score in await retriever.ranked(body.query, documents, len(documents))}
        scores |= {document.id: 0.0 for document in documents if document.id not in scores}
        results = [
            {"index": int(place), "relevance_score": score}
            | ({"document": sent[int(place)].model_dump()} if body.return_documents else {})
            for place, score in scores.items()
        ]
        return JSONResponse({"model": name, "results": results[: body.top_n or len(results)]})

    async def search(request: Request) -> JSONResponse:
        body = _Search.model_validate_json(await _read(request))
        found = await retriever.ranked(body.query, passages, body.top_n)
        return JSONResponse({"results": [asdict(document) | {"score": score} for document, score in found]})

    async def health(request: Request) -> JSONResponse:
        return JSONResponse({"status": "ok", "retriever": name, "passages": len(passages)})

    async def refuse(request: Request, error: Exception) -> JSONResponse:
        if isinstance(error, HTTPException):
            return JSONResponse({"error": error.detail}, error.status_code)
        said = first_wrong(error) if isinstance(error, ValidationError) else str(error)
        return JSONResponse({"error": said}, 500 if isinstance(error, RetrievalError) else 400)

    return Starlette(
        routes=[
            Route("/rerank", rerank, methods=["POST"]),
            Route("/search", search, methods=["POST"]),
            Route("/health", health, methods=["GET"]),
        ],
        exception_handlers=dict.fromkeys((HTTPException, ValidationError, RetrievalError, ClientDisconnect), refuse),
    )


async def _read(request: Request) -> bytes:
    from starlette.exceptions import HTTPException

    data = b""
    async for block in request.stream():
        data += block
        if len(data) > MAX_BODY_BYTES:
            raise HTTPException(413, f"more than {MAX_BODY_BYTES:,} bytes")
    return data
