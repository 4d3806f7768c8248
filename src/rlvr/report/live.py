"""The report of runs that are still going on: the page, served, and told when there is more to show.

GET /         the page, as `rlvr report` writes it
GET /data     its data now: {"main": ..., chunk: ...}, each gzip in base64
GET /events   server-sent events: one after every change, at most one each `EVERY_S`
"""

from __future__ import annotations

import asyncio
import base64
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rlvr.http_server import address, at, is_loopback, run
from rlvr.records.files import ERROR, PRUNED
from rlvr.report.page import Page, PageLimits, pack, render
from rlvr.report.run import run_page
from rlvr.report.sweep import runs_of

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

EVERY_S = 2.0
ALIVE_S = 15.0
"""An empty line at least this often: a proxy closes silent connections."""
MAX_CONNECTIONS = 64
SHUTDOWN_S = 1

Stamp = tuple[tuple[str, int, int], ...]


class Live:
    """The runs of some folders, read again when one of their files has changed."""

    def __init__(self, folders: Sequence[Path], limits: PageLimits) -> None:
        self._folders, self._limits = folders, limits
        self._page: tuple[Stamp, Page] | None = None
        self._lock = asyncio.Lock()
        self._over = asyncio.Event()
        self.active = 0  # the end waits for no request

    async def drain(self, timeout_s: float) -> None:
        """End the events: the server ends. See `rlvr.http_server.Work`."""
        self._over.set()

    def stamp(self) -> Stamp:
        """Names, times and sizes of what the page shows; equal if nothing has changed."""
        files = []
        for folder in self._folders:
            for one in runs_of(folder):
                parts = [one / name for name in ("metrics.jsonl", "config.yaml", "rollouts", ERROR, PRUNED)]
                parts += one.glob("checks/*")
                for path in parts:
                    with suppress(OSError):  # there is no such file, maybe since a moment ago
                        found = path.stat()
                        files.append((str(path), found.st_mtime_ns, found.st_size))
        return tuple(files)

    async def page(self) -> Page:
        """The page as the files are now; several readers share one."""
        async with self._lock:
            stamp = await asyncio.to_thread(self.stamp)
            if self._page is None or self._page[0] != stamp:
                self._page = stamp, await asyncio.to_thread(self._read)
            return self._page[1]

    def _read(self) -> Page:
        runs = [one for folder in self._folders for one in runs_of(folder)]
        page = run_page(runs, self._limits, is_sweep=runs != list(self._folders))
        return Page(title=page.title, main={**page.main, "live": True}, chunks=page.chunks)

    async def changes(self) -> AsyncIterator[str]:
        """Server-sent events: `data: changed` after each change."""
        before, silent = await asyncio.to_thread(self.stamp), 0.0
        yield ": the page is live\n\n"
        while not self._over.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), EVERY_S)
            silent += EVERY_S
            now = await asyncio.to_thread(self.stamp)
            if now != before or silent >= ALIVE_S:
                yield "data: changed\n\n" if now != before else ": \n\n"
                before, silent = now, 0.0


def make_app(live: Live, host: str) -> Starlette:
    """The application; on this machine's own address it answers to no other name (DNS rebinding)."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.responses import HTMLResponse, JSONResponse, StreamingResponse
    from starlette.routing import Route

    async def page(request: Request) -> Response:
        return HTMLResponse(render(await live.page()))

    async def data(request: Request) -> Response:
        found = await live.page()
        chunks = {"main": pack(found.main), **found.chunks}
        return JSONResponse({name: base64.b64encode(value).decode() for name, value in chunks.items()})

    async def events(request: Request) -> Response:
        headers = {"cache-control": "no-cache"}
        return StreamingResponse(live.changes(), media_type="text/event-stream", headers=headers)

    names = ["127.0.0.1", "localhost", "[::1]", at(host)] if is_loopback(host) else ["*"]
    return Starlette(
        routes=[Route("/", page), Route("/data", data), Route("/events", events)],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=names)],
    )


def serve(live: Live, host: str, listening: socket.socket) -> None:
    """Answer until Ctrl-C or SIGTERM; the address is printed on stdout."""

    def ready() -> None:
        print(f"{address(host, listening)}/", flush=True)
        print("rlvr: the page follows the runs; Ctrl-C stops it", file=sys.stderr)

    run(make_app(live, host), listening, ready, max_connections=MAX_CONNECTIONS, shutdown_s=SHUTDOWN_S, work=live)
