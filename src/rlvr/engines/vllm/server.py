"""HTTP client of one vLLM server: sampling requests and weight updates."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from rlvr.engines.vllm.extension.rlvr_vllm_launch import KEY_VARIABLE, REFUSED
from rlvr.engines.vllm.wire import RefusedError, ServerGoneError
from rlvr.errors import UserError

if TYPE_CHECKING:
    from httpx2 import AsyncClient, Response

CONNECT_TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 64 << 20
"""A sampled token takes about 160 bytes."""
TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})


class Facts(BaseModel):
    """What the server's extension reports; see `rlvr_vllm_extension.describe`."""

    architecture: str
    device: str
    gpu: str | None  # of the first worker
    num_workers: int = Field(ge=1)
    config: dict[str, int | str | bool | None]
    dtype: Literal["float32", "bfloat16", "float16"]
    quantization: str | None
    max_model_len: int = Field(gt=1)
    logprobs_mode: str
    max_logprobs: int = Field(ge=-1)
    max_lora_rank: int
    chunked_prefill: bool
    tokenizer: str | None


class _Model(BaseModel):
    id: str
    parent: str | None = None


class _Answer(BaseModel):
    """What administrative routes answer; each has one of these."""

    results: list[dict[str, Any]] = []
    data: list[_Model] = []
    weight_version: str = ""
    success: bool = False


def checked_url(url: str) -> str:
    """`http://127.0.0.1:8000/v1/` -> `http://127.0.0.1:8000`. UserError for another kind of address."""
    import httpx2

    if "@" in url:
        raise UserError(f"engine.urls: an address with a password would be written down; set {KEY_VARIABLE} instead.")
    with suppress(httpx2.InvalidURL, UnicodeError):
        parts = httpx2.URL(url)
        parts.host.encode("idna")  # as the socket does
        is_port = parts.port is None or 0 < parts.port < 1 << 16
        if parts.scheme in ("http", "https") and parts.host and is_port and not parts.query and not parts.fragment:
            return str(parts).rstrip("/").removesuffix("/v1")
    raise UserError(f"engine.urls: {url!r} is no address of a server; write e.g. http://127.0.0.1:8000.")


def client_settings(*urls: str, read_s: float | None) -> dict[str, Any]:
    """For an httpx client of these servers. Certificates and proxies are read for https only; connections are not kept,
    so none is left to close in a dead event loop. UserError, without the key, for one that no request can carry."""
    import httpx2

    key = os.environ.get(KEY_VARIABLE)
    if key and not all("!" <= char <= "~" for char in key):
        raise UserError(f"{KEY_VARIABLE}: a key has no spaces, line breaks or letters beyond ASCII; set it without.")
    is_secure = any(url.startswith("https:") for url in urls)
    return {
        "headers": {"Authorization": f"Bearer {key}"} if key else {},
        "verify": is_secure,
        "trust_env": is_secure,
        "timeout": httpx2.Timeout(read_s, connect=CONNECT_TIMEOUT_S),
        "limits": httpx2.Limits(max_connections=None, max_keepalive_connections=0),
    }


