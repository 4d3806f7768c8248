"""One POST request from its first byte to the last one of its answer."""

from __future__ import annotations

import asyncio
import json
import sys
import time
import traceback
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from rlvr.errors import UserError
from rlvr.serve.answers import Answer, Json, usage
from rlvr.serve.errors import ApiError
from rlvr.serve.metrics import Metrics
from rlvr.serve.sampling import Choice, Pool, Served
from rlvr.serve.schemas import ApiRequest, parse

BODY_S = 30.0
"""Time for a body to arrive."""
LAST_WORDS_S = 1.0
"""Time for a stream's last event, the error, if the client does not read."""
GONE = 499
"""Counted where the client did not wait for an answer."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Of one request."""

    max_body_bytes: int
    request_s: float


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """An ASGI application that answers requests of one kind. It always answers, with a refusal if need be."""

    served: Served
    pool: Pool
    limits: Limits
    metrics: Metrics
    kind: type[ApiRequest]
    make: Callable[[Any, Served], tuple[Answer, list[Choice]]]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer and count."""
        begin, status = time.perf_counter(), 200
        try:
            status = await self._answer(scope, receive, send)
        except ClientDisconnect:
            self.metrics.given_up += 1
            status = GONE
        except ApiError as error:
            status = error.status
            await refusal(error)(scope, receive, send)
        finally:
            self.metrics.answers[scope["path"], status] += 1
        if status == 200:
            self.metrics.took(time.perf_counter() - begin)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> int:
        request = parse(self.kind, await self._body(Request(scope, receive)))
        with _explained():
            answer, choices = self.make(request, self.served)

        async def whole() -> int:
            with _explained(self.limits.request_s):
                async with asyncio.timeout(self.limits.request_s):
                    await self.pool.sample(choices)
                body = JSONResponse(answer.whole(choices))
            await body(scope, receive, send)
            return 200

        with self.pool.places(len(choices)):
            try:
                work = self._stream(request, answer, choices, send) if request.stream else whole()
                return await _unless_gone(receive, work)
            finally:
                counts = usage(choices)
                self.metrics.prompt_tokens += counts["prompt_tokens"]
                self.metrics.completion_tokens += counts["completion_tokens"]

    async def _body(self, request: Request) -> bytes:
        """The whole body, at most `max_body_bytes`, whatever its headers say."""
        kind = request.headers.get("content-type", "application/json").split(";")[0].strip().lower()
        if kind != "application/json":
            raise ApiError(415, "the body must be JSON: send it with the header Content-Type: application/json.")
        most = self.limits.max_body_bytes
        too_large = ApiError(413, f"the body has more than {most} bytes, the most that this server reads.")
        announced = request.headers.get("content-length", "0")
        if announced.isdecimal() and int(announced[:20]) > most:
            raise too_large
        data = bytearray()
        try:
            async with asyncio.timeout(BODY_S):
                async for block in request.stream():
                    data += block
                    if len(data) > most:
                        raise too_large
        except TimeoutError:
            raise ApiError(408, f"the body did not arrive within {BODY_S:.0f} s.") from None
        return bytes(data)

    async def _stream(self, request: ApiRequest, answer: Answer, choices: Sequence[Choice], send: Send) -> int:
        """Server-sent events; an error once the answer has begun is the last event."""
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        limit = self.limits.request_s
        try:
            with _explained(limit):
                async with asyncio.timeout(limit), aclosing(self._events(request, answer, choices)) as all_events:
                    async for events in all_events:
                        await _send_events(send, events)
        except ApiError as error:
            try:
                async with asyncio.timeout(LAST_WORDS_S):
                    await _send_events(send, [error.body()], last=True)
            except TimeoutError:
                raise ClientDisconnect from None
            return error.status
        await _send_events(send, [], last=True)
        return 200

    async def _events(
        self, request: ApiRequest, answer: Answer, choices: Sequence[Choice]
    ) -> AsyncGenerator[list[Json]]:
        yield [answer.chunk([entry]) for choice in choices if (entry := answer.opening(choice))]
        going = list(choices)
        async for _ in self.pool.watch(choices):
            news = [entry for choice in going if (entry := answer.news(choice))]
            going = [choice for choice in going if choice.stop_reason is None]
            if news:
                yield [answer.chunk([entry]) for entry in news]
        if request.stream_options and request.stream_options.include_usage:
            yield [answer.chunk([], usage(choices))]


def refusal(error: ApiError) -> JSONResponse:
    """The response for an error."""
    headers = {"Retry-After": str(error.retry_s)} if error.retry_s else {}
    headers |= {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
    return JSONResponse(error.body(), status_code=error.status, headers=headers)


async def _send_events(send: Send, events: Sequence[Json], *, last: bool = False) -> None:
    lines = [f"data: {json.dumps(event, ensure_ascii=False, separators=(',', ':'))}\n\n" for event in events]
    text = "".join(lines) + ("data: [DONE]\n\n" if last else "")
    await send({"type": "http.response.body", "body": text.encode(), "more_body": not last})


@contextmanager
def _explained(seconds: float = 0.0) -> Iterator[None]:
    """Turn errors into refusals; an unforeseen one is printed on stderr and answered with a 500."""
    try:
        yield
    except (ApiError, ClientDisconnect):
        raise
    except TimeoutError:
        raise ApiError(504, f"the answer took more than {seconds:g} s, the most that this server spends.") from None
    except UserError as error:
        raise ApiError(500, str(error)) from None
    except Exception as error:
        traceback.print_exception(error, file=sys.stderr)
        raise ApiError(500, f"the server failed ({type(error).__name__}): its log says where.") from None


async def _unless_gone(receive: Receive, work: Coroutine[Any, Any, int]) -> int:
    """The result of the work, which is cancelled when the client goes away."""

    async def until_gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(until_gone())
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
