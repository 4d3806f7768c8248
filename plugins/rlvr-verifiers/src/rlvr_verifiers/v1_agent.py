"""One episode of a v1 task by the library's own loop, with an agent that lives in this process.

The library's contract for an agent ("harness") is that each of its model calls goes through the interception server,
which checks stops, applies interceptors and records the trace. Ours does, without a socket: `launch` hands its request
to the server's handler, and the server's client is the queue of our episode.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from pydantic_core import from_json
from verifiers.v1.agent import Agents, _EpisodeAgent
from verifiers.v1.clients import Client, EvalClientConfig, ModelContext
from verifiers.v1.clients.train import serialize_completion
from verifiers.v1.configs.agent import AgentConfig
from verifiers.v1.configs.harness import HarnessConfig
from verifiers.v1.dialects import ChatDialect
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.env import Env
from verifiers.v1.episode import Episode
from verifiers.v1.errors import ProviderError, ToolsetError, boundary
from verifiers.v1.harness import Harness
from verifiers.v1.harnesses.utils.compaction import bound_tool_message
from verifiers.v1.interception import InterceptionServer
from verifiers.v1.runtimes import ProgramResult, SubprocessConfig
from verifiers.v1.task import Task, TaskData
from verifiers.v1.trace import Trace
from verifiers.v1.types import AssistantMessage, Response, ToolCall

from rlvr.errors import UserError
from rlvr.types import Message
from rlvr_verifiers.env import Requests
from rlvr_verifiers.v1_tools import TRACE, Tools, open_tools

AnyTask: TypeAlias = Task[Any, Any, Any]

POLICY = "policy"
ROUTE = "/v1/chat/completions"
REFUSED = "rlvr has ended the episode: its prompt is too long"
CLIENT = EvalClientConfig(base_url="http://rlvr", api_key_var="")  # it is never asked: `QueueClient` answers
AGENT = AgentConfig(model=POLICY, client=CLIENT, harness=HarnessConfig(id="null"), runtime=SubprocessConfig())
CONTEXT = ModelContext(model=POLICY, client=CLIENT)


@dataclass(frozen=True, kw_only=True)
class Played:
    """A finished episode of the library, scored, and how many calls of tools failed."""

    episode: Episode
    num_tool_errors: int


async def play(task: AnyTask, env: Env[Any], shared: Sequence[Any], requests: Requests) -> Played:
    """Play and score one episode of the task. UserError if a tool raises one.

    `shared` are the toolsets of the taskset.
    """
    interception = QueueServer(requests)
    harness = InProcess(interception, shared)
    ours = copy.copy(env)
    ours._episode_agents = lambda ctx, completed, on_trace, on_discard: Agents(  # type: ignore[method-assign]
        env.config, lambda name, spec: Seat(harness, interception, name, completed, on_trace, on_discard)
    )
    episode = await ours.run_episode(task, CONTEXT, on_trace=TRACE.set)  # of this task alone
    if harness.user_error is not None:
        raise harness.user_error
    return Played(episode=episode, num_tool_errors=harness.tools.num_errors)


class Seat(_EpisodeAgent):
    """The agent of an episode, with our program."""

    def __init__(
        self, harness: InProcess, interception: QueueServer, name: str, completed: Any, on_trace: Any, on_discard: Any
    ) -> None:
        super().__init__(
            AGENT,
            interception=interception,
            name=name,
            shared_tools={},
            task_cls=Task,
            gate=None,
            completed=completed,
            on_trace=on_trace,
            on_discard=on_discard,
            warned_resources=set(),
        )
        self.harness = harness

    async def run(self, task: AnyTask, **more: Any) -> Trace:
        self.harness.task = task
        return await super().run(_bare(task), **more)

    @asynccontextmanager
    async def interaction(self, task: AnyTask, **more: Any) -> AsyncIterator[Any]:
        self.harness.task = task
        async with super().interaction(_bare(task), **more) as interaction:
            yield interaction


def _bare(task: AnyTask) -> AnyTask:
    """The task without its toolsets, which our agent opens."""
    bare = copy.copy(task)
    bare.toolsets = lambda config: []  # type: ignore[method-assign]
    return bare


class InProcess(Harness[HarnessConfig]):
    """Asks, calls the tools that are asked for, and asks again, until an answer calls none; as the harness `null`."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    def __init__(self, interception: QueueServer, shared: Sequence[Any]) -> None:
        super().__init__(HarnessConfig(id="rlvr"))
        self.task: AnyTask | None = None
        self.tools = Tools()
        self.user_error: UserError | None = None
        self._interception, self._shared = interception, shared
        self._stack: AsyncExitStack | None = None  # the tools, once they are open

    async def launch(  # type: ignore[override]
        self, ctx: Any, trace: Trace, runtime: Any, endpoint: str, secret: str, mcp_urls: Any, data: TaskData
    ) -> ProgramResult:
        """Also for each turn of a user, with the conversation as its prompt."""
        if self._stack is None:
            assert self.task is not None
            self._stack = AsyncExitStack()
            async with boundary(ToolsetError, "opening the tools"):
                await open_tools(self.tools, self._shared, self.task, self._stack)
        messages = first_messages(*self.resolve_prompt(data))
        while True:
            status, answer = await self._interception.post(secret, messages, self.tools.schemas)
            if status != 200:
                said = str(answer.get("error"))
                if REFUSED in said:
                    trace.stop("max_total_tokens")
                return ProgramResult(exit_code=0 if REFUSED in said else 1, stdout="", stderr=said)
            message = answer["choices"][0]["message"]
            messages.append(message)
            if not message.get("tool_calls"):
                return ProgramResult(exit_code=0, stdout="", stderr="")
            for call in message["tool_calls"]:
                content = await self._called(call["function"])
                found = {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"]}
                messages.append(bound_tool_message(found | {"content": content}))

    async def cleanup(self, trace: Trace, runtime: Any) -> None:
        if self._stack is not None:
            await self._stack.aclose()

    async def _called(self, function: dict[str, str]) -> Any:
        try:
            arguments = json.loads(function["arguments"])
        except ValueError as error:
            self.tools.num_errors += 1
            return f"error: invalid JSON in tool arguments ({error}); resend the call with valid JSON"
        try:
            return await self.tools.call(function["name"], arguments)
        except UserError as error:
            self.user_error = error
            raise


class QueueServer(InterceptionServer):
    """The library's interception server of one rollout, without a socket, in front of our episode's queue."""

    def __init__(self, requests: Requests) -> None:
        super().__init__()
        self._policy = QueueClient(requests)
        self._handle = self._handler_for(ChatDialect())

    async def start(self) -> None:
        """Nothing to open."""

    def _client(self, config: Any) -> Client:
        return self._policy

    async def post(self, secret: str, messages: list[Any], tools: list[Any]) -> tuple[int, dict[str, Any]]:
        """Status and body of the answer to a chat request."""
        body = {"model": POLICY, "messages": messages} | ({"tools": tools} if tools else {})
        request = LocalRequest(json.dumps(body).encode(), {"Authorization": f"Bearer {secret}"})
        # a task of its own: the server cancels those that serve a rollout when it is over
        response: Any = await asyncio.create_task(self._handle(request))  # type: ignore[arg-type]
        return response.status, from_json(response.body)


class LocalRequest(dict[Any, Any]):
    """What the server reads of an HTTP request."""

    def __init__(self, body: bytes, headers: dict[str, str]) -> None:
        super().__init__()
        self.path, self.headers, self._read_bytes = ROUTE, headers, body

    async def read(self) -> bytes:
        return self._read_bytes


class QueueClient(Client):
    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def get_response(
        self,
        dialect: Any,
        body: dict[str, Any],
        sampling: Any,
        session_id: Any = None,
        turn: Any = None,
        headers: Any = None,
    ) -> Response:
        return await self._requests.ask(body["messages"], body.get("tools") or ())


def first_messages(system: str | None, prompt: Any) -> list[dict[str, Any]]:
    """The first prompt as a chat request has it."""
    messages = [{"role": "system", "content": system}] if system else []
    if isinstance(prompt, str):
        return [*messages, {"role": "user", "content": prompt}]
    return [*messages, *(message_to_wire(message) for message in prompt or ())]


def to_response(said: Message, *, truncated: bool = False) -> Response:
    """An assistant's message as the library's response. The arguments of a malformed call are no JSON: its problem."""
    calls = [
        ToolCall(id=call.id, name=call.name, arguments=call.problem or json.dumps(dict(call.arguments)))
        for call in said.tool_calls
    ]
    response = Response(
        id="",
        created=0,
        model=POLICY,
        message=AssistantMessage(content=said.content, tool_calls=calls or None),
        finish_reason="length" if truncated else "tool_calls" if calls else "stop",
    )
    response.raw = serialize_completion(response, POLICY)
    return response


def refusal() -> Exception:
    return ProviderError(REFUSED, status_code=400)
