"""A model behind an endpoint: requests, answers, and one clear failure for each way to misbehave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from rlvr.engines.chat_completions import ChatAnswer, EndpointError, to_wire
from rlvr.engines.openai import MAX_FAILURES_AT_START, Endpoint, open_endpoint
from rlvr.errors import ConfigError, UserError
from rlvr.types import Message, SamplingParams, StopReason
from tests.system.openai_server import Fault, error, serve

pytestmark = pytest.mark.openai

PARAMS = SamplingParams(max_tokens=7, stop_ids=frozenset(), seed=2**62 + 1, temperature=0.5, top_p=0.9)
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


def talk(url: str, times: int, *, stop: Any = (), tools: Any = (), **how: Any) -> list[Any]:
    """Answers to the same question, one after another."""

    async def asking() -> list[Any]:
        endpoint = Endpoint(url, "policy", **{"max_retries": 0, "max_concurrent": 1} | how)
        question = [{"role": "user", "content": "3 + 4?"}]
        many = [endpoint.chat(question, PARAMS, stop=stop, tools=tools) for _ in range(times)]
        try:
            return await asyncio.gather(*many, return_exceptions=True)
        finally:
            await endpoint.close()

    return asyncio.run(asking())


def ask(url: str, times: int = 1, **options: Any) -> list[ChatAnswer]:
    """The same; the first error is raised."""
    found = talk(url, times, **options)
    for one in found:
        if isinstance(one, Exception):
            raise one
    return found


def seven(messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"content": "7"}


@pytest.mark.slow
def test_a_request_has_the_sampling_settings_and_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sesame")
    with serve(seven) as server:
        [said] = ask(server.url, stop=("<eoe>",))
    [body] = server.requests
    wanted = {"model": "policy", "max_tokens": 7, "seed": 2**62 + 1, "temperature": 0.5, "top_p": 0.9}
    assert {key: body[key] for key in wanted} == wanted
    assert (body["stop"], body["logprobs"], body["return_token_ids"]) == (["<eoe>"], True, True)
    assert server.keys == {"Bearer sesame"}
    assert (said.message.content, said.stop_reason) == ("7", StopReason.STOP)
    assert (said.num_prompt_tokens, said.num_completion_tokens) == (10, 5)
    assert (said.token_ids, said.logprobs) == ((), ())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("told", "ids", "logprobs"),
    [
        ({"token_ids": [4, 9], "logprobs": [-0.5, -0.25]}, (4, 9), (-0.5, -0.25)),
        ({"logprobs": [-0.5]}, (), (-0.5,)),
        ({"token_ids": [4, 9], "logprobs": [-0.5]}, (4, 9), ()),  # of one token less: which one is unknown
        ({"token_ids": [4, 9]}, (4, 9), ()),
    ],
)
def test_pitfall_06_token_ids_and_logprobs_are_read_if_told(
    told: dict[str, Any], ids: tuple[int, ...], logprobs: tuple[float, ...]
) -> None:
    with serve(lambda messages: {"content": "7", **told}) as server:
        [said] = ask(server.url)
    assert (said.token_ids, said.logprobs) == (ids, logprobs)


def test_a_malformed_tool_call_is_a_call_with_a_problem() -> None:
    calls = [("look", {"at": 3}), ("look", '{"at": 3'), ("", {})]
    with serve(lambda messages: {"content": None, "calls": calls}) as server:
        [said] = ask(server.url, tools=(TOOL,), stop=("</call>",))
    assert server.requests[0]["tools"] == [TOOL]
    assert "stop" not in server.requests[0]  # it would cut a call in two
    first, second, third = said.message.tool_calls
    assert (first.id, first.name, first.arguments, first.problem) == ("call_0", "look", {"at": 3}, None)
    assert "no JSON" in str(second.problem)
    assert "names no tool" in str(third.problem)
    # an endpoint would refuse what cannot be read
    sent = [call["function"] for call in to_wire(said.message)["tool_calls"]]
    found = [(one["name"], json.loads(one["arguments"])) for one in sent]
    assert found == [("look", {"at": 3}), ("look", {}), ("unknown", {})]


def test_what_a_template_may_show_is_sent() -> None:
    """Reasoning of the data, and which tool replied; neither field where there is none."""
    thought = Message(role="assistant", content="a", reasoning="because")
    assert to_wire(thought) == {"role": "assistant", "content": "a", "reasoning_content": "because"}
    reply = Message(role="tool", content="3", name="add", call_id="call_0")
    assert to_wire(reply) == {"role": "tool", "content": "3", "tool_call_id": "call_0", "name": "add"}
    assert to_wire(Message(role="user", content="q")) == {"role": "user", "content": "q"}


def test_pitfall_14_finish_reasons_say_why_a_completion_ended() -> None:
    reasons = ["stop", "length", "content_filter"]
    with serve(lambda messages: {"content": "7", "finish": reasons[len(server.requests) - 1]}) as server:
        said = ask(server.url, times=3)
    assert [one.stop_reason for one in said] == [StopReason.STOP, StopReason.LENGTH, StopReason.ABORTED]


def test_an_argument_that_an_endpoint_refuses_is_left_out() -> None:
    def refuse(number: int, body: dict[str, Any]) -> Fault | None:
        for key in ("return_token_ids", "logprobs"):
            if key in body:
                return error(400, f"Unrecognized request argument supplied: {key}")
        if "max_tokens" in body:
            return error(400, "Unsupported parameter: use 'max_completion_tokens' instead.")
        return None

    with serve(seven, fault=refuse) as server:
        said = ask(server.url, times=2)
    assert [one.message.content for one in said] == ["7", "7"]
    assert len(server.requests) == 5  # three refusals, two answers
    assert server.requests[-1]["max_completion_tokens"] == 7
    assert "max_tokens" not in server.requests[-1]


BAD_ANSWERS: list[tuple[Fault, str]] = [
    (error(500, "out of memory"), "500: out of memory"),
    (error(400, "the prompt has 9000 tokens"), "400: the prompt has 9000 tokens"),
    (error(500, "\x1b[2J red\nlines"), "500: [2J red lines"),
    (Fault(body=b" " * (17 << 20)), "more than 16 MiB"),
    (Fault(body=b"<html>hello</html>", content_type="text/html"), "no chat completion"),
    (Fault(), "no chat completion"),
    (Fault(body=b"[" * 100_000), "no chat completion"),
    (Fault(body=b'{"choices": []}'), "no chat completion (choices"),
    (Fault(body=b'{"choices": [{"message": {"content": 7}}]}'), "choices.0.message.content"),
    (Fault(body=b'{"choices": [{"message": {"content": "\xc3"}}]}'), "no chat completion"),  # half of UTF-8
]


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "sentence"), BAD_ANSWERS)
def test_a_bad_answer_is_one_clear_failure(fault: Fault, sentence: str) -> None:
    with serve(seven, fault=lambda number, body: fault) as server, pytest.raises(EndpointError) as caught:
        ask(server.url)
    text = str(caught.value)
    assert sentence in text
    assert text.isprintable()
    assert len(text) < 500


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "retries", "sentence"),
    [
        (Fault(silent=True), 0, "timed out"),
        (Fault(status=200, body=b" " * 100_000, drips=True), 1, "it timed out after 0.4 s"),
        (Fault(status=500, body=b" " * 100_000, drips=True), 1, "it timed out after 0.4 s"),
    ],
)
def test_a_silent_or_dripping_endpoint_times_out(fault: Fault, retries: int, sentence: str) -> None:
    with serve(seven, fault=lambda number, body: fault) as server, pytest.raises(EndpointError, match=sentence):
        ask(server.url, timeout_s=0.2, max_retries=retries)


@pytest.mark.slow
def test_an_endpoint_that_is_silent_once_is_asked_again() -> None:
    with serve(seven, fault=lambda number, body: None if number else Fault(silent=True)) as server:
        (answer,) = ask(server.url, timeout_s=0.6, max_retries=3)
        assert isinstance(answer, ChatAnswer)
        assert len(server.requests) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "sentence"),
    [(401, "refuses the key (401: no): set OPENAI_API_KEY"), (403, "refuses the key"), (404, "has no model 'policy'")],
)
def test_an_error_that_every_request_would_get_ends_the_run(status: int, sentence: str) -> None:
    fault = error(status, "no")
    with serve(seven, fault=lambda number, body: fault) as server, pytest.raises(UserError) as caught:
        ask(server.url)
    assert sentence in str(caught.value)
    assert len(server.requests) == 1


def test_pitfall_26_an_endpoint_without_answers_is_given_up() -> None:
    with serve(seven, fault=lambda number, body: error(500, "broken")) as server:
        kinds = [type(one) for one in talk(server.url, 20)]
    assert kinds[: MAX_FAILURES_AT_START - 1] == [EndpointError] * (MAX_FAILURES_AT_START - 1)
    assert kinds[MAX_FAILURES_AT_START - 1] is UserError


def test_pitfall_26_failures_between_answers_are_not_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlvr.engines.openai.MAX_FAILURES", 3)
    with serve(seven, fault=lambda number, body: error(500, "broken") if number % 3 else None) as server:
        found = talk(server.url, 9)
    assert [isinstance(one, ChatAnswer) for one in found] == [True, False, False] * 3
    assert not any(isinstance(one, UserError) for one in found)


def test_pitfall_26_an_endpoint_that_has_answered_may_be_away_for_longer() -> None:
    num = MAX_FAILURES_AT_START + 1
    with serve(seven, fault=lambda number, body: error(500, "broken") if number else None) as server:
        kinds = [type(one) for one in talk(server.url, 1 + num)]
    assert kinds == [ChatAnswer] + [EndpointError] * num


def test_an_endpoint_is_checked_before_the_first_request() -> None:
    with serve(seven, models=("policy", "other")) as server:
        assert open_endpoint(f"openai:{server.url}/#policy").url == server.url
    with serve(seven, models=error(404, "no such page")) as server:  # some have no list
        open_endpoint(f"openai:{server.url}#anything")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("models", "sentence"),
    [
        (("a", "b"), "has no model 'policy': there are a, b"),
        (error(500, "broken"), "does not answer (500: broken)"),
        (error(401, "who are you"), "refuses the key (401: who are you): set OPENAI_API_KEY"),
        (Fault(body=b"<html>"), "is no endpoint of OpenAI's kind"),
        (Fault(body=b'{"data": [3]}'), "is no endpoint of OpenAI's kind"),
    ],
)
def test_an_unsuitable_endpoint_is_refused_at_once(models: Any, sentence: str) -> None:
    with serve(seven, models=models) as server, pytest.raises(UserError) as caught:
        open_endpoint(f"openai:{server.url}#policy")
    assert sentence in str(caught.value)


@pytest.mark.parametrize("name", ["", "policy", "http://x/v1", "ftp://x/v1#p", "#p", "http://x:99999#p", "http://[x#p"])
def test_a_malformed_address_says_the_right_form(name: str) -> None:
    with pytest.raises(ConfigError, match="an endpoint is written openai:ADDRESS#MODEL"):
        open_endpoint(f"openai:{name}")


def test_a_password_in_an_address_is_refused_and_not_shown() -> None:
    with pytest.raises(UserError, match="set OPENAI_API_KEY instead") as caught:
        open_endpoint("openai:http://me:secret@127.0.0.1/v1#p")
    assert "secret" not in str(caught.value)
