"""The verifiers 0.3.1 side of benchmarks/environments.py: in-process, with an instant model as client."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import verifiers as vf
from datasets import Dataset
from verifiers.clients import Client
from verifiers.types import (
    Response,
    ResponseMessage,
    ResponseTokens,
    ToolCall,
    Usage,
)

if TYPE_CHECKING:
    from environments import Question

PROMPT_TOKENS, COMPLETION_TOKENS = [7] * 300, [7] * 40
BOX = re.compile(r"\\boxed\{([^}]*)\}")


class InstantClient(Client):
    """Returns prepared messages: the calls of the first turns, then the answer."""

    def __init__(self, questions: Sequence[Question], *, with_tools: bool) -> None:
        self.logger, self._config, self._client = logging.getLogger("instant"), None, None
        self._questions = {question.text: question for question in questions}
        self._with_tools = with_tools
        tokens = ResponseTokens(
            prompt_ids=PROMPT_TOKENS,
            prompt_mask=[0] * len(PROMPT_TOKENS),
            completion_ids=COMPLETION_TOKENS,
            completion_mask=[1] * len(COMPLETION_TOKENS),
            completion_logprobs=[-0.1] * len(COMPLETION_TOKENS),
        )
        self._tokens = tokens
        size = {"prompt_tokens": len(PROMPT_TOKENS), "completion_tokens": len(COMPLETION_TOKENS)}
        self._usage = Usage(reasoning_tokens=0, total_tokens=sum(size.values()), **size)

    def setup_client(self, config: Any) -> None:
        """There is none."""

    async def to_native_tool(self, tool: Any) -> Any:
        return tool

    async def to_native_prompt(self, messages: Any) -> Any:
        return messages, {}

    async def get_native_response(
        self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **_: Any
    ) -> Any:
        """The question and the number of turns so far."""
        question = next(self._questions[message["content"]] for message in prompt if message["role"] == "user")
        return question, sum(message["role"] == "assistant" for message in prompt)

    async def raise_from_native_response(self, response: Any) -> None:
        """It is never wrong."""

    async def from_native_response(self, response: Any) -> Any:
        """The message of that turn."""
        question, turn = response
        content, calls = question.turns[-1], None
        if self._with_tools and turn < len(question.calls):
            name, arguments = question.calls[turn]
            content = "I need to find the architect first."
            calls = [ToolCall(id=f"call_{turn}", name=name, arguments=json.dumps(arguments))]
        message = ResponseMessage(
            content=content,
            tool_calls=calls,
            finish_reason="tool_calls" if calls else "stop",
            is_truncated=False,
            tokens=self._tokens,
        )
        return Response(id="0", created=0, model="policy", usage=self._usage, message=message)

    async def close(self) -> None:
        """Nothing to close."""


def reward(completion: Any, answer: str) -> float:
    """1 for the right number in the box."""
    found = BOX.search(completion[-1]["content"])
    return float(found is not None and found[1] == answer)


def rows(
    questions: Sequence[Question], find: Callable[..., str], system: str, group_size: int, max_turns: int
) -> list[tuple[bool, str, Callable[[int], Awaitable[None]]]]:
    """Tuples of: with tools or not, name of the API, function that plays that many groups."""
    documents = questions[0].documents  # a ToolEnv has no episode state: all episodes search these

    def search(query: str, top_n: int = 3) -> str:
        """Find documents about something.

        Args:
            query: Words to look for.
            top_n: How many documents to return.
        """
        return find(query, top_n, documents)

    def read(doc_id: str) -> str:
        """Read a document.

        Args:
            doc_id: The id that a search has shown.
        """
        return documents[doc_id]

    data = Dataset.from_list([{"question": question.text, "answer": question.answer} for question in questions])
    shared = {"dataset": data, "system_prompt": system}
    single = vf.SingleTurnEnv(rubric=vf.Rubric(funcs=[reward]), **shared)
    tools = vf.ToolEnv(rubric=vf.Rubric(funcs=[reward]), tools=[search, read], max_turns=max_turns, **shared)
    found = []
    for env, with_tools in ((single, False), (tools, True)):
        client = InstantClient(questions, with_tools=with_tools)
        inputs = [dict(row) for row in env.get_dataset()]
        for name, group in (("run_group", run_group), ("rollout + score_group", rollout_and_score)):
            found.append((with_tools, name, player(group, env, inputs, client, group_size)))
    return found


def player(group: Any, env: Any, inputs: list[dict[str, Any]], client: Client, size: int) -> Any:
    """Plays groups concurrently."""

    async def play(num_groups: int) -> None:
        chosen = [inputs[index % len(inputs)] for index in range(num_groups)]
        await asyncio.gather(*(group(env, [dict(row) for _ in range(size)], client) for row in chosen))

    return play


async def run_group(env: Any, inputs: list[dict[str, Any]], client: Client) -> None:
    """The documented API."""
    outputs = await env.run_group(inputs, client, "policy", {"max_tokens": 64}, state_columns=["trajectory"])
    assert all(output["reward"] == 1.0 and output["error"] is None for output in outputs)


async def rollout_and_score(env: Any, inputs: list[dict[str, Any]], client: Client) -> None:
    """`run_group` without writing the outputs."""
    states = await asyncio.gather(*(env.rollout(row, client, "policy", {"max_tokens": 64}) for row in inputs))
    await env.rubric.score_group(list(states))
    assert all(state["reward"] == 1.0 and state["error"] is None for state in states)
