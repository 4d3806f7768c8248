"""Reading prompts (`echo` with `logprobs`) is work like sampling: it has its places, its limits, and lets others on."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rlvr.core.policy import Policy
from rlvr.serve.sampling import Served
from tests.unit.serve.client import LIMITS, Client, Response

COMPLETIONS = "/v1/completions"
LONG = {"prompt": [40, 41], "max_tokens": 200, "seed": 1, "ignore_eos": True}
READ = {"prompt": [[40, 41, 42, 7 + n] for n in range(12)], "echo": True, "logprobs": 1, "max_tokens": 0}
"""Twelve passes in `passes`."""


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the passes so far; each of up to 4 tokens, and at least 2 ms long."""
    found, hidden = list[tuple[int, ...]](), Policy.hidden

    def noted(policy: Policy, ids: Any, *more: Any) -> Any:
        found.append(tuple(ids.shape))
        time.sleep(2e-3)
        return hidden(policy, ids, *more)

    monkeypatch.setattr(Policy, "hidden", noted)
    monkeypatch.setattr("rlvr.serve.prompt_logprobs.MAX_TOKENS", 4)
    return found


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0)


def logprobs(answer: Response) -> list[list[float]]:
    assert answer.status == 200, answer.body
    return [choice["logprobs"]["token_logprobs"][1:] for choice in answer.json["choices"]]


def test_a_full_queue_and_a_server_that_ends_read_no_prompt(qwen: Served, passes: list) -> None:
    async def run() -> tuple[Response, Response]:
        client, leave = Client(qwen), asyncio.Event()
        asked = asyncio.create_task(client.post(COMPLETIONS, LONG | {"n": 24}, leave=leave))
        await until(lambda: client.pool.active == 24)
        full = await client.post(COMPLETIONS, READ)
        leave.set()
        await asked
        await client.pool.drain(60)
        return full, await client.post(COMPLETIONS, READ)

    full, ending = asyncio.run(run())
    assert (full.status, ending.status, passes) == (429, 503, [])


def test_a_client_that_hangs_up_ends_the_reading(qwen: Served, passes: list) -> None:
    async def run() -> int:
        client, leave = Client(qwen), asyncio.Event()
        asked = asyncio.create_task(client.post(COMPLETIONS, READ, leave=leave))
        await until(lambda: bool(passes))
        held = client.pool.active
        leave.set()
        assert (await asked).status == 0
        assert client.pool.active == 0
        return held

    assert asyncio.run(run()) == 12
    assert len(passes) < 12


def test_reading_too_long_is_an_error(qwen: Served, passes: list) -> None:
    answer = asyncio.run(Client(qwen, limits=replace(LIMITS, request_s=1e-3)).post(COMPLETIONS, READ))
    assert answer.status == 504
    assert len(passes) < 12


def test_a_shutdown_does_not_wait_for_the_last_prompt(qwen: Served, passes: list) -> None:
    async def run() -> Response:
        client = Client(qwen)
        asked = asyncio.create_task(client.post(COMPLETIONS, READ))
        await until(lambda: bool(passes))
        await client.pool.drain(0.0)
        return await asked

    answer = asyncio.run(run())
    assert (answer.status, answer.message) == (503, "the server is shutting down.")
    assert len(passes) < 12


def test_others_go_on_between_the_passes_and_change_no_number(qwen: Served, passes: list) -> None:
    alone = logprobs(asyncio.run(Client(qwen).post(COMPLETIONS, READ)))
    passes.clear()
    at = list[int]()

    async def sent() -> None:
        at.append(len(passes))

    async def run() -> tuple[Response, list[int]]:
        client, leave, healthy = Client(qwen), asyncio.Event(), list[int]()
        body = LONG | {"stream": True}
        stream = asyncio.create_task(client.post(COMPLETIONS, body, leave=leave, on_send=sent))
        await until(lambda: qwen.engine.num_running == 1)
        asked = asyncio.create_task(client.post(COMPLETIONS, READ))
        await until(lambda: bool(passes))
        assert (await client.get("/health")).status == 200
        healthy.append(len(passes))
        answer = await asked
        leave.set()
        await stream
        return answer, healthy

    answer, healthy = asyncio.run(run())
    for one, other in zip(logprobs(answer), alone, strict=True):
        assert one == pytest.approx(other, abs=1e-5)
    assert healthy[0] < 12
    assert {*at} & {*range(1, 12)}, "no event of the stream was sent between the passes"


def test_a_long_prompt_does_not_split_the_short_ones(qwen: Served, passes: list, monkeypatch: Any) -> None:
    monkeypatch.setattr("rlvr.serve.prompt_logprobs.MAX_TOKENS", 12)
    prompts = [[5, 6], [7] * 12, [6, 5], [5] * 4, [5, 5]]
    together = logprobs(asyncio.run(Client(qwen).post(COMPLETIONS, READ | {"prompt": prompts})))
    assert passes == [(3, 2), (1, 4), (1, 12)]
    single = [logprobs(asyncio.run(Client(qwen).post(COMPLETIONS, READ | {"prompt": one})))[0] for one in prompts]
    for one, other in zip(together, single, strict=True):
        assert one == pytest.approx(other, abs=1e-5)


def test_each_prompts_completions_have_its_own_words(qwen: Served) -> None:
    body = {"prompt": ["plus is", "minus"], "n": 2, "echo": True, "logprobs": 1, "max_tokens": 0}
    choices = asyncio.run(Client(qwen).post(COMPLETIONS, body)).json["choices"]
    assert [choice["text"] for choice in choices] == ["plus is", "plus is", "minus", "minus"]
    seen = [choice["logprobs"]["token_logprobs"] for choice in choices]
    assert seen[0] == seen[1] != seen[2] == seen[3]
