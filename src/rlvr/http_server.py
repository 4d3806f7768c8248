"""An HTTP server for both of ours: a socket, signals, and a shutdown that lets running requests finish."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from ipaddress import ip_address
from math import ceil
from types import FrameType
from typing import TYPE_CHECKING, Protocol

from rlvr.errors import ConfigError, UserError, install

if TYPE_CHECKING:
    from starlette.types import ASGIApp
    from uvicorn.protocols.http.h11_impl import H11Protocol

KEEP_ALIVE_S = 75
LAST_BYTES_S = 2
HEAD_S = 30.0
"""Time limit for a request's head: silent connections would occupy places."""


def at(host: str) -> str:
    """The host as in an address."""
    return f"[{host}]" if ":" in host else host


def address(host: str, listening: socket.socket) -> str:
    return f"http://{at(host)}:{listening.getsockname()[1]}"


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def check_installed(what: str, *more: str) -> None:
    """ConfigError if a library of the extra is missing that `what` needs: a server's, and `more`."""
    *first, last = ("starlette", "uvicorn", *more)
    if any(importlib.util.find_spec(name) is None for name in (*first, last)):
        raise ConfigError(f"{what} needs {', '.join(first)} and {last}; install them with: {install('serve')}")


class Work(Protocol):
    """What a server does beside answering: it ends first."""

    @property
    def active(self) -> int: ...  # requests that run or wait

    async def drain(self, timeout_s: float) -> None: ...  # take no more, and finish these


def run(
    app: ASGIApp,
    listening: socket.socket,
    on_ready: Callable[[], None],
    *,
    max_connections: int,
    shutdown_s: float,
    work: Work | None = None,
) -> None:
    """Answer requests until Ctrl-C or SIGTERM; then running ones get `shutdown_s` to finish.

    `on_ready` is called once connections are accepted and signals handled. A second signal stops the server at once.
    Signals are raised again at the end.
    """
    import uvicorn

    class Server(uvicorn.Server):
        """Finishes running requests before it closes their connections."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            on_ready()

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            self.force_exit = self.should_exit  # uvicorn does this for SIGINT only
            super().handle_exit(sig, frame)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            if work is not None:
                if work.active:
                    told = f"rlvr: finishing what runs, for {shutdown_s:g} s at most; once more stops at once"
                    print(told, file=sys.stderr)
                draining = asyncio.ensure_future(work.drain(shutdown_s))
                while not (draining.done() or self.force_exit):
                    await asyncio.wait([draining], timeout=0.1)
            await super().shutdown(sockets)

    config = uvicorn.Config(
        app,
        http=patient_protocol(HEAD_S),
        log_level="warning",
        lifespan="off",
        ws="none",
        access_log=False,
        server_header=False,
        limit_concurrency=max_connections,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=LAST_BYTES_S if work is not None else ceil(shutdown_s),
    )
    asyncio.run(Server(config).serve(sockets=[listening]))


def patient_protocol(head_s: float) -> type[H11Protocol]:
    """uvicorn's HTTP/1.1 protocol, which limits the size of a request's head, with a time limit for it.

    Its faster protocol, used if httptools is installed, has neither limit.
    """
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Protocol(H11Protocol):
        head_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.watch_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.watch_head()

        def send_400_response(self, msg: str) -> None:
            """No second answer for an invalid body: the first one is already sent."""
            if self.cycle is not None and self.cycle.response_started:
                self.transport.close()
            else:
                super().send_400_response(msg)

        def watch_head(self) -> None:
            """Start the timer with the connection or the last answer, stop it at the last byte of a head."""
            if self.conn.their_state is h11.IDLE:
                self.head_timer = self.head_timer or self.loop.call_later(head_s, self.transport.close)
            elif self.head_timer is not None:
                self.head_timer.cancel()
                self.head_timer = None

    return Protocol


def reserve(host: str, port: int) -> socket.socket:
    """A bound socket, created before a model is loaded; it does not listen yet. UserError if the address cannot be
    used.

    Port 0 means any free one.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, bound = found[0]
        with ExitStack() as stack:
            listening = stack.enter_context(socket.socket(family, kind, protocol))
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(bound)
            stack.pop_all()
            return listening
    except OSError as error:
        raise UserError(f"--host {host} --port {port} cannot be used ({error.strerror}); choose another one.") from None
