import asyncio
import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rlvr.config.compose import load_task_config
from rlvr.core.env import Reply, TurnText
from rlvr.engines.openai import Endpoint
from rlvr.errors import UserError
from rlvr.evaluation.endpoint import EndpointPlayer
from rlvr.evaluation.evaluate import conclude, examples_of, play_set
from rlvr.evaluation.players import Played
from rlvr.evaluation.summary import EvaluationResult
from rlvr.run.tasks import TaskOpener
from rlvr.tasks.base import Task
from rlvr.types import Example, Message, SamplingParams, Score, StopReason
from tests.system.openai_server import Fault, Misbehave, Model, error, never, serve
from tests.unit.evaluation.test_evaluate import make_task as make_rpn

pytestmark = pytest.mark.openai

MUSIQUE = Path(__file__).resolve().parents[2] / "fixtures" / "musique"


def run(
    task: Task, model: Model, *, fault: Misbehave = never, num_examples: int = 3, samples: int = 0
) -> tuple[EvaluationResult, list[dict[str, Any]]]:
    async def evaluation(url: str) -> EvaluationResult:
        endpoint = Endpoint(url, "policy", max_retries=0, max_concurrent=1)
        player = EndpointPlayer(endpoint=endpoint, stop_words=task.stop_words)
        try:
            sampling = SamplingParams(max_tokens=64, stop_ids=player.stop_ids, seed=0)
            examples = examples_of(task, num_examples)
            return conclude(task.name, await play_set(player, task, examples, sampling, range(samples + 1)))
        finally:
            await endpoint.close()

    with serve(model, fault=fault) as server:
        return asyncio.run(evaluation(server.url)), server.requests


def solver(task: Task) -> Model:
    answers = {example.messages[0].content: example.answer for example in task.eval_examples(10)}
    return lambda messages: {"content": answers[messages[-1]["content"]]}


def out_of_memory(*numbers: int) -> Misbehave:
    return lambda number, body: error(500, "out of memory") if number in numbers else None


@pytest.mark.slow
def test_pitfall_03_the_end_that_endpoints_leave_out_is_put_back() -> None:
    task = make_rpn()
    result, requests = run(task, solver(task), num_examples=4)
    assert result.metrics["eval/rpn/accuracy"] == 1.0
    assert result.metrics["eval/rpn/reward"] == 1.0
    assert {record.turns[0].completion.split()[-1] for record in result.records} == {"<eoe>"}
    assert all(request["stop"] == ["<eoe>"] and request["temperature"] == 0.0 for request in requests)
    assert [(record.num_prompt_tokens, record.num_completion_tokens) for record in result.records] == [(10, 5)] * 4


def test_an_endpoint_that_counts_no_tokens_is_said_to_have_read_none() -> None:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "1"}}
    said = {"id": "1", "object": "chat.completion", "created": 0, "model": "policy", "choices": [choice]}
    result, _ = run(
        make_rpn(), lambda messages: {}, fault=lambda number, body: Fault(status=200, body=json.dumps(said).encode())
    )
    assert [(record.num_prompt_tokens, record.num_completion_tokens) for record in result.records] == [(0, 0)] * 3


def test_pitfall_36_samples_are_drawn_with_seeds_of_their_own() -> None:
    _, requests = run(make_rpn(), lambda messages: {"content": "1"}, samples=2)
    assert sorted(request["temperature"] for request in requests) == [0.0] * 3 + [1.0] * 6
    assert len({request["seed"] for request in requests}) == 9


def musique() -> Task:
    data = [f"task.train_sets={MUSIQUE / 'train.jsonl'}", f"task.eval_sets={MUSIQUE / 'dev.jsonl'}"]
    config = load_task_config("musique", [*data, "task.retriever=golden"])
    return TaskOpener(config=config, family=None, functions={}, stack=ExitStack()).open(config, "musique", 0)


def searching(task: Task) -> Model:
    """Searches with the question, then completes with the answer and what was found."""
    examples = {example.messages[-1].content: example for example in task.eval_examples(10)}

    def model(messages: list[dict[str, Any]]) -> dict[str, Any]:
        example = next(examples[m["content"]] for m in messages if m["content"] in examples)
        if messages[-1]["role"] != "tool":
            return {"content": "I search.", "calls": [("retrieve_documents", {"query": "a query"})]}
        return {"calls": [("complete", {"final_answer": example.answer})]}

    return model


