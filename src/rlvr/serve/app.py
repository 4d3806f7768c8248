"""The application: its paths, and who may use them.

GET  /health                  200 while requests are taken, 503 when the server is about to end
GET  /metrics                 counts for Prometheus
GET  /v1/models
POST /v1/chat/completions
POST /v1/completions
"""

from __future__ import annotations

import hmac
import time
from typing import TYPE_CHECKING

from rlvr.serve.endpoint import Endpoint, Limits, retry_headers, send_json
from rlvr.serve.errors import ApiError
from rlvr.serve.metrics import Metrics
from rlvr.serve.requests import chat_choices, text_choices
from rlvr.serve.sampling import Pool, Served
from rlvr.serve.schemas import ChatRequest, CompletionRequest, shown

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

OPEN_PATHS = ("/health",)
"""Need no key."""


def make_app(served: Served, pool: Pool, limits: Limits, api_key: str | None = None) -> ASGIApp:
    """The application; with a key, whoever does not give it gets 401."""
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.responses import JSONResponse, PlainTextResponse
    from starlette.routing import Route

    metrics, begun = Metrics(), int(time.time())

    async def health(request: Request) -> Response:
        ending = pool.draining
        return JSONResponse({"status": "ending" if ending else "ok"}, status_code=503 if ending else 200)

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
            raise HTTPException(404, f"{shown(name)} is not served here; there is {', '.join(served.names)}.")
        return JSONResponse(described(name))

    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        detail = error.detail
        if detail in ("Not Found", "Method Not Allowed"):
            detail = f"there is no {request.method} {shown(request.url.path)} here; docs/serve.md says what there is."
        return JSONResponse(ApiError(error.status_code, detail).body(), status_code=error.status_code)

    def posts(kind: type, make: object) -> Endpoint:
        return Endpoint(served=served, pool=pool, limits=limits, metrics=metrics, kind=kind, make=make)  # type: ignore[arg-type]

    app = Starlette(
        routes=[
            Route("/health", health, methods=["GET"]),
            Route("/metrics", counts, methods=["GET"]),
            Route("/v1/models", models, methods=["GET"]),
            Route("/v1/models/{name:path}", model, methods=["GET"]),
            Route("/v1/completions", posts(CompletionRequest, text_choices), methods=["POST"]),
            Route("/v1/chat/completions", posts(ChatRequest, chat_choices), methods=["POST"]),
        ],
        exception_handlers={HTTPException: refuse},
    )
    app.router.redirect_slashes = False
    return app if api_key is None else _Guard(app, api_key)


class _Guard:
    """Lets through who knows the key."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._key = api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in OPEN_PATHS:
            given = dict(scope["headers"]).get(b"authorization", b"")
            scheme, _, key = given.partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(key.strip(), self._key):
                what = "is wrong" if given else "is missing: send it with the header Authorization: Bearer KEY"
                error = ApiError(401, f"the API key {what}.", code="invalid_api_key")
                await send_json(send, error.body(), status=401, headers=retry_headers(error))
                return
        await self._app(scope, receive, send)
