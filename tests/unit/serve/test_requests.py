"""What a request may say, at each bound and just beyond it, without a model."""

import json
from typing import Any

import pytest

from rlvr.serve.endpoint import BUCKETS_S, Metrics
from rlvr.serve.requests import MAX_DEPTH, to_messages, to_tools
from rlvr.serve.schemas import ApiError, ChatRequest, CompletionRequest, invalid, parse

PROMPT: dict[str, Any] = {"prompt": "x"}


def read(more: dict[str, Any], kind: Any = CompletionRequest) -> Any:
    base = PROMPT if kind is CompletionRequest else {"messages": [{"role": "user", "content": "x"}]}
    return parse(kind, json.dumps(base | more).encode())


def refused(more: dict[str, Any], kind: Any = CompletionRequest) -> ApiError:
    with pytest.raises(ApiError) as error:
        read(more, kind)
    assert error.value.status == 400
    return error.value


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("n", (1, 128), (0, 129, 1.5, "1")),
        ("seed", (-(2**63), 2**64 - 1), (-(2**63) - 1, 2**64)),
        ("max_tokens", (0, 10**9), (-1,)),
        ("temperature", (0, 2, 0.5), (-0.1, 2.1)),
        ("top_p", (1, 0.01), (0, 1.1)),
        ("top_k", (-1, 0, 2**31 - 1), (-2, 2**31)),
        ("min_p", (0, 1), (-0.1, 1.1)),
        ("stop", ("x", ["x"] * 16, []), (["x"] * 17, 3)),
        ("stop_token_ids", ([0] * 128, []), ([0] * 129, [-1], [2**31])),
        ("logprobs", (0, 20), (-1, 21)),
        ("prompt", (["x"] * 1024, [[1]] * 1024, [1, 2], ""), (["x"] * 1025, [[1]] * 1025, [-1], 3)),
        ("stream", (True, False, None), (1, "true")),
    ],
)
def test_a_number_is_taken_up_to_its_bound(name: str, good: tuple[Any, ...], bad: tuple[Any, ...]) -> None:
    for value in good:
        assert getattr(read({name: value}), name) == value
    for value in bad:
        assert (refused({name: value}).field or "").startswith(name), value


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("top_logprobs", (0, 20), (-1, 21)),
        ("messages", ([{"role": "user", "content": "x"}] * 4096,), ([], [{"role": "user", "content": "x"}] * 4097)),
        (
            "tools",
            ([{"type": "function", "function": {"name": "f" * 256}}] * 128,),
            ([{"type": "function", "function": {"name": "f"}}] * 129, [{"type": "function", "function": {"name": ""}}]),
        ),
    ],
)
def test_a_chat_is_taken_up_to_its_bounds(name: str, good: tuple[Any, ...], bad: tuple[Any, ...]) -> None:
    for value in good:
        read({name: value}, ChatRequest)
    for value in bad:
        assert (refused({name: value}, ChatRequest).field or "").startswith(name)


@pytest.mark.parametrize(
    ("name", "neutral", "others"),
    [
        *((name, 0, (1, False, 0.5)) for name in ("presence_penalty", "frequency_penalty", "min_tokens")),
        *((name, 1, (0, True, 1.5)) for name in ("repetition_penalty", "length_penalty")),
        *((name, False, (True, 0)) for name in ("include_stop_str_in_output", "use_beam_search", "background")),
        *((name, False, (True, 0)) for name in ("return_tokens_as_token_ids", "continue_final_message")),
        *((name, True, (False, 1)) for name in ("add_generation_prompt", "add_special_tokens")),
        ("logit_bias", {}, ({"5": 1},)),
        ("suffix", "", ("x",)),
        ("modalities", ["text"], (["audio"], [])),
        ("functions", [], ([{}],)),
        ("function_call", "auto", ("x",)),
        ("function_call", "none", ({"name": "f"},)),
        ("truncation", "disabled", ("auto",)),
        ("conversation", None, ("x", {}, 0)),
    ],
)
def test_a_field_without_support_may_say_that_it_changes_nothing(
    name: str, neutral: Any, others: tuple[Any, ...]
) -> None:
    for value in (neutral, None):
        read({name: value})
    for value in others:
        error = refused({name: value})
        assert error.field == name
        assert error.message.startswith(f"{name}: this server does not support it; leave it out (got ")


