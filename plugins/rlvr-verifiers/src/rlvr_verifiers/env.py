"""Adapts an environment of the verifiers library: its rollout runs as a task of the same event loop.

The library's loop asks a client for a completion. Our client queues the request and waits for the answer:

the library's rollout (its own task)                  our episode
    client.get_response(messages, tools)   ->  queue  ->   start() returns the messages
    waits                                                  the engine samples
    a Response                             <-  future <-   step(completion)
"""

import asyncio
import contextlib
import importlib
import json
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from rlvr.core.env import Reply
from rlvr.envs.tool_env import COUNTED
from rlvr.errors import UserError
from rlvr.rewards.base import checked
from rlvr.types import Example, Message, Score, StopReason, ToolCall, ToolSchema, TurnText

FAILURES = "rlvr_failures"
"""Key in the library's state: `(function name, exception)` for each failed function of the rubric."""

TOOL_ERRORS: ContextVar[list[str]] = ContextVar("rlvr_tool_errors")
"""Exceptions of the running rollout's tools, which the library reports to the model."""

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


class Scorer:
    """Scores the states of `size` episodes of one example with the rubric.

    If the rubric has group rewards, the last episode to end triggers the scoring of all, and the others wait.
    """

    def __init__(self, env: Any, size: int) -> None:
        self._rubric, self._scores_groups, self._num_missing = env.rubric, _scores_groups(env), size
        self._states: list[Any] = []
        self._done = asyncio.Event()
        self._error: Exception | None = None

    async def __call__(self, state: Any | None) -> None:
        """The rubric writes reward and metrics into the state; None is a failed episode, which is not scored."""
        if not self._scores_groups:
            if state is not None:
                await self._rubric.score_rollout(state)
            return
        self._num_missing -= 1
        if state is not None:
            self._states.append(state)
        if self._num_missing == 0:
            try:
                if self._states:
                    await self._rubric.score_group(self._states)
            except Exception as error:  # the rubric's own code
                self._error = error
            finally:
                self._done.set()
        await self._done.wait()
        if self._error is not None and state is not None:
            raise self._error


class VerifiersEnv:
    """One rollout of the library's environment.

    The library's loop writes the prompts and ends the episode. An unfinished completion is marked as truncated, and
    later requests are refused as overlong prompts: the loop then finishes and scores the rollout by itself.
    """

    def __init__(
        self, example: Example, row: Mapping[str, Any], env: Any, *, scorer: Scorer, scored: Scored | None = None
    ) -> None:
        limit = getattr(env, "max_turns", None)
        self.max_turns: int | None = limit if isinstance(limit, int) and limit > 0 else None
        self.tools: tuple[ToolSchema, ...] = ()
        self._example, self._row, self._env = example, row, env
        self._scorer, self._scored = scorer, scored
        self._requests: asyncio.Queue[Request | None] = asyncio.Queue()  # None: the rollout has ended
        self._rollout: Any = None  # asyncio.Task, once it has started
        self._pending: Request | None = None
        self._num_said = 0
        self._tool_errors: list[str] = []

    async def start(self) -> tuple[Message, ...]:
        """The library's first prompt; the example's messages if the rollout ends before. RuntimeError the second
        time."""
        if self._rollout is not None:
            raise RuntimeError(f"the environment of example {self._example.id!r} is single-use and was started before")
        requests = self._requests
        rollout = self._env.rollout(dict(self._row), _client_class()(requests), "policy", {})
        before = TOOL_ERRORS.set(self._tool_errors)
        self._rollout = asyncio.create_task(rollout)
        TOOL_ERRORS.reset(before)
        self._rollout.add_done_callback(lambda task: requests.put_nowait(None))
        # an episode dropped without a score, by an exception elsewhere, must not leave a task behind
        weakref.finalize(self, self._rollout.cancel).atexit = False
        await self._next_request()
        return self._example.messages if self._pending is None else to_messages(self._pending.messages)

    async def step(self, said: Message) -> Reply:
        """Pass the completion to the library; returns its next prompt, or that its rollout has ended."""
        self._num_said += 1
        before, response = self._pending, to_response(said)
        if before is None or not await self._answer(response):
            return Reply(messages=(), done=not self._stopped_by_limit(said))
        assert self._pending is not None
        expected = [_identity(message) for message in (*before.messages, response.message)]
        now = [_identity(message) for message in self._pending.messages]
        messages = to_messages(self._pending.messages)
        if now[: len(expected)] == expected:
            return Reply(messages=messages[len(expected) :], done=False)
        return Reply(messages=messages, done=False, restarts=True)

    async def score(self, turns: Sequence[TurnText]) -> Score:
        """The reward and the metrics of the environment's rubric.

        Errors of the environment and of functions of the rubric are status "error". RewardError for a reward that is no
        finite number, UserError if the environment or its rubric raises one.
        """
        state = None
        try:
            state = await self._finished(turns)
            score = await self._graded(state, turns)
        except EpisodeError as error:
            if state is None:
                await self._scorer(None)
            diagnostics = {"error": str(error)[:MAX_ERROR_CHARS]}
            score = Score(value=math.nan, status="error", diagnostics=diagnostics)
        if self._scored is not None:
            self._scored(turns, score)
        return score

    # ------------------------------------------------------------------------------------------------ the rollout

    async def _next_request(self) -> None:
        """Wait until the library requests a completion (`_pending`) or its rollout has ended (None)."""
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

    async def _graded(self, state: Any, turns: Sequence[TurnText]) -> Score:
        try:
            await self._scorer(state)
            await self._env.rubric.cleanup(state)
        except UserError:
            raise
        except Exception as error:  # the rubric's own code
            raise EpisodeError(f"the rubric failed: {_chain(error)}") from error
        for name, error in state.get(FAILURES, ()):
            if isinstance(error, UserError):
                raise error
            raise EpisodeError(f"reward function {name}: {_chain(error)}")
        if state.get("reward") is None:
            raise EpisodeError("the rubric gave no reward")
        parts = {name: float(value) for name, value in (state.get("metrics") or {}).items()}
        score = Score(value=float(state["reward"]), parts=parts, diagnostics=self._counted(turns, parts))
        return checked(self._env.env_id, score)

    def _counted(self, turns: Sequence[TurnText], metrics: Mapping[str, float]) -> dict[str, float]:
        """Counts as `ToolEnv` does, from tool environments or the rubric's metrics."""
        if not self.tools:
            return {"turns": float(len(turns))}
        calls = [call for turn in turns for call in turn.calls]
        counts = {"turns": len(turns), "tool_calls": len(calls)}
        counts["malformed_calls"] = sum(call.problem is not None for call in calls)
        if any(hasattr(part, "error_formatter") for part in (self._env, *getattr(self._env, "envs", ()))):
            counts["tool_errors"] = len(self._tool_errors)
        measured = {name: metrics[name] for name in COUNTED if name in metrics}
        return {name: float(count) for name, count in (measured | counts).items()}

    async def _finished(self, turns: Sequence[TurnText]) -> Any:
        """Finish the library's rollout; returns its state."""
        last = turns[-1]
        if last.stop_reason == StopReason.ABORTED:
            await self._give_up()
            raise EpisodeError("the engine gave the request up")
        if self._pending is not None and len(turns) > self._num_said:
            await self._answer(to_response(Message(role="assistant", content=last.text), truncated=True))
        errors: Any = importlib.import_module("verifiers.legacy.errors")
        for _ in range(MAX_REFUSALS):
            if self._pending is None:
                return self._result()
            self._pending.answer.set_exception(errors.OverlongPromptError("the episode is over"))
            await self._next_request()
        await self._give_up()
        raise EpisodeError(f"the environment went on after {MAX_REFUSALS} requests were refused")

    async def _give_up(self) -> None:
        self._rollout.cancel()
        await asyncio.wait({self._rollout})

    def _result(self) -> Any:
        """The state of the ended rollout. EpisodeError if the environment failed."""
        if self._rollout.cancelled():
            raise EpisodeError("the environment cancelled its own rollout")
        error = self._rollout.exception()
        if isinstance(error, UserError):
            raise error
        state = {"error": error} if error is not None else self._rollout.result()
        if state.get("error") is not None:
            raise EpisodeError(_chain(state["error"]))
        if state.get("timed_out"):
            raise EpisodeError(f"the environment's own time limit of {self._env.timeout_seconds:g} s timed out")
        return state

    def _stopped_by_limit(self, said: Message) -> bool:
        """Whether tools were called in the last possible turn: the episode would have continued."""
        ended = self._rollout
        if self._num_said != self.max_turns or not said.tool_calls or ended.cancelled() or ended.exception():
            return False
        return ended.result().get("stop_condition") == "max_turns_reached"


