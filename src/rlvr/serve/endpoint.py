"""One POST request from its first byte to the last one of its answer."""

from __future__ import annotations

import asyncio
import json
import sys
import time
import traceback
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlvr.errors import UserError
from rlvr.serve.answers import Answer, Json, usage
from rlvr.serve.errors import ApiError
from rlvr.serve.metrics import Metrics
from rlvr.serve.sampling import Choice, Pool, Served
from rlvr.serve.schemas import Request, parse

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

BODY_S = 30.0
"""A body must be here within this time."""
LAST_WORDS_S = 1.0
"""For telling a stream that does not read why it ends."""
GONE = 499
"""Counted where the client did not wait for an answer."""

Make = Callable[[Any, Served], tuple[Answer, list[Choice]]]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Of one request."""

    max_body_bytes: int
    request_s: float


class _GoneError(Exception):
    """The client went away."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """An ASGI application that answers requests of one kind. It always answers: with a refusal, if need be."""

    served: Served
    pool: Pool
    limits: Limits
    metrics: Metrics
    kind: type[Request]
    make: Make

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        begin, status = time.perf_counter(), 200
        try:
            status = await self._answer(scope, receive, send)
        except _GoneError:
            self.metrics.given_up += 1
            status = GONE
        except ApiError as error:
            status = error.status
            await send_json(send, error.body(), status=status, headers=retry_headers(error))
        finally:
            self.metrics.answers[scope["path"], status] += 1
        if status == 200:
            self.metrics.took(time.perf_counter() - begin)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> int:
        request = parse(self.kind, await self._body(scope, receive))
        with _explained():
            answer, choices = self.make(request, self.served)
        with self.pool.places(len(choices)):
            work = self._stream if request.stream else self._whole
            try:
                return await _unless_gone(receive, work(request, answer, choices, send))
            finally:
                counts = usage(choices)
                self.metrics.prompt_tokens += counts["prompt_tokens"]
                self.metrics.completion_tokens += counts["completion_tokens"]

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """All of it, no more than allowed, whatever its headers say."""
        headers = dict(scope["headers"])
        kind = headers.get(b"content-type", b"application/json").split(b";")[0].strip().lower()
        if kind != b"application/json":
            raise ApiError(415, "the body must be JSON: send it with the header Content-Type: application/json.")
        most = self.limits.max_body_bytes
        too_large = ApiError(413, f"the body has more than {most} bytes, the most that this server reads.")
        announced = headers.get(b"content-length", b"0")
        if announced.isdigit() and int(announced[:20]) > most:
            raise too_large
        data = bytearray()
        try:
            async with asyncio.timeout(BODY_S):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _GoneError
                    data += message.get("body", b"")
                    if len(data) > most:
                        raise too_large
                    more = message.get("more_body", False)
        except TimeoutError:
            raise ApiError(408, f"the body did not arrive within {BODY_S:.0f} s.") from None
        return bytes(data)

    async def _whole(self, request: Request, answer: Answer, choices: Sequence[Choice], send: Send) -> int:
        limit = self.limits.request_s
        with _explained(limit):
            async with asyncio.timeout(limit):
                await self.pool.sample(choices)
            body = answer.whole(choices)
        await send_json(send, body)
        return 200

    async def _stream(self, request: Request, answer: Answer, choices: Sequence[Choice], send: Send) -> int:
        """What goes wrong once the answer has begun is its last event."""
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            with _explained(self.limits.request_s):
                async with (
                    asyncio.timeout(self.limits.request_s),
                    aclosing(self._events(request, answer, choices)) as all_,
                ):
                    async for events in all_:
                        await _send_events(send, events)
        except ApiError as error:
            try:
                async with asyncio.timeout(LAST_WORDS_S):
                    await _send_events(send, [error.body()], last=True)
            except TimeoutError:  # it does not read: nothing can be said
                raise _GoneError from None
            return error.status
        await _send_events(send, [], last=True)
        return 200

    async def _events(self, request: Request, answer: Answer, choices: Sequence[Choice]) -> AsyncGenerator[list[Json]]:
        opening = [entry for choice in choices if (entry := answer.opening(choice))]
        yield [answer.chunk([entry]) for entry in opening]
        over: set[int] = set()
        async for _ in self.pool.watch(choices):
            going = [choice for choice in choices if choice.index not in over]
            news = [entry for choice in going if (entry := answer.news(choice))]
            over |= {choice.index for choice in going if choice.stop_reason}
            if news:
                yield [answer.chunk([entry]) for entry in news]
        if request.wants_usage:
            yield [answer.chunk([], usage(choices))]


async def send_json(send: Send, body: Json, *, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
    """A whole answer."""
    data = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    pairs = {"content-type": "application/json", "content-length": str(len(data))} | dict(headers or {})
    raw = [(name.lower().encode(), value.encode()) for name, value in pairs.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": data})


def retry_headers(error: ApiError) -> dict[str, str]:
    """What a refusal says beside its body."""
    headers = {"Retry-After": str(error.retry_s)} if error.retry_s else {}
    return headers | ({"WWW-Authenticate": "Bearer"} if error.status == 401 else {})


async def _send_events(send: Send, events: Sequence[Json], *, last: bool = False) -> None:
    lines = [f"data: {json.dumps(event, ensure_ascii=False, separators=(',', ':'))}\n\n" for event in events]
    text = "".join(lines) + ("data: [DONE]\n\n" if last else "")
    await send({"type": "http.response.body", "body": text.encode(), "more_body": not last})


@contextmanager
def _explained(seconds: float = 0.0) -> Iterator[None]:
    """Errors as refusals; what nobody foresaw is told on stderr and answered with a 500."""
    try:
        yield
    except (ApiError, _GoneError):
        raise
    except TimeoutError:
        raise ApiError(504, f"the answer took more than {seconds:g} s, the most that this server spends.") from None
    except UserError as error:
        raise ApiError(500, str(error)) from None
    except Exception as error:
        traceback.print_exception(error, file=sys.stderr)
        raise ApiError(500, f"the server failed ({type(error).__name__}): its log says where.") from None


async def _unless_gone(receive: Receive, work: Coroutine[Any, Any, int]) -> int:
    """The result of the work, which is given up when the client goes away."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise _GoneError
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait([task])


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