def test_an_unknown_field_is_told_its_neighbor() -> None:
    error = refused({"temprature": 1})
    assert (error.field, error.message) == (
        "temprature",
        "'temprature' is no field that this server knows; did you mean temperature?",
    )
    assert refused({"x" * 300: 1}).field == "x" * 80
    assert refused({"zzz": 1}).message.endswith("knows; leave it out.")
    for name in ("user", "metadata", "reasoning_effort"):
        read({name: "anything"})


def test_the_deepest_problem_of_a_body_is_told() -> None:
    part = {"type": "image_url", "image_url": {"url": "x"}}
    error = refused({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, part]}]}, ChatRequest)
    assert error.field == "messages[0].content[1].type"
    assert "the model reads text only" in error.message
    assert refused({"messages": [{"content": "x"}]}, ChatRequest).message == "messages[0].role: it is missing."
    with pytest.raises(ApiError, match="the body is no JSON object"):
        parse(CompletionRequest, b"[1]")
    with pytest.raises(ApiError, match="prompt: it is missing"):
        parse(CompletionRequest, b"{}")


@pytest.mark.parametrize(
    ("given", "prompts"),
    [("x", ["x"]), ("", [""]), ([1, 2], [[1, 2]]), (["x", "y"], ["x", "y"]), ([[1], [2]], [[1], [2]]), ([0], [[0]])],
)
def test_a_prompt_is_one_or_several(given: Any, prompts: list[Any]) -> None:
    assert read({"prompt": given}).prompts() == prompts


def test_no_prompt_is_an_error() -> None:
    with pytest.raises(ApiError, match="prompt: there is none"):
        read({"prompt": []}).prompts()


@pytest.mark.parametrize(
    ("stop", "stops"), [(None, ()), ("", ()), ("x", ("x",)), (["x", "", "y"], ("x", "y")), ([], ())]
)
def test_empty_stop_texts_are_none(stop: Any, stops: tuple[str, ...]) -> None:
    assert read({"stop": stop}).stops == stops


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((400, "invalid_request_error"), (401, "authentication_error"), (404, "not_found_error")),
        *((429, "overloaded_error"), (499, "invalid_request_error"), (500, "server_error"), (503, "server_error")),
    ],
)
def test_a_status_has_its_kind(status: int, kind: str) -> None:
    assert ApiError(status, "said").body() == {"error": {"message": "said", "type": kind, "param": None, "code": None}}
    assert invalid("n", "no", code="c").body()["error"] == {
        **{"message": "n: no", "type": "invalid_request_error", "param": "n", "code": "c"}
    }


def chat(*messages: dict[str, Any]) -> Any:
    return to_messages(read({"messages": list(messages)}, ChatRequest).messages)


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_the_reasoning_of_a_message_is_read(name: str) -> None:
    found = chat({"role": "user", "content": "x", name: ""}, {"role": "assistant", "content": "y", name: "because"})
    assert [(one.reasoning, one.unread) for one in found] == [(None, {}), ("because", {})]


def test_fields_of_a_message_that_we_do_not_read_are_kept_for_the_template_to_tell() -> None:
    asked, told = chat(
        {"role": "assistant", "content": "y", "tool_plan": "x", "refusal": None, "annotations": []},
        {"role": "tool", "tool_call_id": "c1", "content": "z", "is_error": True},
    )
    assert (asked.unread, told.unread) == ({"tool_plan": "x", "annotations": []}, {"is_error": True})


