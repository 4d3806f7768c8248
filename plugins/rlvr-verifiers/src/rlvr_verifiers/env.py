"""An episode that the verifiers library plays: its own loop runs as a task of the same event loop.

The loop asks a client for a completion. Our client queues the request and waits for the answer:

the library's loop (its own task)                      our episode
    asks its client (messages, tools)      ->  queue  ->   start() returns the messages
    waits                                                  the engine samples
    a response                             <-  future <-   step(completion)

So the engine's tokens are those that are trained on: the library gets text and calls, and returns messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlvr.core.env import Reply
from rlvr.errors import UserError
from rlvr.types import Example, Message, Score, StopReason, ToolCall, ToolSchema, TurnText

MAX_REFUSALS = 100
"""An environment that continues after this many refusals is abandoned."""

MAX_ERROR_CHARS = 500

ROLES: Mapping[str, Literal["system", "user"]] = {
    "developer": "system",
    "text": "user",
}  # text: a prompt that is one text

Scored = Callable[[Sequence[TurnText], Score], None]


class EpisodeError(Exception):
    """An episode cannot be scored: the environment failed, not the model."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """The library's request for a completion of these messages (its own objects); it waits for `answer`."""

    messages: Sequence[Any]
    tools: tuple[ToolSchema, ...]
    answer: asyncio.Future[Any]


class Requests(asyncio.Queue[Request | None]):
    """The requests of one episode; None: the library's loop has ended."""

    async def ask(self, messages: Sequence[Any], tools: Sequence[ToolSchema]) -> Any:
        """The response of our episode, as `LibraryEnv.response` makes it."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.put_nowait(Request(messages=messages, tools=tuple(tools), answer=answer))
        return await answer


class LibraryEnv(ABC):
    """One episode of the library.

    The library's loop writes the prompts and ends the episode. An unfinished completion is marked as truncated, and
    later requests are refused as overlong prompts: the loop then finishes by itself.
    """

    def __init__(self, example: Example, *, max_turns: int | None, scored: Scored | None) -> None:
        self.max_turns = max_turns
        self.tools: tuple[ToolSchema, ...] = ()
        self._example, self._scored = example, scored
        self._requests = Requests()
        self._loop: Any = None  # asyncio.Task, once it has started
        self._pending: Request | None = None
        self._num_said = 0

    @abstractmethod
    def play(self, requests: Requests) -> Coroutine[Any, Any, Any]:
        """The library's loop for this episode; its result is what `graded` gets. It holds no reference to `self`."""

    @abstractmethod
    def response(self, said: Message, *, truncated: bool) -> Any:
        """A completion as the library's response."""

    @abstractmethod
    def refusal(self) -> Exception:
        """What the library takes for a prompt that is too long."""

    @abstractmethod
    async def graded(self, result: Any, turns: Sequence[TurnText]) -> Score:
        """The score of an ended loop. EpisodeError if the environment failed."""

    async def failed(self) -> None:  # noqa: B027
        """The episode has no result: called before its score, an error."""

    async def start(self) -> tuple[Message, ...]:
        """The library's first prompt; the example's messages if its loop ends before. RuntimeError the second time."""
        if self._loop is not None:
            raise RuntimeError(f"the environment of example {self._example.id!r} is single-use and was started before")
        requests = self._requests
        self._loop = asyncio.create_task(self.play(requests))
        self._loop.add_done_callback(lambda task: requests.put_nowait(None))
        # an episode dropped without a score, by an exception elsewhere, must not leave a task behind
        weakref.finalize(self, self._loop.cancel).atexit = False
        await self._next_request()
        return self._example.messages if self._pending is None else to_messages(self._pending.messages)

    async def step(self, said: Message) -> Reply:
        """Pass the completion to the library; returns its next prompt, or that its loop has ended."""
        self._num_said += 1
        before = self._pending
        if before is None or not await self._answer(self.response(said, truncated=False)):
            return Reply(messages=(), done=not self.stopped_by_limit(said))
        assert self._pending is not None
        expected = [_identity(message) for message in (*to_messages(before.messages), said)]
        messages = to_messages(self._pending.messages)
        if [_identity(message) for message in messages[: len(expected)]] == expected:
            return Reply(messages=messages[len(expected) :], done=False)
        return Reply(messages=messages, done=False, restarts=True)

    async def score(self, turns: Sequence[TurnText]) -> Score:
        """The reward and the metrics of the environment.

        Errors of the environment and of its reward functions are status "error". RewardError for a reward that is no
        finite number, UserError if the environment or a reward raises one.
        """
        ended = False
        try:
            result = await self._finished(turns)
            ended = True
            score = await self.graded(result, turns)
        except EpisodeError as error:
            if not ended:
                await self.failed()
            diagnostics = {"error": str(error)[:MAX_ERROR_CHARS]}
            score = Score(value=math.nan, status="error", diagnostics=diagnostics)
        if self._scored is not None:
            self._scored(turns, score)
        return score

    def stopped_by_limit(self, said: Message) -> bool:
        """Whether the loop ended at its limit of turns although the model wanted to go on."""
        return False

    async def _next_request(self) -> None:
        """Wait until the library requests a completion (`_pending`) or its loop has ended (None)."""
        self._pending = await self._requests.get()
        while self._pending is not None and self._pending.answer.done():  # cancelled by the library
            self._pending = await self._requests.get()
        if self._pending is not None:
            self.tools = self._pending.tools

    async def _answer(self, response: Any) -> bool:
        """Answer the pending request; False if that was the last one."""
        assert self._pending is not None
        if not self._pending.answer.done():
            self._pending.answer.set_result(response)
        await self._next_request()
        return self._pending is not None

    async def _finished(self, turns: Sequence[TurnText]) -> Any:
        """Finish the library's loop; returns its result."""
        last = turns[-1]
        if last.stop_reason == StopReason.ABORTED:
            await self._give_up()
            raise EpisodeError("the engine gave the request up")
        if self._pending is not None and len(turns) > self._num_said:
            await self._answer(self.response(Message(role="assistant", content=last.text), truncated=True))
        for _ in range(MAX_REFUSALS):
            if self._pending is None:
                return self._result()
            self._pending.answer.set_exception(self.refusal())
            await self._next_request()
        await self._give_up()
        raise EpisodeError(f"the environment went on after {MAX_REFUSALS} requests were refused")

    async def _give_up(self) -> None:
        self._loop.cancel()
        await asyncio.wait({self._loop})

    def _result(self) -> Any:
        """What the ended loop returned. EpisodeError if it failed."""
        if self._loop.cancelled():
            raise EpisodeError("the environment cancelled its own rollout")
        error = self._loop.exception()
        if isinstance(error, UserError):
            raise error
        if error is not None:
            raise EpisodeError(chain(error))
        return self._loop.result()


