"""The official client against `rlvr serve`."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.system.served import served
from tests.unit.serve.chain import SPOKEN, save_chain

pytestmark = pytest.mark.openai
HELLO: Any = [{"role": "user", "content": "Hello"}]
LOOK: Any = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}, "deep": {"type": "boolean"}}},
    },
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = save_chain(tmp_path_factory.mktemp("chain"))
    options = ["--served-model-name", "m", "--api-key", "k"]
    with served(str(folder), options) as server:
        yield server.url


@pytest.fixture
def client(url: str) -> Iterator[Any]:
    import openai

    with openai.OpenAI(base_url=url, api_key="k", max_retries=0, timeout=60) as made:
        yield made


def test_models(client: Any) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.owned_by) == ("m", "rlvr")
    assert client.models.retrieve("m").id == "m"


def test_completions(client: Any) -> None:
    made = client.completions.create(model="m", prompt="<", max_tokens=20, logprobs=1, seed=1, n=2)
    assert [choice.text for choice in made.choices] == [SPOKEN] * 2
    assert made.choices[0].logprobs.tokens[:3] == ["a", "b", "c"]
    assert made.usage.completion_tokens == 2 * (4 + 2 + 3 + 1)
    parts = list(client.completions.create(model="m", prompt="<", max_tokens=20, stop="d", stream=True))
    assert "".join(part.choices[0].text for part in parts) == SPOKEN[:-1]
    assert parts[-1].choices[0].finish_reason == "stop"


def test_a_chat_with_logprobs(client: Any) -> None:
    ids = {"return_token_ids": True}
    said = client.chat.completions.create(
        model="m", messages=HELLO, max_completion_tokens=5, logprobs=True, top_logprobs=2, extra_body=ids
    ).choices[0]
    assert said.finish_reason == "stop"
    assert said.message.role == "assistant"
    assert len(said.logprobs.content) == len(said.token_ids) == 2
    assert said.logprobs.content[0].top_logprobs[0].token == said.logprobs.content[0].token == said.message.content


def test_a_conversation_with_a_tool(client: Any) -> None:
    said = client.chat.completions.create(model="m", messages=HELLO, tools=[LOOK], max_tokens=5).choices[0]
    assert said.finish_reason == "tool_calls"
    (call,) = said.message.tool_calls
    assert json.loads(call.function.arguments) == {"place": "caf\u00e9", "deep": True}
    answer = {"role": "tool", "tool_call_id": call.id, "content": "A chair."}
    again = client.chat.completions.create(
        model="m", messages=[*HELLO, said.message, answer], tools=[LOOK], max_tokens=5, stream=True
    )
    deltas = [part.choices[0].delta for part in again if part.choices]
    (streamed,) = [call for delta in deltas for call in delta.tool_calls or ()]
    assert (streamed.function.name, streamed.id != call.id) == ("look", True)


def test_a_streamed_chat_with_its_usage(client: Any) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    parts = list(client.chat.completions.create(model="m", messages=HELLO, max_tokens=5, **options))
    assert parts[0].choices[0].delta.role == "assistant"
    assert "".join(part.choices[0].delta.content or "" for part in parts[:-1]).startswith("<tool_call>")
    assert parts[-1].usage.completion_tokens == 2


def test_errors_are_the_clients_own(client: Any, url: str) -> None:
    import openai

    with pytest.raises(openai.NotFoundError, match=r"'n' is not served here; did you mean m\?|there is m"):
        client.chat.completions.create(model="n", messages=HELLO)
    with pytest.raises(openai.BadRequestError, match="presence_penalty: this server does not support it"):
        client.chat.completions.create(model="m", messages=HELLO, presence_penalty=1.0)
    with (
        openai.OpenAI(base_url=url, api_key="other", max_retries=0) as other,
        pytest.raises(openai.AuthenticationError, match="the API key is wrong"),
    ):
        other.models.list()
