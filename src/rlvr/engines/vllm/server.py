"""HTTP client of one vLLM server: sampling requests and weight updates."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from rlvr.engines.vllm.wire import BrokenOffError, RefusedError, ServerGoneError
from rlvr.errors import UserError

if TYPE_CHECKING:
    from httpx2 import AsyncClient, Response

T = TypeVar("T", bound=BaseModel)

KEY_VARIABLE = "VLLM_API_KEY"
CONNECT_TIMEOUT_S = 10.0
MAX_ADMIN_BYTES = 1 << 20
TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})


class Facts(BaseModel):
    """What the server's extension reports; see `rlvr_vllm_extension.describe`."""

    vllm: str = Field(max_length=100)
    architecture: str = Field(max_length=200)
    device: str = Field(max_length=50)
    num_workers: int = Field(ge=1, le=10_000)
    vocab_size: int
    hidden_size: int
    num_layers: int
    dtype: Literal["float32", "bfloat16", "float16"]
    quantization: str | None = Field(max_length=100)
    max_model_len: int = Field(gt=1)
    logprobs_mode: str = Field(max_length=100)
    max_logprobs: int = Field(ge=-1)
    max_lora_rank: int
    chunked_prefill: bool
    tokenizer: str | None = Field(max_length=200)


class _Report(BaseModel):
    error: str | None = None
    cut_off: bool = False
    loaded: int = 0
    verified: int = 0
    num_unverifiable: int = 0
    unverifiable: list[str] = Field(default=[], max_length=100)


class _Results(BaseModel):
    results: list[dict[str, Any]] = Field(min_length=1, max_length=10_000)


class _Reports(BaseModel):
    results: list[_Report] = Field(min_length=1, max_length=10_000)


class _Model(BaseModel):
    id: str
    parent: str | None = None


class _Models(BaseModel):
    data: list[_Model] = Field(min_length=1, max_length=10_000)


class _Info(BaseModel):
    weight_version: str = Field(max_length=200)


class _Reset(BaseModel):
    success: bool


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


def auth_headers() -> dict[str, str]:
    """The servers' API key. UserError, without the key, for one that no request can carry."""
    key = os.environ.get(KEY_VARIABLE)
    if key and not all("!" <= char <= "~" for char in key):
        raise UserError(f"{KEY_VARIABLE}: a key has no spaces, line breaks or letters beyond ASCII; set it without.")
    return {"Authorization": f"Bearer {key}"} if key else {}


