"""Client of an OpenAI chat-completions endpoint: messages in, a message out; for evaluation only.

Answers are untrusted: size-limited here, validated by `chat_completions`.
"""

import asyncio
import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

from rlvr.engines.chat_completions import ChatAnswer, EndpointError, read_answer
from rlvr.errors import ConfigError, UserError, install
from rlvr.places import ENDPOINT
from rlvr.printable import one_line
from rlvr.types import SamplingParams, ToolSchema

TIMEOUT_S = 300.0  # of one request; each retry gets the same time
CONNECT_TIMEOUT_S = 10.0
MAX_BODY_BYTES = 16 << 20
MAX_FAILURES_AT_START, MAX_FAILURES = 5, 50
"""Consecutive failures after which an endpoint is abandoned: before the first answer, and later."""

_OPTIONAL = ("return_token_ids", "logprobs", "seed")
"""Keys an endpoint may not know. A key named in a refusal is left out from then on."""


class _Model(BaseModel):
    id: str


class _Models(BaseModel):
    data: list[_Model]


class Endpoint:
    """`Endpoint("http://127.0.0.1:8000/v1", "policy")`: the model `policy` there. Close it in its event loop."""

    def __init__(
        self, url: str, name: str, *, max_concurrent: int = 16, timeout_s: float = TIMEOUT_S, max_retries: int = 3
    ) -> None:
        """Retries a broken connection, a time-out, 408, 409, 429 and 5xx, after 0.5 s, 1 s, 2 s."""
        self.url, self.name = url, name
        self._max_concurrent, self._timeout_s, self._max_retries = max_concurrent, timeout_s, max_retries
        self._left_out: set[str] = set()
        self._limit_name = "max_tokens"
        self._num_failures = 0  # since the last answer
        self._has_answered = False
        self._client: Any = None
        self._gate = asyncio.Semaphore(max_concurrent)

    @property
    def fingerprint(self) -> str:
        return hashlib.blake2b(f"{self.url}#{self.name}".encode(), digest_size=8).hexdigest()

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling: SamplingParams,
        *,
        tools: Sequence[ToolSchema] = (),
        stop: Sequence[str] = (),
    ) -> ChatAnswer:
        """One completion of a conversation in OpenAI's form; `sampling.stop_ids` are ignored.

        Raises:
            EndpointError: this request failed permanently.
            UserError: every request would fail: a refused key, an unknown model, an endpoint that never answered.
        """
        body: dict[str, Any] = {
            "messages": list(messages),
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": sampling.seed,
            "logprobs": True,
            "return_token_ids": True,
        }
        body |= {name: value for name in ("top_k", "min_p") if (value := getattr(sampling, name))}
        if tools:
            body["tools"] = [dict(tool) for tool in tools]
        elif stop:  # with tools they would cut calls, which the endpoint parses
            body["stop"] = list(stop)
        async with self._gate:
            try:
                answer = read_answer(await self._ask(body))
            except EndpointError as error:
                self._num_failures += 1
                limit = MAX_FAILURES if self._has_answered else MAX_FAILURES_AT_START
                if self._num_failures >= limit:
                    raise UserError(
                        f"the endpoint {self.url} failed {self._num_failures} times running ({error}): repair it, then "
                        "run the same command again."
                    ) from error
                raise
            self._has_answered, self._num_failures = True, 0
            return answer

    async def close(self) -> None:
        """Close the connections; the next request, in any event loop, opens new ones."""
        client, self._client = self._client, None
        self._gate = asyncio.Semaphore(self._max_concurrent)
        if client is not None:
            await client.close()

    async def check(self) -> None:
        """Request the list of models; an endpoint without one passes. UserError without an answer, for an unknown model
        name, or for a refused key.
        """
        openai, client = library(), self._open()
        try:
            body = await self._read(client.with_options(max_retries=1).models.with_streaming_response.list())
        except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
            raise self._refusal(error) from error
        except (openai.OpenAIError, EndpointError) as error:
            if getattr(error, "status_code", None) in (404, 405, 501):
                return
            raise UserError(
                f"the endpoint {self.url} does not answer ({_error_text(error)}): start it, or correct the address."
            ) from error
        finally:
            await self.close()
        try:
            names = [model.id for model in _Models.model_validate_json(body).data]
        except ValidationError as error:
            raise UserError(
                f"{self.url} is no endpoint of OpenAI's kind (its list of models cannot be read): the address usually "
                "ends with /v1."
            ) from error
        if names and self.name not in names:
            there = one_line(", ".join(names[:10]), 500)
            raise UserError(f"the endpoint {self.url} has no model {self.name!r}: there are {there}.")

    async def _ask(self, body: dict[str, Any]) -> bytes:
        openai, create = library(), self._open().chat.completions.with_streaming_response.create
        while True:
            sent = {key: value for key, value in body.items() if key not in self._left_out}
            sent[self._limit_name] = sent.pop("max_tokens")
            try:
                return await self._read(create(model=self.name, messages=body["messages"], extra_body=sent))
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                if not self._adapts(str(error.message), sent):
                    raise EndpointError(_error_text(error)) from error
            except (openai.AuthenticationError, openai.PermissionDeniedError, openai.NotFoundError) as error:
                raise self._refusal(error) from error
            except openai.OpenAIError as error:
                raise EndpointError(_error_text(error)) from error

    def _adapts(self, refusal: str, sent: Mapping[str, Any]) -> bool:
        """Whether the refused key can be renamed or left out, from then on."""
        if "max_completion_tokens" in refusal and self._limit_name == "max_tokens":
            self._limit_name = "max_completion_tokens"
            return True
        named = next((key for key in _OPTIONAL if key in sent and key in refusal), None)
        if named is not None:
            self._left_out.add(named)
        return named is not None

    def _open(self) -> Any:
        if self._client is None:
            self._client = library().AsyncOpenAI(**connection(self.url, self._timeout_s, self._max_retries))
        return self._client

    async def _read(self, request: AbstractAsyncContextManager[Any]) -> bytes:
        content = bytearray()
        limit_s = (1 + self._max_retries) * self._timeout_s  # the client's own limit restarts with every byte
        try:
            async with asyncio.timeout(limit_s), request as response:
                async for chunk in response.iter_bytes():
                    content += chunk
                    if len(content) > MAX_BODY_BYTES:
                        raise EndpointError(f"it answered with more than {MAX_BODY_BYTES >> 20} MiB")
        except TimeoutError as error:
            raise EndpointError(f"it timed out after {limit_s:g} s") from error
        return bytes(content)

    def _refusal(self, error: Any) -> UserError:
        """The error for a status that every request would get."""
        if error.status_code == 404:
            return UserError(
                f"the endpoint {self.url} has no model {self.name!r} or no chat completions ({_error_text(error)}); an "
                "address usually ends with /v1."
            )
        return UserError(f"the endpoint {self.url} refuses the key ({_error_text(error)}): set OPENAI_API_KEY.")