def counted(
    turns: Sequence[TurnText], *, has_tools: bool, measured: Mapping[str, float], tool_errors: int | None
) -> dict[str, float]:
    """Counts as `ToolEnv` does; `measured` are those of the environment, for what we do not count (None)."""
    if not has_tools:
        return {"turns": float(len(turns))}
    calls = [call for turn in turns for call in turn.calls]
    counts = {"turns": len(turns), "tool_calls": len(calls)}
    counts["malformed_calls"] = sum(call.problem is not None for call in calls)
    if tool_errors is not None:
        counts["tool_errors"] = tool_errors
    return {name: float(count) for name, count in (dict(measured) | counts).items()}


def chain(error: BaseException) -> str:
    """`ModelError <- ValueError: no such column`"""
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return said if error.__cause__ is None else f"{said} <- {chain(error.__cause__)}"


# -------------------------------------------------------------------------------------------------------- messages


def to_messages(messages: Sequence[Any]) -> tuple[Message, ...]:
    """The library's messages, objects or dicts, as ours. UserError for non-text content."""
    names: dict[str, str] = {}
    found = []
    for message in messages:
        calls = tuple(_call(call) for call in message.get("tool_calls") or ())
        names |= {call.id: call.name for call in calls}
        role, call_id = message["role"], message.get("tool_call_id")
        text = _text(message.get("content"))
        name = names.get(call_id or "")
        found.append(Message(role=ROLES.get(role, role), content=text, tool_calls=calls, name=name, call_id=call_id))
    return tuple(found)


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.get("type") != "text":
            raise UserError(
                f"the environment shows the model content of type {part.get('type')!r}, but rlvr trains on text alone: "
                "choose an environment without images and sound."
            )
    return "\n".join(part.get("text") or "" for part in content)


def _call(call: Any) -> ToolCall:
    """A call of the library (`name`, `arguments`) or of OpenAI (`function`); arguments are JSON, or already parsed."""
    function = call.get("function") or call
    arguments = function.get("arguments")
    with contextlib.suppress(ValueError, RecursionError):
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    is_object = isinstance(arguments, dict)
    return ToolCall(
        id=call.get("id") or "",
        name=function.get("name") or "",
        arguments=arguments if is_object else {},
        problem=None if is_object else "the arguments are no JSON object",
    )


def _identity(message: Message) -> tuple[Any, ...]:
    """Equal for messages with equal content."""
    calls = tuple((call.id, call.name, call.problem is None, dict(call.arguments)) for call in message.tool_calls)
    return message.role, message.content, calls, message.call_id
