"""The application: routes and authorization.

GET  /health                  200 while requests are accepted, 503 during shutdown
GET  /metrics                 counts for Prometheus
GET  /v1/models
POST /v1/chat/completions
POST /v1/completions
POST /v1/responses
"""

import hmac
import socket
import time
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from rlvr.http_server import address, run
from rlvr.serve.endpoint import Endpoint, Limits, Metrics, refusal
from rlvr.serve.requests import chat_choices, text_choices
from rlvr.serve.responses import ResponsesRequest, response_choices
from rlvr.serve.sampling import Pool, Served
from rlvr.serve.schemas import ApiError, ChatRequest, CompletionRequest, in_message

MORE_CONNECTIONS = 64
"""Connections beyond those of running or waiting requests: for /health, and for reporting a full queue."""


def serve(
    served: Served, host: str, listening: socket.socket, limits: Limits, *, api_key: str | None, shutdown_s: float
) -> None:
    """Answer requests until a signal, see `http_server.run`. New ones get 503 from then on, and running ones
    `shutdown_s` to finish. The endpoint's address is printed on stdout."""
    pool = Pool(served)
    run(
        make_app(served, pool, limits, api_key),
        listening,
        lambda: print(f"{address(host, listening)}/v1", flush=True),
        max_connections=2 * served.capacity + MORE_CONNECTIONS,
        shutdown_s=shutdown_s,
        work=pool,
    )


def make_app(served: Served, pool: Pool, limits: Limits, api_key: str | None = None) -> ASGIApp:
    """The application; with a key, requests without it get 401."""
    metrics, begun = Metrics(), int(time.time())

    async def health(request: Request) -> Response:
        status, code = ("ending", 503) if pool.draining else ("ok", 200)
        return JSONResponse({"status": status}, status_code=code)

    async def counts(request: Request) -> Response:
        text = metrics.text(running=served.engine.num_running, waiting=served.engine.num_waiting)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    def described(name: str) -> dict[str, object]:
        most = served.max_context_tokens
        return {"id": name, "object": "model", "created": begun, "owned_by": "rlvr", "max_model_len": most}

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [described(name) for name in served.names]})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in served.names:
            return refusal(ApiError(404, f"{in_message(name)} is not served here; there is {', '.join(served.names)}."))
        return JSONResponse(described(name))

    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        detail = f"there is no {request.method} {in_message(request.url.path)} here; docs/serve.md says what there is."
        return refusal(ApiError(error.status_code, detail))

    post = partial(Endpoint, served=served, pool=pool, limits=limits, metrics=metrics)
    app = Starlette(
        routes=[
            Route("/health", health, methods=["GET"]),
            Route("/metrics", counts, methods=["GET"]),
            Route("/v1/models", models, methods=["GET"]),
            Route("/v1/models/{name:path}", model, methods=["GET"]),
            Route("/v1/completions", post(kind=CompletionRequest, make=text_choices), methods=["POST"]),
            Route("/v1/responses", post(kind=ResponsesRequest, make=response_choices), methods=["POST"]),
            Route("/v1/chat/completions", post(kind=ChatRequest, make=chat_choices), methods=["POST"]),
        ],
        exception_handlers={HTTPException: refuse},
    )
    app.router.redirect_slashes = False

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        given = dict(scope["headers"]).get(b"authorization", b"")
        scheme, _, key = given.partition(b" ")
        known = scheme.lower() == b"bearer" and hmac.compare_digest(key.strip(), (api_key or "").encode())
        if known or scope["path"] == "/health":
            await app(scope, receive, send)
            return
        what = "is wrong" if given else "is missing: send it with the header Authorization: Bearer KEY"
        error = ApiError(401, f"the API key {what}.", code="invalid_api_key")
        await refusal(error)(scope, receive, send)

    return app if api_key is None else guarded
