"""Client of one vLLM server: sampling requests and weight updates. Its answers are untrusted.

Sampling uses `/inference/v1/generate` (`--enable-scale-out`): ids in, ids out, with the weight version of each span of
sampled tokens, which `/v1/completions` lacks.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from rlvr.engines.chat_completions import first_problem
from rlvr.engines.vllm.extension.rlvr_vllm_launch import KEY_VARIABLE, REFUSED
from rlvr.errors import UserError
from rlvr.printable import one_line
from rlvr.types import Completion, SamplingParams, StopReason

if TYPE_CHECKING:
    from httpx2 import AsyncClient, Response

GENERATE = "/inference/v1/generate"
CONNECT_TIMEOUT_S = 10.0
TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
MISSING = -9998.0  # vLLM sends -9999 for a missing logprob
SLACK = 1e-3  # rounding may raise a logprob above 0 by this much


class ServerGoneError(Exception):
    """No usable answer: the connection, the server or the answer is broken. A retry may help."""


class RefusedError(Exception):
    """The server refused the request; a retry would be refused too."""


class Facts(BaseModel):
    """The report of the server's extension; see `rlvr_vllm_extension.describe`."""

    architecture: str
    device: str
    gpu: str | None  # of the first worker
    num_workers: int
    config: dict[str, int | str | bool | None]
    dtype: Literal["float32", "bfloat16", "float16"]
    quantization: str | None
    max_model_len: int
    logprobs_mode: str
    max_logprobs: int
    max_lora_rank: int
    chunked_prefill: bool
    tokenizer: str | None


class _Model(BaseModel):
    id: str
    parent: str | None = None


class _AdminAnswer(BaseModel):
    """Answers of administrative routes; each has one of these fields."""

    results: list[dict[str, Any]] = []
    data: list[_Model] = []
    weight_version: str = ""
    success: bool = False


def client_settings(*urls: str, read_s: float | None) -> dict[str, Any]:
    """httpx client settings for these servers. Certificates and proxies are read for https only; connections are not
    kept, so that none must be closed in a dead event loop. UserError, without the key, for an invalid key."""
    import httpx2

    key = os.environ.get(KEY_VARIABLE)
    if key and not all("!" <= char <= "~" for char in key):
        raise UserError(f"{KEY_VARIABLE}: a key has no spaces, line breaks or letters beyond ASCII; set it without.")
    is_secure = any(url.lower().startswith("https:") for url in urls)
    return {
        "headers": {"Authorization": f"Bearer {key}"} if key else {},
        "verify": is_secure,
        "trust_env": is_secure,
        "timeout": httpx2.Timeout(read_s, connect=CONNECT_TIMEOUT_S),
        "limits": httpx2.Limits(max_connections=None, max_keepalive_connections=0),
    }


class Server:
    """One server. Synchronous calls are for the few seconds of a weight push.

    All raise ServerGoneError if a retry may help, RefusedError if the server refuses.
    """

    def __init__(self, url: str, *, timeout_s: float) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._timeout_s = timeout_s
        if "@" in url:
            raise UserError(f"engine.urls: an address with a password is written down; set {KEY_VARIABLE} instead.")

    async def sample(self, client: AsyncClient, body: Mapping[str, Any]) -> bytes:
        """The answer to `request_body`. Cancellation ends the request."""
        import httpx2

        try:
            return _content(await client.post(self.url + GENERATE, json=body))
        except httpx2.HTTPError as error:
            raise _gone(error) from error

    def call(self, path: str, body: Mapping[str, Any] | None = None, *, verb: str = "POST") -> bytes:
        import httpx2

        try:
            with httpx2.Client(**client_settings(self.url, read_s=self._timeout_s)) as client:
                return _content(client.request(verb, self.url + path, json=body))
        except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as error:
            raise _gone(error) from error

    def _ask(self, path: str, body: Mapping[str, Any] | None = None, *, verb: str = "POST") -> _AdminAnswer:
        answer = self.call(path, body, verb=verb)
        try:
            return _AdminAnswer.model_validate_json(answer)
        except ValidationError as error:
            said = one_line(answer.decode("utf-8", "replace"))
            raise ServerGoneError(f"what it answered cannot be read ({said})") from error

    def describe(self) -> Facts:
        """The server's facts. UserError if it was started without the options for training."""
        try:
            results = self._ask("/collective_rpc", {"method": "describe"}).results
            return Facts.model_validate(results[0] if results else None)
        except (RefusedError, ServerGoneError, ValidationError) as error:
            if isinstance(error, ServerGoneError) and "no attribute" not in str(error):  # "no attribute": no extension
                raise
            reason = "of another version" if isinstance(error, ValidationError) else error
            raise UserError(
                f"the server {self.url} cannot take weights ({reason}): start it with rlvr serve MODEL --engine vllm, "
                "or as docs/vllm.md says."
            ) from error

    def model_name(self) -> str:
        """The base model's name in requests."""
        models = self._ask("/v1/models", verb="GET").data
        name = next((model.id for model in models if model.parent is None), None)
        if name is None:
            raise ServerGoneError("it has adapters, and no model under them")
        return name

    def weight_version(self) -> str:
        return self._ask("/weight_info", verb="GET").weight_version

    def name_version(self, version: str) -> None:
        self.call("/update_weight_version", {"new_version": version})

    def update(self, info: Mapping[str, Any]) -> None:
        """Load some of the weights. RefusedError, with the old weights restored, if they do not fit or are
        incomplete."""
        try:
            self.call("/update_weights", {"update_info": info})
        except ServerGoneError as error:
            _, marker, reason = str(error).partition(REFUSED)
            if marker:  # a worker's own error, which vLLM wraps in a status 500
                raise RefusedError(reason.partition("', please check")[0].strip()) from error
            raise

    def forget_prefixes(self) -> None:
        """Drop keys and values of old weights, also of requests in flight: they are recomputed (pitfall 31)."""
        if not self._ask("/reset_prefix_cache?reset_running_requests=true").success:
            raise RefusedError("it did not drop its prefix cache, which holds keys and values of old weights")

    def load_adapter(self, name: str, path: str) -> None:
        """Load an adapter from a folder; an existing one of this name is the same."""
        try:
            self.call("/v1/load_lora_adapter", {"lora_name": name, "lora_path": path})
        except RefusedError as error:
            if "already been loaded" not in str(error):
                raise

    def unload_adapter(self, name: str) -> None:
        with suppress(RefusedError):
            self.call("/v1/unload_lora_adapter", {"lora_name": name})


