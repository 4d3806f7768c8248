"""A teacher on a server: its logprobs by token, and one clear failure for each way to misbehave."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from rlvr.engines import prompt_logprobs
from rlvr.engines.prompt_logprobs import open_teacher
from rlvr.errors import ConfigError, UserError
from rlvr.types import TokenBatch
from tests.system.openai_server import Fault, Misbehave, error, serve
from tests.unit.core.tiny import VOCABULARY, plain_logprobs, tiny_batch, tiny_policy

pytestmark = pytest.mark.openai

POLICY = tiny_policy()
BATCH = tiny_batch(POLICY, num_groups=6)


def never(messages: Any) -> Any:
    raise AssertionError("a teacher does not chat")


def scores(words: tuple[str, ...] = VOCABULARY, change: Callable[[Any], Any] = lambda choices: choices) -> Misbehave:
    """The answers of a vLLM server that serves POLICY."""

    def answer(number: int, body: dict[str, Any]) -> Fault:
        assert {key: body[key] for key in ("model", "max_tokens", "prompt_logprobs", "add_special_tokens")} == {
            **{"model": "teacher", "max_tokens": 1, "prompt_logprobs": 0, "add_special_tokens": False}
        }
        choices = [{"index": row, "text": "", "prompt_logprobs": tokens(ids)} for row, ids in enumerate(body["prompt"])]
        return Fault(body=json.dumps({"id": "x", "object": "x", "choices": change(choices[::-1])}).encode())

    def tokens(ids: list[int]) -> list[Any]:
        logits = POLICY.model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        after = [logits[place, token].item() for place, token in enumerate(ids[1:])]
        known = zip(ids[1:], after, strict=True)
        return [None, *({str(i): {"logprob": x, "rank": 1, "decoded_token": words[i]}} for i, x in known)]

    return answer


def ask(fault: Misbehave, batch: TokenBatch = BATCH) -> tuple[torch.Tensor, int]:
    with serve(never, fault=fault) as server:
        teacher = open_teacher(f"openai:{server.url}#teacher", POLICY.tokenizer, temperature=1.0)
        return teacher.logprobs(batch), len(server.requests)


def test_each_sampled_token_gets_its_logprob() -> None:
    """24 rows in requests of 16, whose answers come in any order."""
    assert len(BATCH.ids) == 24
    found, asked = ask(scores())
    assert asked == 2 == -(-24 // prompt_logprobs.ROWS)
    assert torch.allclose(found, plain_logprobs(POLICY, BATCH) * BATCH.loss_mask, atol=1e-5)


def without(choices: Any) -> Any:
    return [{"index": one["index"], "text": ""} for one in choices]


def shorter(choices: Any) -> Any:
    return [one | {"prompt_logprobs": one["prompt_logprobs"][:-1]} for one in choices]


def other_ids(choices: Any) -> Any:
    tokens = [None, {"99": {"logprob": -1.0}}]
    return [one | {"prompt_logprobs": [tokens[x is not None] for x in one["prompt_logprobs"]]} for one in choices]


def with_logprob(value: float) -> Misbehave:
    """Of every token."""

    def change(choices: Any) -> Any:
        tokens = [one["prompt_logprobs"][1:] for one in choices]
        for known in (known for row in tokens for token in row for known in token.values()):
            known["logprob"] = value
        return choices

    return scores(change=change)


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (
            lambda number, body: error(400, "max_tokens is odd"),
            r"the teacher http\S+ failed \(.*max_tokens is odd.*resume",
        ),
        (
            lambda number, body: Fault(body=b"<html>"),
            "returns no prompt logprobs: use a server that does, such as vLLM",
        ),
        (scores(change=without), "returns no prompt logprobs: use a server that does"),
        (scores(change=shorter), "returns logprobs of other tokens than it was asked for"),
        (scores(change=other_ids), "returns no logprob of token"),
        (with_logprob(float("nan")), "returns no logprob of token"),
        (with_logprob(0.5), "returns no logprob of token"),
        (
            scores((*VOCABULARY[:5], *VOCABULARY[:4:-1])),
            "the teacher's ids are not the student's: .* is '.*' here and '",
        ),
    ],
)
def test_a_server_that_cannot_teach_is_named(fault: Misbehave, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        ask(fault)


def test_a_server_scores_at_temperature_1() -> None:
    with pytest.raises(ConfigError, match=r"rollout\.temperature=0\.7: the teacher"):
        open_teacher("openai:http://127.0.0.1:1/v1#x", POLICY.tokenizer, temperature=0.7)
