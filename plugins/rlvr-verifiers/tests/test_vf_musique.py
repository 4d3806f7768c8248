"""`environments/vf_musique` gives the scores of our own training to the last digit, for every shape of a message."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from typing import Any

import pytest

from musique_scripts import KINDS, PLUGIN, REWARDS, SETS, answers, scripts
from rlvr.core.env import Env
from rlvr.errors import ConfigError
from rlvr.types import Example, Message, Score, StopReason
from rlvr_verifiers.legacy import Scorer, VerifiersEnv, to_response
from scripted import Codec, call, episode


@pytest.fixture(autouse=True)
def _environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PLUGIN / "environments" / "vf_musique"))


def load(**arguments: Any) -> Any:
    import vf_musique

    return vf_musique.load_environment(**(SETS | {"retriever": "bm25"} | arguments))


class Client:
    """Says what is scripted, as an OpenAI-compatible server would: arguments are JSON texts."""

    def __new__(cls, script: Sequence[Any]) -> Any:
        from verifiers.clients import Client as Base

        codec, waiting = Codec(), list(script)

        class Scripted(Base):
            async def get_response(self, prompt: Any, *_: Any, **__: Any) -> Any:
                said = waiting.pop(0)
                if isinstance(said, tuple):
                    return to_response(Message(role="assistant", content=said[0]), truncated=True)
                return to_response(codec.parse([codec.id_of(said)], StopReason.STOP))

        for name in Base.__abstractmethods__:
            setattr(Scripted, name, None)
        Scripted.__abstractmethods__ = frozenset()
        return Scripted(None)


def row_of(env: Any, example: Example) -> dict[str, Any]:
    rows = [row for row in env.get_eval_dataset() if row["info"]["id"] == example.id]
    return dict(rows[0])


def by_the_library(env: Any, example: Example, script: Sequence[Any]) -> Any:
    async def run() -> Any:
        state = await env.rollout(row_of(env, example), Client(script), "model", {})
        await env.rubric.score_rollout(state)
        return state

    return asyncio.run(run())


def by_us(env: Env, example: Example, script: Sequence[Any]) -> Score:
    return asyncio.run(episode(example, env, *script)).score


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"retriver": "bm25"}, r"there is no key task\.retriver; did you mean task\.retriever\?"),
        ({"retriever": "bm26"}, r"task\.retriever=bm26: there is no such retriever; did you mean bm25\?"),
        ({"settings": ["task.hop=3"]}, r"there is no key task\.hop; did you mean task\.hops\?"),
    ],
)
def test_a_wrong_argument_ends_vf_eval_with_one_sentence(
    arguments: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load(**arguments)
    monkeypatch.setattr("sys.argv", ["/usr/bin/vf-eval"])
    with pytest.raises(SystemExit, match=f"^vf-eval: error: .*{sentence}"):
        load(**arguments)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reward", REWARDS)
def test_rewards_agree_to_the_last_digit(reward: str, kind: str) -> None:
    env = load(reward=reward)
    for example in env.game.held_out():
        script = scripts(example)[kind]
        ours = by_us(env.game.task.env(example), example, script)
        state = by_the_library(env, example, script)
        assert state["error"] is None
        assert (state["reward"], ours.status) == (ours.value, state["rlvr_score"].status)
        assert ours.parts
        assert {name: state["metrics"][name] for name in ours.parts} == ours.parts
        assert dict(state["rlvr_score"].diagnostics) == ours.diagnostics
        for name in ("answer_em", "tool_errors"):
            assert state["metrics"][name] == ours.diagnostics[name]


@pytest.mark.parametrize("kind", KINDS)
def test_our_training_in_its_environment_agrees_too(kind: str) -> None:
    env = load()
    example = env.game.held_out(1)[0]
    script = scripts(example)[kind]
    inside = VerifiersEnv(example, row_of(env, example), env, scorer=Scorer(env, 1))
    ours, found = by_us(env.game.task.env(example), example, script), by_us(inside, example, script)
    assert found.value == ours.value
    assert {name: found.parts[name] for name in ours.parts} == ours.parts


def test_every_shape_of_a_message_is_read() -> None:
    import vf_musique_environment
    from openai.types.chat import ChatCompletionMessage
    from verifiers.types import AssistantMessage, ToolCall

    arguments = {"query": "Aldby", "top_n": 2}
    function = {"name": "retrieve_documents", "arguments": json.dumps(arguments)}
    of_openai = {"id": "a", "type": "function", "function": function}
    empty = {"role": "assistant", "content": None}
    for shape in (
        AssistantMessage(content=None, tool_calls=[ToolCall(id="a", **function)]),
        empty | {"tool_calls": [{"id": "a", **function}]},
        empty | {"content": "", "tool_calls": [{"id": "a", **function, "arguments": arguments}]},
        empty | {"content": "", "tool_calls": [of_openai]},
        empty | {"content": [], "tool_calls": [ToolCall(id="a", **function)]},
        ChatCompletionMessage.model_validate(empty | {"tool_calls": [of_openai]}),
    ):
        message = vf_musique_environment.said([shape])
        assert message.content == ""
        (one,) = message.tool_calls
        assert (one.id, one.name, one.arguments, one.problem) == ("a", "retrieve_documents", arguments, None)


def test_arguments_choose_data_tools_and_retriever() -> None:
    env = load(num_train_examples=4, num_eval_examples=2, noise_rate=0.0, max_turns=3, settings=["task.hops=[2]"])
    assert (len(env.get_dataset()), len(env.get_eval_dataset()), env.max_turns) == (4, 2, 3)
    assert [tool.name for tool in env.tool_defs] == ["retrieve_documents", "get_document", "list_documents", "complete"]
    assert all(len(example.metadata["documents"]) == 2 for example in env.game.training(4))
    assert all(len(example.metadata["documents"]) == 8 for example in env.game.held_out())
    assert env.get_dataset()[0]["prompt"][-1]["role"] == "user"
    orders = [[row["info"]["id"] for row in load(seed=seed).get_dataset()] for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]


def test_pitfall_07_rollouts_do_not_share_documents() -> None:
    env = load(retriever="golden")
    examples = env.game.held_out()
    scripted = [(call(("retrieve_documents", {"query": "x", "top_n": 5})), answers(example)) for example in examples]

    async def run() -> list[Any]:
        rollouts = [
            env.rollout(row_of(env, example), Client(script), "model", {})
            for example, script in zip(examples * 25, scripted * 25, strict=True)
        ]
        return await asyncio.gather(*rollouts)

    states = asyncio.run(run())
    assert len({id(state["rlvr_episode"]) for state in states}) == 100
    for state, example in zip(states, examples * 25, strict=True):
        assert state["rlvr_score"].parts["em"] == 1.0
        shown = state["trajectory"][1]["prompt"][-1]["content"]
        assert [document.title in shown for document in example.metadata["documents"]].count(True) >= 2


def test_an_unscorable_episode_is_an_error_and_not_a_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    env = load()
    example = env.game.held_out(1)[0]

    async def broken(attempt: Any) -> Any:
        raise ConnectionError("gone")

    monkeypatch.setattr(env.game.task.verifier, "verify", broken)
    state = by_the_library(env, example, scripts(example)["right"])
    assert "ConnectionError: gone" in str(state["error"])
    assert math.isnan(state["reward"])