def test_pitfall_07_tools_are_called_and_their_replies_sent_back() -> None:
    task = musique()
    result, requests = run(task, searching(task))
    assert result.metrics["eval/musique/accuracy"] == 1.0
    [record, *_] = result.records
    assert [[call.name for call in turn.calls] for turn in record.turns] == [["retrieve_documents"], ["complete"]]
    assert record.turns[0].completion == "I search."
    assert record.turns[0].reply is not None
    assert record.turns[1].reply is None
    second = next(request for request in requests if request["messages"][-1]["role"] == "tool")
    said, told = second["messages"][-2:]
    assert said["tool_calls"][0]["id"] == told["tool_call_id"]
    assert told["content"] in {one.turns[0].reply for one in result.records}
    names = [tool["function"]["name"] for tool in second["tools"]]
    assert names == ["retrieve_documents", "get_document", "list_documents", "complete"]
    # 10 tokens a message here, 5 a completion: what a turn adds is counted once
    first, last = len(second["messages"]) - 2, len(second["messages"])
    assert record.num_prompt_tokens == 10 * first + (10 * last - 10 * first - 5)
    assert record.num_completion_tokens == 10


def test_a_malformed_call_is_told_to_the_model_and_counted() -> None:
    task = musique()
    model = searching(task)

    def clumsy(messages: list[dict[str, Any]]) -> dict[str, Any]:
        if messages[-1]["role"] != "tool":
            return {"calls": [("retrieve_documents", '{"query": ')]}
        return model(messages)

    result, requests = run(task, clumsy, num_examples=1)
    assert result.records[0].diagnostics["malformed_calls"] == 1.0
    assert "no JSON" in requests[1]["messages"][-1]["content"]
    assert result.metrics["eval/musique/accuracy"] == 1.0


class Rewriting:
    """Says `again` once, as the whole conversation from then on; a task whose completions end with `<eoe>`."""

    max_turns, tools = None, ()

    def __init__(self) -> None:
        self.said: list[Message] = []

    async def start(self) -> tuple[Message, ...]:
        return (Message(role="user", content="first"),)

    async def step(self, said: Message) -> Reply:
        self.said.append(said)
        return Reply(messages=(Message(role="user", content="again"),), done=len(self.said) > 1, restarts=True)

    async def score(self, turns: Sequence[TurnText]) -> Score:
        return Score(value=0.0)


def test_pitfall_07_a_restarted_conversation_is_sent_alone() -> None:
    async def play(url: str) -> Played:
        endpoint = Endpoint(url, "policy")
        player = EndpointPlayer(endpoint=endpoint, stop_words=("<eoe>",))
        sampling = SamplingParams(max_tokens=8, stop_ids=frozenset(), seed=0, temperature=0.0)
        example = Example(id="e", messages=(), answer="7", metadata={})
        try:
            return await player.play(example, Rewriting(), lambda turn: sampling, sample_index=0, seed=0)
        finally:
            await endpoint.close()

    def model(messages: list[dict[str, Any]]) -> dict[str, Any]:
        is_first = messages[-1]["content"] == "first"
        return {"content": "I look", "calls": [("look", {})]} if is_first else {"content": "7"}

    with serve(model) as server:
        played = asyncio.run(play(server.url))
    assert [[m["content"] for m in request["messages"]] for request in server.requests] == [["first"], ["again"]]
    # a completion that ends with a call did not end with the task's word
    assert [turn.completion for turn in played.turns] == ["I look", "7 <eoe>"]


def test_pitfall_26_a_failed_request_is_neither_right_nor_wrong() -> None:
    task = make_rpn()
    result, _ = run(task, solver(task), fault=out_of_memory(3, 7), num_examples=10)
    failed = [record for record in result.records if record.failure]
    assert [record.failure for record in failed] == ["the endpoint failed: 500: out of memory"] * 2
    assert {record.stop_reason for record in failed} == {StopReason.ABORTED}
    assert result.metrics["eval/rpn/num_examples"] == 8
    assert result.metrics["eval/rpn/accuracy"] == 1.0
    assert result.metrics["eval/rpn/error_share"] == 0.2

    with pytest.raises(UserError, match=r"3 of 10 episodes could not be played .*500: out of memory"):
        run(task, solver(task), fault=out_of_memory(3, 5, 7), num_examples=10)
