"""An ASGI client: requests of any shape, also such as no HTTP library would send."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rlvr.serve.app import make_app
from rlvr.serve.endpoint import Limits
from rlvr.serve.sampling import Pool, Served

LIMITS = Limits(max_body_bytes=100_000, request_s=60.0)

SCOPE = {
    "type": "http",
    "asgi": {"version": "3.0", "spec_version": "2.3"},
    "http_version": "1.1",
    "scheme": "http",
    "query_string": b"",
    "root_path": "",
    "client": ("127.0.0.1", 1),
    "server": ("127.0.0.1", 2),
}


@dataclass(frozen=True, kw_only=True)
class Response:
    """An answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """Of a stream, which must end as it should."""
        lines = self.body.decode().split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""]
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]

    @property
    def message(self) -> str:
        """Of an error, which must have OpenAI's shape."""
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error["message"]


class Client:
    """Calls the application; one for each test, within its event loop."""

    def __init__(self, served: Served, *, limits: Limits = LIMITS, api_key: str | None = None) -> None:
        self.pool = Pool(served)
        self._app = make_app(served, self.pool, limits, api_key)

    async def post(self, path: str, body: Any, **options: Any) -> Response:
        """JSON, or the bytes as they are."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.send("POST", path, [data], **options)

    async def get(self, path: str, **options: Any) -> Response:
        return await self.send("GET", path, [b""], **options)

    async def send(
        self,
        method: str,
        path: str,
        blocks: Iterable[bytes],
        *,
        headers: Sequence[tuple[bytes, bytes]] = ((b"content-type", b"application/json"),),
        leave: asyncio.Event | None = None,
        on_send: Callable[[], Awaitable[None]] | None = None,
    ) -> Response:
        """Send the body in blocks. The client goes away when `leave` is set."""
        left = list(blocks)
        raw_path = path.encode("utf-8", "surrogatepass")
        scope = SCOPE | {"method": method, "path": path, "raw_path": raw_path, "headers": list(headers)}
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if left:
                return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}
            await (leave or asyncio.Event()).wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)
            if on_send is not None:
                await on_send()

        await self._app(scope, receive, send)  # type: ignore[arg-type]
        if not sent:
            return Response(status=0, headers={}, body=b"")
        raw = sent[0]["headers"]
        return Response(
            status=sent[0]["status"],
            headers={name.decode(): value.decode() for name, value in raw},
            body=b"".join(part["body"] for part in sent[1:]),
        )