def _gone(error: Exception) -> ServerGoneError:
    return ServerGoneError(one_line(str(error)) or type(error).__name__)


def _content(response: Response) -> bytes:
    body = response.content
    if response.status_code == 200:
        return body
    message = one_line(body.decode("utf-8", "replace"))
    with suppress(ValueError, RecursionError, AttributeError, TypeError):  # vLLM's error message, if any
        found = json.loads(body)
        error = found.get("error", found.get("detail"))
        message = one_line(str(error["message"] if isinstance(error, dict) else error or message))
    told = f"status {response.status_code}: {message}"
    raise ServerGoneError(told) if response.status_code in TRANSIENT else RefusedError(told)


class _Logprob(BaseModel):
    token_id: int
    logprob: float
    top_logprobs: list[_Logprob] = []


class _Logprobs(BaseModel):
    content: list[_Logprob]


class Span(BaseModel, frozen=True):
    """Tokens `start .. end` of a completion were sampled with the server's weights `version`."""

    version: str
    start: int
    end: int


class _Choice(BaseModel):
    finish_reason: str
    token_ids: list[int]
    logprobs: _Logprobs
    weight_versions: list[Span]


class _Answer(BaseModel):
    choices: list[_Choice] = Field(min_length=1, max_length=1)


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """A completion whose versions are not checked yet."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]  # of the sampling distribution; NaN if missing
    stop_reason: StopReason
    spans: tuple[Span, ...]
    top: tuple[tuple[int, float], ...]  # likeliest first tokens, if requested


def request_body(model: str, prompt_ids: Sequence[int], sampling: SamplingParams, *, top: int = 0) -> dict[str, Any]:
    """The request for one completion, with every setting: a server fills in missing ones from the model's folder.

    One request per completion, not `n`: vLLM gives sample i of n the seed `seed + i`, but ours have independent seeds
    (pitfall 36). The prefix cache still computes a group's prompt once.
    """
    return {
        "model": model,
        "token_ids": list(prompt_ids),
        "sampling_params": {
            "n": 1,
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "seed": sampling.seed,
            "stop_token_ids": sorted(sampling.stop_ids),
            "ignore_eos": True,  # only stop_token_ids count
            "logprobs": top,  # of the sampled token and the likeliest ones
            "detokenize": False,
        },
    }


def read_sampled(body: bytes, sampling: SamplingParams, vocab_size: int) -> Sampled:
    """Validate the answer to `request_body`. ServerGoneError if it contradicts itself or the request."""
    try:
        choice = _Answer.model_validate_json(body).choices[0]
    except ValidationError as error:
        raise ServerGoneError(f"what it answered is no completion ({first_problem(error)})") from error
    ids, content, spans = choice.token_ids, choice.logprobs.content, choice.weight_versions
    ends, stops = [0, *(span.end for span in spans)], [token in sampling.stop_ids for token in ids]
    finish = "stop" if any(stops) else "length"
    problems = {
        "not as many tokens as were asked for": not 0 < len(ids) <= sampling.max_tokens,
        "a token outside of the vocabulary": not all(0 <= token < vocab_size for token in ids),
        "logprobs of other tokens": [one.token_id for one in content] != ids,
        "a logprob that is none": any(math.isnan(one.logprob) or one.logprob > SLACK for one in content),
        "tokens after a stop token": any(stops[:-1]),
        f"it ended by {choice.finish_reason[:50]!r}": choice.finish_reason != finish
        or (finish == "length" and len(ids) < sampling.max_tokens),
        "versions of the weights that do not cover the tokens": [span.start for span in spans] != ends[:-1]
        or ends[-1] != len(ids)
        or ends != sorted(set(ends)),
    }
    for problem, is_there in problems.items():
        if is_there:
            raise ServerGoneError(f"what it answered cannot be: {problem}")
    return Sampled(
        token_ids=tuple(ids),
        logprobs=tuple(math.nan if one.logprob < MISSING else min(one.logprob, 0.0) for one in content),
        stop_reason=StopReason(finish),
        spans=tuple(spans),
        top=tuple((one.token_id, one.logprob) for one in content[0].top_logprobs),
    )


def to_completion(sampled: Sampled, sampling: SamplingParams, versions: Sequence[int]) -> Completion:
    """The completion; `versions` belong to the spans.

    The server sends logprobs of the truncated distribution; with truncation those over the whole vocabulary are NaN.
    """
    full = (math.nan,) * len(sampled.token_ids) if sampling.truncates else sampled.logprobs
    changes = zip(sampled.spans[1:], versions[1:], strict=True)
    return Completion(
        token_ids=sampled.token_ids,
        behavior_logprobs=full,
        sampling_logprobs=sampled.logprobs,
        stop_reason=sampled.stop_reason,
        policy_version=versions[0],
        version_changes=tuple((span.start, version) for span, version in changes),
    )
