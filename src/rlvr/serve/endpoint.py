"""One POST request, from its first byte to the last one of its answer."""

import asyncio
import json
import sys
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from rlvr.errors import UserError
from rlvr.serve.answers import Answer, Json, usage
from rlvr.serve.sampling import Choice, Pool, Served
from rlvr.serve.schemas import ApiError, ApiRequest, parse

BODY_S = 30.0
"""Time limit for a body to arrive."""
LAST_WORDS_S = 1.0
"""Time limit for a stream's last event, the error, if the client does not read."""
GONE = 499
"""Status counted if the client did not wait for an answer."""
STREAM = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")],
}


BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Metrics:
    def __init__(self) -> None:
        self.answers: Counter[tuple[str, int]] = Counter()  # (endpoint, status)
        self.given_up = 0  # by disconnected clients
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self._seconds = 0.0
        self._buckets = dict.fromkeys([*BUCKETS_S, "+Inf"], 0)  # requests up to each bound

    def took(self, seconds: float) -> None:
        self._seconds += seconds
        for bound in self._buckets:
            self._buckets[bound] += seconds <= float(bound)

    def text(self, *, running: int, waiting: int) -> str:
        """All counts; `running` and `waiting` are current completions."""
        answers = {f'{{endpoint="{path}",status="{status}"}}': n for (path, status), n in sorted(self.answers.items())}
        seconds = {f'_bucket{{le="{bound}"}}': num for bound, num in self._buckets.items()}
        lines = []
        for name, kind, what, samples in (
            ("requests_total", "counter", "Answers by endpoint and status.", answers),
            ("requests_given_up_total", "counter", "Requests whose client went away.", {"": self.given_up}),
            ("prompt_tokens_total", "counter", "Tokens of prompts.", {"": self.prompt_tokens}),
            ("completion_tokens_total", "counter", "Tokens that were sampled.", {"": self.completion_tokens}),
            ("completions_running", "gauge", "Completions that are being sampled.", {"": running}),
            ("completions_waiting", "gauge", "Completions that wait for a place.", {"": waiting}),
            (
                "request_seconds",
                "histogram",
                "Time of answered requests.",
                seconds | {"_sum": round(self._seconds, 6), "_count": self._buckets["+Inf"]},
            ),
        ):
            lines += [f"# HELP rlvr_{name} {what}", f"# TYPE rlvr_{name} {kind}"]
            lines += [f"rlvr_{name}{suffix} {value}" for suffix, value in samples.items()]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, kw_only=True)
class Limits:
    max_body_bytes: int
    request_s: float


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """An ASGI application for one kind of request. It always answers, with an error if necessary."""

    served: Served
    pool: Pool
    limits: Limits
    metrics: Metrics
    kind: type[ApiRequest]
    make: Callable[[Any, Served], tuple[Answer, list[Choice]]]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer and count. After a stream has started, an error is its last event."""
        begin, status, in_stream = time.perf_counter(), 200, False
        try:
            request = parse(self.kind, await self._body(Request(scope, receive)))
            async with _explained(self.limits.request_s):
                answer, choices = self.make(request, self.served)
                with self.pool.places(len(choices)):
                    if in_stream := bool(request.stream):
                        await send(STREAM)
                    try:
                        await _unless_gone(receive, self._sample(request, answer, choices, send))
                    finally:
                        counts = usage(choices)
                        self.metrics.prompt_tokens += counts["prompt_tokens"]
                        self.metrics.completion_tokens += counts["completion_tokens"]
                body = None if in_stream else JSONResponse(answer.whole(choices))
            await (body(scope, receive, send) if body else _send_events(send, [], last=True))
            self.metrics.took(time.perf_counter() - begin)
        except ClientDisconnect:
            self.metrics.given_up += 1
            status = GONE
        except ApiError as error:
            status = error.status
            if in_stream:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LAST_WORDS_S):
                        await _send_events(send, [error.body()], last=True)
            else:
                await refusal(error)(scope, receive, send)
        finally:
            self.metrics.answers[scope["path"], status] += 1

    async def _body(self, request: Request) -> bytes:
        """The whole body, at most `max_body_bytes` regardless of its headers."""
        kind = request.headers.get("content-type", "application/json").split(";")[0].strip().lower()
        if kind != "application/json":  # any web page can make a browser send other types
            raise ApiError(415, "the body must be JSON: send it with the header Content-Type: application/json.")
        most, data = self.limits.max_body_bytes, bytearray()
        try:
            async with asyncio.timeout(BODY_S), aclosing(request.stream()) as blocks:
                async for block in blocks:
                    data += block
                    if len(data) > most:
                        raise ApiError(413, f"the body has more than {most} bytes, the most that this server reads.")
        except TimeoutError:
            raise ApiError(408, f"the body did not arrive within {BODY_S:.0f} s.") from None
        return bytes(data)

    async def _sample(self, request: ApiRequest, answer: Answer, choices: Sequence[Choice], send: Send) -> None:
        """Sample; for a stream also send the events, except the last one."""

        async def tell(entries: list[Json | None]) -> None:
            if request.stream and any(entries):
                await _send_events(send, [answer.chunk([entry]) for entry in entries if entry])

        await tell([answer.opening(choice) for choice in choices])
        going = list(choices)
        async with aclosing(self.pool.sample(choices)) as steps:
            async for _ in steps:
                if request.stream:
                    news = [answer.news(choice) for choice in going]
                    going = [choice for choice in going if choice.stop_reason is None]  # it may end while this is sent
                    await tell(news)
        if request.stream and request.stream_options and request.stream_options.include_usage:
            await _send_events(send, [answer.chunk([], usage(choices))])


def refusal(error: ApiError) -> JSONResponse:
    headers = {"Retry-After": str(error.retry_s)} if error.retry_s else {}
    headers |= {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
    return JSONResponse(error.body(), status_code=error.status, headers=headers)


async def _send_events(send: Send, events: Sequence[Json], *, last: bool = False) -> None:
    lines = [f"data: {json.dumps(event, ensure_ascii=False, separators=(',', ':'))}\n\n" for event in events]
    text = "".join(lines) + ("data: [DONE]\n\n" if last else "")
    await send({"type": "http.response.body", "body": text.encode(), "more_body": not last})


@asynccontextmanager
async def _explained(seconds: float) -> AsyncIterator[None]:
    """Turn errors into HTTP errors; an unexpected one is printed on stderr and answered with a 500."""
    try:
        async with asyncio.timeout(seconds):
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


async def _unless_gone(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run `work`; cancel it when the client disconnects."""

    async def until_gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(until_gone())
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        task.result()
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
