"""Keys, limits, disconnects, shutdown and bad requests."""

import asyncio
import sys
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from rlvr.serve.sampling import Served
from rlvr.serve.schemas import ApiError, ChatRequest, CompletionRequest, parse
from tests.unit.serve.client import LIMITS, Client, Response

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
LONG = {"prompt": [40, 41], "max_tokens": 200, "seed": 1, "ignore_eos": True}
SHORT = LONG | {"max_tokens": 2}


def idle(served: Served) -> bool:
    return served.engine.num_running == served.engine.num_waiting == 0


async def until(condition) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0)


WRONG_KEYS = (b"Bearer wrong", b"Bearer s3cre", b"Bearer s3cret more", b"Basic s3cret", b"s3cret", b"Bearer \xff\xfe")


@pytest.mark.parametrize(
    ("header", "message"),
    [(None, "is missing"), *((key, "is wrong") for key in WRONG_KEYS), (b"Bearer s3cret", ""), (b"bearer s3cret", "")],
)
def test_without_the_key_only_health_answers(qwen, header, message):
    async def run():
        client = Client(qwen, api_key="s3cret")
        headers = [(b"content-type", b"application/json")] + ([(b"authorization", header)] if header else [])
        assert (await client.get("/health")).status == 200
        paths = ["/v1/models", "/metrics", "/nothing"]
        answers = [await client.get(path, headers=headers) for path in paths]
        return [await client.post(COMPLETIONS, SHORT, headers=headers), *answers]

    answers = asyncio.run(run())
    if not message:
        assert [answer.status for answer in answers] == [200, 200, 200, 404]
        return
    for answer in answers:
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert message in answer.message
        assert answer.json["error"]["type"] == "authentication_error"
        assert "s3cret" not in answer.message


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 5])
def test_pitfall_37_a_client_that_goes_away_frees_its_places(qwen, stream, n):
    async def run():
        client, leave = Client(qwen), asyncio.Event()
        asked = asyncio.create_task(client.post(COMPLETIONS, LONG | {"stream": stream, "n": n}, leave=leave))
        await until(lambda: qwen.engine.num_running == n)
        leave.set()
        await asked
        await until(lambda: idle(qwen))
        assert client.pool.active == 0
        return await client.get("/metrics")

    metrics = asyncio.run(run()).body.decode()
    assert "rlvr_requests_given_up_total 1\n" in metrics
    assert 'rlvr_requests_total{endpoint="/v1/completions",status="499"} 1\n' in metrics
    tokens = int(metrics.partition("\nrlvr_completion_tokens_total ")[2].split()[0])
    assert tokens < n * LONG["max_tokens"]


def test_a_full_queue_refuses_and_says_when_to_come_back(qwen):
    async def run():
        client, leave = Client(qwen), asyncio.Event()
        asked = [asyncio.create_task(client.post(COMPLETIONS, LONG | {"n": 16}, leave=leave)) for _ in range(2)]
        await until(lambda: (qwen.engine.num_running, qwen.engine.num_waiting) == (8, 24))
        refused = await client.post(COMPLETIONS, SHORT)
        counts = (await client.get("/metrics")).body.decode()
        leave.set()
        await asyncio.gather(*asked)
        return refused, counts, await client.post(COMPLETIONS, SHORT), await client.post(COMPLETIONS, SHORT | {"n": 33})

    refused, counts, later, never = asyncio.run(run())
    assert (refused.status, refused.headers["retry-after"]) == (429, "1")
    assert "32 completions run or wait" in refused.message
    assert "rlvr_completions_running 8\n" in counts
    assert "rlvr_completions_waiting 24\n" in counts
    assert later.status == 200
    assert (never.status, never.message) == (400, "n: 33 completions are asked for; this server takes 32 at a time.")


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_takes_too_long_is_an_error(qwen, stream):
    async def run():
        client = Client(qwen, limits=replace(LIMITS, request_s=1e-3))
        answer = await client.post(COMPLETIONS, LONG | {"stream": stream})
        await until(lambda: idle(qwen))
        return answer

    answer = asyncio.run(run())
    told = answer.events[-1]["error"]["message"] if stream else answer.message
    assert told == "the answer took more than 0.001 s, the most that this server spends."
    assert answer.status == (200 if stream else 504)