def read_address(model: str) -> tuple[str, str]:
    """Address and model name of `openai:http://127.0.0.1:8000/v1#NAME`. ConfigError for any other form."""
    url, _, name = model.removeprefix(ENDPOINT).partition("#")
    try:
        parts = urlsplit(url)
        is_complete = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and name
    except ValueError:  # no port, no IPv6 address
        parts, is_complete = urlsplit(""), False
    if parts.password or parts.username:
        raise ConfigError("an address with a password would be written into every record: set OPENAI_API_KEY instead.")
    if not is_complete:
        raise ConfigError(
            f"{model}: an endpoint is written openai:ADDRESS#MODEL, e.g. openai:http://127.0.0.1:8000/v1#my-model."
        )
    return url.rstrip("/"), name


def open_endpoint(model: str) -> Endpoint:
    """The endpoint of `openai:http://127.0.0.1:8000/v1#NAME`, checked. UserError: see `Endpoint.check`."""
    endpoint = Endpoint(*read_address(model))
    asyncio.run(endpoint.check())
    return endpoint


def connection(url: str, timeout_s: float = TIMEOUT_S, max_retries: int = 3) -> dict[str, Any]:
    """Arguments of the official client."""
    timeout = library().Timeout(timeout_s, connect=CONNECT_TIMEOUT_S)
    key = os.environ.get("OPENAI_API_KEY") or "none"
    return {"base_url": url, "api_key": key, "timeout": timeout, "max_retries": max_retries}


def library() -> Any:
    """The official client. UserError where it is not installed."""
    try:
        import openai
    except ImportError as error:
        raise UserError(f"a model behind an endpoint needs the official client: {install('openai')}.") from error
    return openai


def _error_text(error: Any) -> str:
    status, body = getattr(error, "status_code", None), getattr(error, "body", None)
    message = body.get("message") if isinstance(body, dict) else None
    if status is not None:
        text = f"{status}: {message}" if isinstance(message, str) else f"status {status}"
    else:
        text = f"{getattr(error, 'message', error)} {error.__cause__ or ''}"
    return one_line(text)