class Server:
    """One server. Synchronous calls are for the few seconds of a weight push.

    All raise ServerGoneError where another try may help, RefusedError where the server refuses.
    """

    def __init__(self, url: str, *, timeout_s: float) -> None:
        self.url = checked_url(url)
        self._timeout_s = timeout_s

    async def sample(self, client: AsyncClient, path: str, body: Mapping[str, Any]) -> bytes:
        """The answer to a request. Cancelling it ends the request."""
        import httpx2

        found = bytearray()
        try:
            async with client.stream("POST", self.url + path, json=body) as response:
                async for block in response.aiter_bytes():
                    _extend(found, block)
            return _content(response, found)
        except httpx2.HTTPError as error:
            raise ServerGoneError(shown(str(error).encode()) or type(error).__name__) from error

    def call(self, path: str, body: Mapping[str, Any] | None = None, *, verb: str = "POST") -> bytes:
        """As `sample`, and the caller waits."""
        import httpx2

        found = bytearray()
        try:
            with (
                httpx2.Client(**client_settings(self.url, read_s=self._timeout_s)) as client,
                client.stream(verb, self.url + path, json=body) as response,
            ):
                for block in response.iter_bytes():
                    _extend(found, block)
            return _content(response, found)
        except httpx2.HTTPError as error:
            raise ServerGoneError(shown(str(error).encode()) or type(error).__name__) from error

    def _ask(self, path: str, body: Mapping[str, Any] | None = None, *, verb: str = "POST") -> _Answer:
        answer = self.call(path, body, verb=verb)
        try:
            return _Answer.model_validate_json(answer)
        except ValidationError as error:
            raise ServerGoneError(f"what it answered cannot be read ({shown(answer)})") from error

    def describe(self) -> Facts:
        """The server's facts. UserError if it was started without what training needs."""
        try:
            results = self._ask("/collective_rpc", {"method": "describe"}).results
            return Facts.model_validate(results[0] if results else None)
        except (RefusedError, ServerGoneError) as error:
            if isinstance(error, ServerGoneError) and "no attribute" not in str(error):  # that: without the extension
                raise
            raise UserError(
                f"the server {self.url} cannot take weights ({error}): start it with rlvr serve MODEL --engine vllm, "
                "or as docs/vllm.md says."
            ) from error
        except ValidationError as error:
            raise UserError(
                f"the server {self.url} has another version of our extension than this one: start it with the "
                "rlvr that trains."
            ) from error

    def model_name(self) -> str:
        """Name of the model itself in requests, without adapters."""
        models = self._ask("/v1/models", verb="GET").data
        name = next((model.id for model in models if model.parent is None), None)
        if name is None:
            raise ServerGoneError("it has adapters, and no model under them")
        return name

    def weight_version(self) -> str:
        """Name of the last pushed weights; `default` before the first push."""
        return self._ask("/weight_info", verb="GET").weight_version

    def name_version(self, version: str) -> None:
        """Name the current weights."""
        self.call("/update_weight_version", {"new_version": version})

    def update(self, info: Mapping[str, Any]) -> None:
        """Load some of the weights. RefusedError, with the old weights back, if they do not fit or are incomplete."""
        try:
            self.call("/update_weights", {"update_info": info})
        except ServerGoneError as error:
            _, marker, reason = str(error).partition(REFUSED)
            if marker:  # a worker's own error, of which vLLM makes a status 500 and more words
                raise RefusedError(reason.partition("', please check")[0].strip()) from error
            raise

    def forget_prefixes(self) -> None:
        """Drop keys and values of old weights, of requests in flight too: they are recomputed (pitfall 31)."""
        if not self._ask("/reset_prefix_cache?reset_running_requests=true").success:
            raise RefusedError("it did not drop its prefix cache, which holds keys and values of old weights")

    def load_adapter(self, name: str, path: str) -> None:
        """Add the adapter of a folder; one of this name that is there already is the same."""
        try:
            self.call("/v1/load_lora_adapter", {"lora_name": name, "lora_path": path})
        except RefusedError as error:
            if "already been loaded" not in str(error):
                raise

    def unload_adapter(self, name: str) -> None:
        """Remove an adapter, if it is there."""
        with suppress(RefusedError):
            self.call("/v1/unload_lora_adapter", {"lora_name": name})


def _extend(found: bytearray, block: bytes) -> None:
    """ServerGoneError for an answer that would fill the memory."""
    found += block
    if len(found) > MAX_ANSWER_BYTES:
        raise ServerGoneError(f"it answered with more than {MAX_ANSWER_BYTES:,} bytes")


def _content(response: Response, body: bytes | bytearray) -> bytes:
    """The body of a good answer."""
    if response.status_code == 200:
        return bytes(body)
    message = shown(body)
    with suppress(ValueError, RecursionError, AttributeError, TypeError):  # vLLM's own, if there is one
        found = json.loads(body)
        error = found.get("error", found.get("detail"))
        message = shown(str(error["message"] if isinstance(error, dict) else error or message).encode())
    told = f"status {response.status_code}: {message}"
    raise ServerGoneError(told) if response.status_code in TRANSIENT else RefusedError(told)


def shown(body: bytes | bytearray, limit: int = 300) -> str:
    """Foreign text in a line; not the text of a web page."""
    text = body[: 2 * limit].decode("utf-8", "replace")
    if text.lstrip()[:15].lower().startswith(("<!doctype html", "<html")):
        return "a page of the web"
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())[:limit].rstrip(".")