def test_shutdown_finishes_running_requests(qwen):
    async def run(seconds: float):
        client = Client(qwen)
        asked = asyncio.create_task(client.post(COMPLETIONS, LONG))
        await until(lambda: qwen.engine.num_running == 1)
        ending = asyncio.create_task(client.pool.drain(seconds))
        await asyncio.sleep(0)
        refused, health = await client.post(COMPLETIONS, SHORT), await client.get("/health")
        await ending
        return await asked, refused, health

    finished, refused, health = asyncio.run(run(60))
    assert finished.json["usage"]["completion_tokens"] == 200
    assert (refused.status, refused.message) == (503, "the server is shutting down.")
    assert (health.status, health.json) == (503, {"status": "ending"})
    cut, *_ = asyncio.run(run(0.0))
    assert (cut.status, cut.message) == (503, "the server is shutting down.")
    assert idle(qwen)


@pytest.mark.parametrize("n", [1, 3])
def test_pitfall_37_a_slow_reader_gets_every_token(qwen, n):
    body = LONG | {"max_tokens": 40, "n": n, "stream": True}
    slow = asyncio.run(Client(qwen).post(COMPLETIONS, body, on_send=lambda: asyncio.sleep(0.05)))
    fast = asyncio.run(Client(qwen).post(COMPLETIONS, body))
    assert len(slow.events) < len(fast.events)  # several tokens a chunk
    for index in range(n):
        texts = [
            "".join(c["text"] for event in answer.events for c in event["choices"] if c["index"] == index)
            for answer in (slow, fast)
        ]
        assert texts[0] == texts[1]


def test_a_failing_model_does_not_end_the_server(qwen, monkeypatch, capsys):
    def answer(body):
        return asyncio.run(Client(qwen).post(COMPLETIONS, body))

    def fail(*arguments):
        raise RuntimeError("out of order, at /some/path")

    with monkeypatch.context() as patch:
        patch.setattr(qwen.engine._scheduler.rows.runner, "decode", fail)
        broken = answer(LONG | {"n": 2})
        stream = answer(LONG | {"stream": True})
    assert (broken.status, broken.message) == (500, "the server failed (RuntimeError): its log says where.")
    assert stream.events[-1]["error"]["type"] == "server_error"
    assert "out of order" in capsys.readouterr().err
    assert answer(SHORT).status == 200


CHATS = {"messages": [{"role": "user", "content": "x"}]}


def tool(**function):
    return {"type": "function", "function": {"name": "f"} | function}


def calling(arguments="{}"):
    """An assistant's message."""
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "tool_calls": [call]}


IMAGE = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]}
NESTED: Any = {}
for _ in range(40):
    NESTED = {"anyOf": [NESTED]}