def called(arguments: str = "{}", id_: str = "c1", name: str = "look") -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_a_conversation_is_read_with_the_names_of_its_tools() -> None:
    found = chat(
        {"role": "developer", "content": "d"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "tool_calls": [called('{"x": 1}'), called("", "c2", "list")]},
        {"role": "tool", "content": "1", "tool_call_id": "c1"},
        {"role": "tool", "tool_call_id": "c2"},
        {"role": "tool", "content": "3", "tool_call_id": "c1", "name": "own"},
        {"role": "tool", "content": "4", "tool_call_id": "unknown"},
    )
    assert [(one.role, one.content, one.name, one.call_id) for one in found] == [
        *(("system", "d", None, None), ("user", "ab", None, None), ("assistant", "", None, None)),
        *(("tool", "1", "look", "c1"), ("tool", "", "list", "c2"), ("tool", "3", "own", "c1")),
        ("tool", "4", None, "unknown"),
    ]
    assert [(call.id, call.name, call.arguments) for call in found[2].tool_calls] == [
        *(("c1", "look", {"x": 1}), ("c2", "list", {})),
    ]


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"role": "user", "content": "x", "tool_calls": [called()]}, "messages[0].tool_calls: only an assistant calls"),
        ({"role": "tool", "content": "x"}, "messages[0].tool_call_id: it is missing"),
        ({"role": "user"}, "messages[0].content: it is missing."),
        ({"role": "system"}, "messages[0].content: it is missing."),
        (
            {"role": "assistant", "tool_calls": [called("[1]")]},
            "messages[0].tool_calls[0].function.arguments: they must be",
        ),
        (
            {"role": "assistant", "tool_calls": [called(), called("{")]},
            "messages[0].tool_calls[1].function.arguments: they",
        ),
    ],
)
def test_a_message_that_means_nothing_is_refused(message: dict[str, Any], said: str) -> None:
    with pytest.raises(ApiError) as error:
        chat(message)
    assert error.value.message.startswith(said)


def tool(parameters: Any) -> Any:
    function = {"name": "f"} | ({} if parameters is None else {"parameters": parameters})
    return to_tools(read({"tools": [{"type": "function", "function": function}]}, ChatRequest).tools)


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth - 1):
        schema = {"anyOf": [schema]}
    return {"properties": {"x": schema}}


@pytest.mark.parametrize(
    "parameters",
    [
        *({"properties": {"x": schema}} for schema in ({}, {"type": "string"}, {"type": ["string", "null"]})),
        *({"properties": {"x": {"oneOf": [{"type": "integer"}]}}}, {"properties": {}}, {}, nested(MAX_DEPTH)),
    ],
)
def test_a_schema_of_names_and_alternatives_is_read(parameters: dict[str, Any]) -> None:
    (found,) = tool(parameters)
    assert found["function"] == {"name": "f", "description": "", "parameters": parameters}


def test_a_tool_without_parameters_has_none() -> None:
    assert tool(None)[0]["function"]["parameters"] == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    "schema",
    [
        *("string", {"type": 3}, {"type": ["string", 3]}, {"anyOf": {}}, {"oneOf": [3]}, {"anyOf": [{"type": 3}]}),
        {"anyOf": [{"type": "string"}, {"oneOf": "x"}]},
        nested(MAX_DEPTH + 1)["properties"]["x"],
    ],
)
def test_a_schema_that_no_call_could_follow_is_refused(schema: Any) -> None:
    with pytest.raises(ApiError) as error:
        tool({"properties": {"ok": {}, "x" * 90: schema}})
    assert error.value.field == f"tools[0].function.parameters.properties.{'x' * 80}"


def test_properties_are_an_object() -> None:
    with pytest.raises(ApiError, match="they must be a JSON object"):
        tool({"properties": []})


def test_seconds_are_counted_up_to_each_bound() -> None:
    """A request of exactly half a second is in its bucket."""
    metrics = Metrics()
    for seconds in (0.5, 0.51, 400.0, 0.001):
        metrics.took(seconds)
    metrics.answers["/v1/models", 200] += 2
    metrics.given_up, metrics.prompt_tokens, metrics.completion_tokens = 1, 20, 30
    lines = metrics.text(running=3, waiting=4).splitlines()
    counts = [1, 1, 1, 1, 2, 3, 3, 3, 3, 3, 3, 3]
    for bound, count in zip(BUCKETS_S, counts, strict=True):
        assert f'rlvr_request_seconds_bucket{{le="{bound}"}} {count}' in lines
    assert BUCKETS_S == (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
    for line in (
        *(
            'rlvr_request_seconds_bucket{le="+Inf"} 4',
            "rlvr_request_seconds_sum 401.011",
            "rlvr_request_seconds_count 4",
        ),
        *('rlvr_requests_total{endpoint="/v1/models",status="200"} 2', "rlvr_requests_given_up_total 1"),
        *("rlvr_prompt_tokens_total 20", "rlvr_completion_tokens_total 30"),
        *("rlvr_completions_running 3", "rlvr_completions_waiting 4", "# TYPE rlvr_request_seconds histogram"),
    ):
        assert line in lines
    fresh = Metrics().text(running=0, waiting=0).splitlines()
    assert not [line for line in fresh if not line.startswith("#") and not line.endswith((" 0", " 0.0"))]