def client_settings(*urls: str, read_s: float | None) -> dict[str, Any]:
    """For an httpx client of these servers. Certificates and proxies are read for https only; connections are not kept,
    so none is left to close in a dead event loop."""
    import httpx2

    is_secure = any(url.startswith("https:") for url in urls)
    return {
        "headers": auth_headers(),
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

    async def sample(self, client: AsyncClient, path: str, body: Mapping[str, Any], max_bytes: int) -> bytes:
        """The answer to a request, at most `max_bytes`. Cancelling it ends the request."""
        import httpx2

        found = bytearray()
        try:
            async with client.stream("POST", self.url + path, json=body) as response:
                async for block in response.aiter_bytes():
                    found += block
                    if len(found) > max_bytes:
                        raise ServerGoneError(f"it answered with more than {max_bytes:,} bytes")
        except httpx2.HTTPError as error:
            raise ServerGoneError(shown(str(error).encode()) or type(error).__name__) from error
        _check_status(response, bytes(found))
        return bytes(found)

    def describe(self) -> Facts:
        """The server's facts. UserError if it was started without what training needs."""
        try:
            return Facts.model_validate(self._read(_Results, self._rpc("describe")).results[0])
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
        found = self._read(_Models, self._call("GET", "/v1/models"))
        name = next((model.id for model in found.data if model.parent is None), None)
        if name is None:
            raise ServerGoneError("it has adapters, and no model under them")
        return name

    def weight_version(self) -> str:
        """Name of the last pushed weights; `default` before the first push."""
        return self._read(_Info, self._call("GET", "/weight_info")).weight_version

    def pause(self) -> None:
        """Freeze requests in flight and start no new ones."""
        self._call("POST", "/pause?mode=keep")

    def resume(self) -> None:
        """Go on from the tokens that were sampled."""
        self._call("POST", "/resume")

    def load_policy(self, path: str) -> None:
        """Every worker loads the files. RefusedError with a worker's reason if one failed or could not verify."""
        self._check_reports(self._rpc("load_policy", path))

    def receive_policy(self, offer: str) -> None:
        """As `load_policy` from a broadcast. BrokenOffError if another server may have stopped it."""
        self._check_reports(self._rpc("receive_policy", offer))

    def _check_reports(self, answer: bytes) -> None:
        reports = self._read(_Reports, answer).results
        for report in sorted(reports, key=lambda report: report.cut_off):  # a worker's own reason comes first
            if report.error is not None:
                raise (BrokenOffError if report.cut_off else RefusedError)(report.error[:1000])
            if report.num_unverifiable or report.verified < report.loaded:
                raise RefusedError(
                    f"it cannot tell whether {report.num_unverifiable} of {report.loaded} tensors arrived, for example "
                    f"{', '.join(report.unverifiable[:3])}"
                )

    def load_adapter(self, name: str, path: str) -> None:
        """Add the adapter of a folder; one of this name that is there already is the same."""
        try:
            self._call("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": path})
        except RefusedError as error:
            if "already been loaded" not in str(error):
                raise

    def unload_adapter(self, name: str) -> None:
        """Remove an adapter, if it is there."""
        with suppress(RefusedError):
            self._call("POST", "/v1/unload_lora_adapter", {"lora_name": name})

    def forget_prefixes(self) -> None:
        """Drop keys and values of old weights, of requests in flight too: they are recomputed (pitfall 31)."""
        if not self._read(_Reset, self._call("POST", "/reset_prefix_cache?reset_running_requests=true")).success:
            raise RefusedError("it did not drop its prefix cache, which holds keys and values of old weights")

    def name_version(self, version: str) -> None:
        """Name the current weights."""
        self._call("POST", "/update_weight_version", {"new_version": version})

    def sample_now(self, path: str, body: Mapping[str, Any], max_bytes: int) -> bytes:
        """As `sample`, for a probe."""
        return self._call("POST", path, body, max_bytes=max_bytes)

    def _rpc(self, method: str, *args: str) -> bytes:
        """Every worker's answer. Without vLLM's `timeout`: after one, each answer is taken for that to the next call,
        until the server restarts (0.32)."""
        return self._call("POST", "/collective_rpc", {"method": method, "args": list(args)})

    def _call(
        self, verb: str, path: str, body: Mapping[str, Any] | None = None, *, max_bytes: int = MAX_ADMIN_BYTES
    ) -> bytes:
        import httpx2

        found = bytearray()
        try:
            with (
                httpx2.Client(**client_settings(self.url, read_s=self._timeout_s)) as client,
                client.stream(verb, self.url + path, json=body) as response,
            ):
                for block in response.iter_bytes():
                    found += block
                    if len(found) > max_bytes:
                        raise ServerGoneError(f"it answered with more than {max_bytes:,} bytes")
        except httpx2.HTTPError as error:
            raise ServerGoneError(shown(str(error).encode()) or type(error).__name__) from error
        _check_status(response, bytes(found))
        return bytes(found)

    @staticmethod
    def _read(kind: type[T], body: bytes) -> T:
        try:
            return kind.model_validate_json(body)
        except ValidationError as error:
            raise ServerGoneError(f"what it answered cannot be read ({shown(body)})") from error


def _check_status(response: Response, body: bytes) -> None:
    if response.status_code == 200:
        return
    told = f"status {response.status_code}: {_message(body)}"
    if response.status_code in TRANSIENT:
        raise ServerGoneError(told)
    raise RefusedError(told)


def _message(body: bytes) -> str:
    """vLLM's message, if there is one."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return shown(body)
    error = found.get("error", found.get("detail")) if isinstance(found, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return shown(str(message).encode()) if message else shown(body)


def shown(body: bytes, limit: int = 300) -> str:
    """Foreign text in a line; not the text of a web page."""
    text = body[: 2 * limit].decode("utf-8", "replace")
    if text.lstrip()[:15].lower().startswith(("<!doctype html", "<html")):
        return "a page of the web"
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())[:limit].rstrip(".")
