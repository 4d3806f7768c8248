"""Requests to a vLLM server and validation of its answers, which are untrusted.

The route is `/inference/v1/generate` (`--enable-scale-out`): ids in, ids out, and for each span of sampled tokens the
version of the weights, which `/v1/completions` does not tell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from rlvr.types import Completion, SamplingParams, StopReason

GENERATE = "/inference/v1/generate"
MISSING = -9998.0
"""vLLM sends -9999 for a missing logprob."""
SLACK = 1e-3
"""A logprob may be so far above 0: rounding."""


class ServerGoneError(Exception):
    """Nothing usable came back: the connection, the server or its answer broke. Another try may help."""


class RefusedError(Exception):
    """The server understood and refused: the same request would be refused again."""


class _Logprob(BaseModel):
    token_id: int
    logprob: float
    top_logprobs: list[_Logprob] = []


class _Logprobs(BaseModel):
    content: list[_Logprob]


class Span(BaseModel, frozen=True):
    """Tokens `start .. end` of a completion were sampled with the weights that the server calls `version`."""

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
    """A completion before its versions are known to be ours."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]  # of the distribution that was sampled from; NaN where the server has none
    stop_reason: StopReason
    spans: tuple[Span, ...]
    top: tuple[tuple[int, float], ...]  # likely first tokens, where they were asked for


def request_body(model: str, prompt_ids: Sequence[int], sampling: SamplingParams, *, top: int = 0) -> dict[str, Any]:
    """The request for one completion, with every setting: a server fills in missing ones from the model's folder.

    One request a completion, never `n`: vLLM gives sample i of n the seed `seed + i`, and ours each have their own
    (pitfall 36). The prefix cache still computes the prompt of a group once.
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
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"][:6])) or "the whole"
        raise ServerGoneError(f"what it answered is no completion ({place}: {first['msg'][:200]})") from error
    ids, content = choice.token_ids, choice.logprobs.content
    reason = {"stop": StopReason.STOP, "length": StopReason.LENGTH}.get(choice.finish_reason)
    if reason is None:
        raise ServerGoneError(f"it gave the request up ({choice.finish_reason[:50]})")
    problem = _problem(ids, content, choice.weight_versions, reason, sampling, vocab_size)
    if problem is not None:
        raise ServerGoneError(f"what it answered cannot be: {problem}")
    return Sampled(
        token_ids=tuple(ids),
        logprobs=tuple(math.nan if one.logprob < MISSING else min(one.logprob, 0.0) for one in content),
        stop_reason=reason,
        spans=tuple(choice.weight_versions),
        top=tuple((one.token_id, one.logprob) for one in content[0].top_logprobs),
    )


def _problem(
    ids: Sequence[int],
    content: Sequence[_Logprob],
    spans: Sequence[Span],
    reason: StopReason,
    sampling: SamplingParams,
    vocab_size: int,
) -> str | None:
    ends = [0, *(span.end for span in spans)]
    if not 0 < len(ids) <= sampling.max_tokens:
        return f"{len(ids)} tokens, where at most {sampling.max_tokens} were asked for"
    if not all(0 <= one < vocab_size for one in ids):
        return f"a token outside of the vocabulary of {vocab_size}"
    if [one.token_id for one in content] != list(ids):
        return f"logprobs of {len(content)} tokens that are not the {len(ids)} sampled ones"
    if any(math.isnan(one.logprob) or one.logprob > SLACK for one in content):
        return "a logprob that is no logprob"
    if reason == StopReason.STOP and ids[-1] not in sampling.stop_ids:
        return f"it stopped at token {ids[-1]}, which is no stop token"
    if reason == StopReason.LENGTH and ids[-1] in sampling.stop_ids:
        return f"it ended for its length at token {ids[-1]}, which is a stop token"
    if reason == StopReason.LENGTH and len(ids) < sampling.max_tokens:
        return f"it ended for its length after {len(ids)} of {sampling.max_tokens} tokens"
    if any(token in sampling.stop_ids for token in ids[:-1]):
        return "it went on after a stop token"
    if [span.start for span in spans] != ends[:-1] or ends[-1] != len(ids) or ends != sorted(set(ends)):
        return "its versions of the weights do not cover the tokens"
    return None


def to_completion(sampled: Sampled, sampling: SamplingParams, versions: Sequence[int]) -> Completion:
    """The completion; `versions` are those of the spans.

    The server sends logprobs of the truncated distribution; those over the whole vocabulary are NaN (missing) then.
    """
    full = (math.nan,) * len(sampled.token_ids) if sampling.truncates else sampled.logprobs
    return Completion(
        token_ids=sampled.token_ids,
        behavior_logprobs=full,
        sampling_logprobs=sampled.logprobs,
        stop_reason=sampled.stop_reason,
        policy_version=versions[0],
        version_changes=tuple(
            (span.start, version) for span, version in zip(sampled.spans[1:], versions[1:], strict=True)
        ),
    )