ODD = [{"properties": {"a": schema}} for schema in (3, {"anyOf": 3}, {"type": 3}, {"type": [3]}, NESTED)]
LONG_JSON = '{"a": "' + "x" * 9000 + '"}'
REFUSED = {
    COMPLETIONS: [
        ({}, "prompt: it is missing."),
        ({"prompt": []}, "prompt: there is none; give a text, token ids, or a list of either."),
        ({"prompt": [[1], [2], []]}, "prompt[2]: it is empty: there is nothing to continue."),
        ({"prompt": [[1], [336]]}, "prompt[1]: the model has no token 336: its ids end at 335."),
        ({"prompt": ["a", [1]]}, "prompt[1]: Input should be a valid string (got [1])."),
        ({"prompt": [336]}, "prompt: the model has no token 336: its ids end at 335."),
        ({"prompt": [1] * 256}, "prompt: 256 tokens leave no room in the model's context of 256 tokens."),
        ({"prompt": "x" * 9000}, "prompt: 9000 characters do not fit into the model's context of 256 tokens."),
        (SHORT | {"temperature": -1}, "temperature: Input should be greater than or equal to 0 (got -1)."),
        (SHORT | {"temperature": 1e-9}, "temperature: it must be 0 (greedy) or at least 0.001."),
        (SHORT | {"n": "2"}, "n: Input should be a valid integer (got '2')."),
        (SHORT | {"stop": ["a", 3]}, "stop[1]: Input should be a valid string (got 3)."),
        (SHORT | {"stop_token_ids": [400]}, "stop_token_ids: the model has no token 400: its ids end at 335."),
        (SHORT | {"best_of": 3}, "best_of: this server samples n completions and returns them all"),
        (SHORT | {"echo": True, "stream": True}, "echo: it goes with whole answers only; leave stream out."),
        (SHORT | {"max_tokens": 0}, "max_tokens: it must be at least 1; 0 goes with echo: true."),
        (SHORT | {"temprature": 1}, "'temprature' is no field that this server knows; did you mean temperature?"),
        (SHORT | {"logit_bias": {"5": -100}}, "logit_bias: this server does not support it"),
    ],
    CHAT: [
        (CHATS | {"tools": [tool(description="x" * 9000)]}, "messages: 9"),  # characters do not fit: not even encoded
        ({"messages": [calling(arguments=LONG_JSON)]}, "messages: 9"),
        ({"messages": []}, "messages: List should have at least 1 item"),
        (CHATS | {"max_tokens": 0}, "max_tokens: it must be at least 1."),
        *(
            (CHATS | {"chat_template_kwargs": {"enable_thinking": False, name: "x"}}, f"chat_template_kwargs: {name} ")
            for name in ("messages", "add_generation_prompt", "chat_template")
        ),
        (CHATS | {"chat_template_kwargs": {"a": "x" * 9000}}, "messages: 9"),
        (CHATS | {"top_logprobs": 2}, "top_logprobs: it goes with logprobs: true."),
        (CHATS | {"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens: max_completion_tokens has another value"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role: Input should be 'system', "),
        ({"messages": [{"role": "user"}]}, "messages[0].content: it is missing."),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id: it is missing"),
        ({"messages": [calling() | {"role": "user", "content": "x"}]}, "messages[0].tool_calls: only an"),
        (IMAGE, "messages[0].content[0].type: the model reads text only, not 'image_url'."),
        ({"messages": [calling(arguments="[")]}, "messages[0].tool_calls[0].function.arguments: they are not JSON: "),
        (CHATS | {"tools": [tool(name="")]}, "tools[0].function.name: String"),
        *(
            (CHATS | {"tools": [tool(parameters=odd)]}, "tools[0].function.parameters.properties.a: it must be a JSON")
            for odd in ODD
        ),
    ],
}


def bad(answer: Response, status: int = 400) -> str:
    """The message of a refusal: one short sentence, or two halves of one."""
    assert answer.status == status, answer.body
    message = answer.message
    assert "\n" not in message
    assert 10 < len(message) < 500
    assert message[-1] in ".?"
    return message


@pytest.mark.parametrize(("path", "body", "message"), [(path, *row) for path in REFUSED for row in REFUSED[path]])
def test_a_bad_request_gets_the_reason(qwen, path, body, message):
    answer = asyncio.run(Client(qwen).post(path, body))
    assert bad(answer).startswith(message), answer.message


SWITCHES = ("include_stop_str_in_output", "use_beam_search", "return_tokens_as_token_ids", "continue_final_message")


@pytest.mark.parametrize(
    ("name", "harmless", "other"),
    [
        *((name, False, True) for name in SWITCHES),
        *((name, True, False) for name in ("add_generation_prompt", "add_special_tokens")),
        *((name, 0, 1) for name in ("presence_penalty", "frequency_penalty", "min_tokens")),
        *((name, 1, 0) for name in ("repetition_penalty", "length_penalty")),
        *((name, {}, {"a": 1}) for name in ("logit_bias", "chat_template_kwargs")),
        ("suffix", "", "x"),
        ("modalities", ["text"], ["audio"]),
    ],
)
def test_a_field_that_is_not_supported_may_have_its_harmless_value(qwen, name, harmless, other):
    def answer(value):
        return asyncio.run(Client(qwen).post(COMPLETIONS, SHORT | {"max_tokens": 1, name: value}))

    assert answer(harmless).status == 200
    assert bad(answer(other)).startswith(f"{name}: this server does not support it")


@pytest.mark.parametrize(
    "most",
    [
        {"prompt": [335]},
        {"n": 32},
        {"n": 2, "best_of": 2},
        {"best_of": 1},
        {"temperature": 1e-3},
        {"stop_token_ids": [335]},
    ],
)
def test_what_is_just_within_a_limit_is_answered(qwen, most):
    answer = asyncio.run(Client(qwen).post(COMPLETIONS, SHORT | {"max_tokens": 1} | most))
    assert (answer.status, len(answer.json["choices"])) == (200, most.get("n", 1))


def test_unknown_models_paths_and_methods_are_refused(qwen):
    def get(path):
        return asyncio.run(Client(qwen).get(path))

    def post(model):
        return asyncio.run(Client(qwen).post(COMPLETIONS, SHORT | {"model": model}))

    assert bad(post("olso"), 404) == "model: 'olso' is not served here; did you mean also?"
    assert bad(post("gpt-99"), 404) == "model: 'gpt-99' is not served here; there is m, also."
    assert post("gpt-99").json["error"]["type"] == "not_found_error"
    assert bad(get("/v1/models/gpt-99"), 404) == "'gpt-99' is not served here; there is m, also."
    assert bad(get("/v1/chat"), 404) == "there is no GET '/v1/chat' here; docs/serve.md says what there is."
    assert bad(get(CHAT), 405)
    assert bad(asyncio.run(Client(qwen).post("/v1/models", {})), 405)
    assert {post(model).json["model"] for model in ("m", "also", None, "")} == {"m"}


@pytest.mark.parametrize("announced", [(), ((b"content-length", b"60000000"),)])
def test_a_body_that_is_too_large_is_not_read_to_its_end(qwen, announced):
    headers = [(b"content-type", b"application/json"), *announced]
    answer = asyncio.run(Client(qwen).send("POST", COMPLETIONS, [b"x" * 60_000] * 1_000, headers=headers))
    assert bad(answer, 413) == "the body has more than 100000 bytes, the most that this server reads."


def test_a_form_and_the_deepest_body_are_no_requests(qwen):
    form = Client(qwen).post(COMPLETIONS, SHORT, headers=[(b"content-type", b"text/plain")])
    assert "Content-Type: application/json" in bad(asyncio.run(form), 415)
    depth = sys.getrecursionlimit() * 2
    body = b'{"prompt": ' + b"[" * depth + b"]" * depth + b"}"
    assert bad(asyncio.run(Client(qwen).post(COMPLETIONS, body)))


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (CompletionRequest, '{"prompt": [%s]}'),
        (CompletionRequest, '{"prompt": [[%s]]}'),
        (CompletionRequest, '{"prompt": "a", "stop": [%s]}'),
        (CompletionRequest, '{"prompt": "a", "stop_token_ids": [%s]}'),
        (ChatRequest, '{"messages": [%s]}'),
        (ChatRequest, '{"messages": [{"role": "user", "content": [%s]}]}'),
        (ChatRequest, '{"messages": [{"role": "assistant", "tool_calls": [%s]}]}'),
        (ChatRequest, '{"messages": [{"role": "user", "content": "a"}], "tools": [%s]}'),
    ],
)
@pytest.mark.parametrize("item", ["-1", "{}", "null"])
def test_a_long_invalid_list_is_not_read_to_its_end(kind, body, item):
    # a million errors would hold up all other clients for a minute, and take gigabytes
    with pytest.raises(ValidationError) as caught:
        kind.model_validate_json(body % ",".join([item] * 1000))
    assert caught.value.error_count() < 20
    with pytest.raises(ApiError, match=r"^prompt: List should have at most 1024 items"):
        parse(CompletionRequest, b'{"prompt": ["a"' + b', "a"' * 1024 + b"]}")