def _scores_groups(env: Any) -> bool:
    """Whether a reward function scores a group together."""
    return env.requires_group_rollouts or any(_scores_groups(part) for part in getattr(env, "envs", ()))


def _chain(error: BaseException) -> str:
    """`ModelError <- ValueError: no such column`"""
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return said if error.__cause__ is None else f"{said} <- {_chain(error.__cause__)}"


# --------------------------------------------------------------------------------------------- client and messages


@cache
def _client_class() -> Any:
    base: Any = importlib.import_module("verifiers.legacy.clients").Client

    class QueueClient(base):
        """Answers complete requests; the native formats of the other methods do not occur."""

        async def get_response(self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **_: Any) -> Any:
            answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            schemas = tuple(tool_schema(tool) for tool in tools or ())
            self.client.put_nowait(Request(messages=tuple(prompt), tools=schemas, answer=answer))
            return await answer

    QueueClient.__abstractmethods__ = frozenset()
    return QueueClient


def tool_schema(tool: Any) -> ToolSchema:
    return {"type": "function", "function": {key: tool[key] for key in ("name", "description", "parameters")}}


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


def _identity(message: Any) -> tuple[Any, ...]:
    """Equal for library messages with equal content."""
    calls = tuple((call["id"], call["name"], call["arguments"]) for call in message.get("tool_calls") or ())
    return message["role"], _text(message.get("content")), calls, message.get("tool_call_id")


def to_response(said: Message, *, truncated: bool = False) -> Any:
    """An assistant's message as the library's model response.

    A malformed call (`problem`) gets arguments that are no JSON, so that the environment reports it and continues.
    """
    types: Any = importlib.import_module("verifiers.legacy.types")
    calls = [
        types.ToolCall(
            id=call.id, name=call.name, arguments=json.dumps(dict(call.arguments)) if call.problem is None else ""
        )
        for call in said.tool_calls
    ]
    message = types.ResponseMessage(
        content=said.content,
        tool_calls=calls or None,
        finish_reason="length" if truncated else "tool_calls" if calls else "stop",
        is_truncated=truncated,
    )
    return types.Response(id="", created=0, model="policy", usage=None, message=message)
