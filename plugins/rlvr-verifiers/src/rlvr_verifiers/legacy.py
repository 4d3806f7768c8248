"""Environments of verifiers 0.3.1: `load_environment`, `ToolEnv`, `Rubric`.

Two problems that we work around. An environment's constructor replaces our SIGINT and SIGTERM handlers, and therefore
only works in the main thread: environments are created while `signal.signal` is disabled. A rubric logs exceptions of
its functions and scores 0.0, so that a broken function looks like a wrong answer: rubrics are wrapped to record them.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import json
import logging
import os
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from functools import cache
from typing import Any
from unittest import mock

from rlvr.core.env import Env
from rlvr.data.readers import quiet
from rlvr.envs.tool_env import COUNTED
from rlvr.errors import ConfigError, UserError
from rlvr.rewards.base import checked
from rlvr.types import Example, Message, Score, ToolSchema, TurnText
from rlvr_verifiers.edition import Row
from rlvr_verifiers.env import EpisodeError, LibraryEnv, Requests, Scored, chain, counted, to_messages

FAILURES = "rlvr_failures"
"""Key in the library's state: `(function name, exception)` for each failed function of the rubric."""

TOOL_ERRORS: ContextVar[list[str]] = ContextVar("rlvr_tool_errors")
"""Exceptions of the running rollout's tools, which the library reports to the model."""


class Rows(Sequence[Row]):
    """Rows of a data set of the library."""

    def __init__(self, data: Any) -> None:
        self._data = data
        known = [name for name in ("prompt", "answer", "info") if name in data.column_names]
        self._known = list(data.select_columns(known))  # faster than one row at a time

    def __len__(self) -> int:
        return len(self._known)

    def __getitem__(self, index: Any) -> Any:
        row = self._known[index]
        answer = row.get("answer")
        return Row(
            messages=to_messages([{"role": "user", "content": row["prompt"]}])
            if isinstance(row["prompt"], str)
            else to_messages(row["prompt"]),
            answer="" if answer is None else str(answer),
            identity=json.dumps([str(answer), row.get("info")], default=str),
            source=functools.partial(self._data.__getitem__, index),
        )


class LegacyEnvironment:
    """An environment of the library with its data sets."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.train, self.held_out = (None if data is None else Rows(data) for data in (env.dataset, env.eval_dataset))
        self.notes: tuple[str, ...] = ()

    def tools(self, row: Row) -> tuple[ToolSchema, ...]:
        info = row.source().get("info")
        info = json.loads(info) if isinstance(info, str) and info else info
        return tuple(tool_schema(tool) for tool in (info or {}).get("tool_defs") or self._env.tool_defs or ())

    def own(self, question: str) -> Row:
        """A user's question after the environment's system prompt."""
        system, prompt = self._env.system_prompt, [{"role": "user", "content": question}]
        prompt = [*([{"role": "system", "content": system}] if system else []), *prompt]
        row = {"prompt": prompt, "answer": "", "example_id": 0}
        return Row(messages=to_messages(prompt), answer="", identity="", source=lambda: row)

    def envs(self, example: Example, row: Row, count: int, scored: Scored | None = None) -> Sequence[Env]:
        scorer = Scorer(self._env, count)
        return [VerifiersEnv(example, row.source(), self._env, scorer=scorer, scored=scored) for _ in range(count)]


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


class VerifiersEnv(LibraryEnv):
    """One rollout of the library's environment."""

    def __init__(
        self, example: Example, row: Mapping[str, Any], env: Any, *, scorer: Scorer, scored: Scored | None = None
    ) -> None:
        limit = getattr(env, "max_turns", None)
        super().__init__(example, max_turns=limit if isinstance(limit, int) and limit > 0 else None, scored=scored)
        self._row, self._env, self._scorer = row, env, scorer
        self._tool_errors: list[str] = []

    def play(self, requests: Requests) -> Coroutine[Any, Any, Any]:
        rollout = self._env.rollout(dict(self._row), _client_class()(requests), "policy", {})
        return _noting_errors(rollout, self._tool_errors)

    def response(self, said: Message, *, truncated: bool) -> Any:
        return to_response(said, truncated=truncated)

    def refusal(self) -> Exception:
        errors: Any = importlib.import_module("verifiers.legacy.errors")
        return errors.OverlongPromptError("the episode is over")

    async def graded(self, result: Any, turns: Sequence[TurnText]) -> Score:
        state = result
        if state.get("error") is not None:
            await self.failed()
            raise EpisodeError(chain(state["error"]))
        if state.get("timed_out"):
            await self.failed()
            raise EpisodeError(f"the environment's own time limit of {self._env.timeout_seconds:g} s timed out")
        try:
            await self._scorer(state)
            await self._env.rubric.cleanup(state)
        except UserError:
            raise
        except Exception as error:  # the rubric's own code
            raise EpisodeError(f"the rubric failed: {chain(error)}") from error
        for name, error in state.get(FAILURES, ()):
            if isinstance(error, UserError):
                raise error
            raise EpisodeError(f"reward function {name}: {chain(error)}")
        if state.get("reward") is None:
            raise EpisodeError("the rubric gave no reward")
        parts = {name: float(value) for name, value in (state.get("metrics") or {}).items()}
        knows_errors = any(hasattr(part, "error_formatter") for part in (self._env, *getattr(self._env, "envs", ())))
        counts = counted(
            turns,
            has_tools=bool(self.tools),
            measured={name: parts[name] for name in COUNTED if name in parts},
            tool_errors=len(self._tool_errors) if knows_errors else None,
        )
        return checked(self._env.env_id, Score(value=float(state["reward"]), parts=parts, diagnostics=counts))

    async def failed(self) -> None:
        await self._scorer(None)

    def stopped_by_limit(self, said: Message) -> bool:
        """Whether tools were called in the last possible turn: the episode would have continued."""
        ended = self._loop
        if self._num_said != self.max_turns or not said.tool_calls or ended.cancelled() or ended.exception():
            return False
        return ended.result().get("stop_condition") == "max_turns_reached"


async def _noting_errors(rollout: Coroutine[Any, Any, Any], errors: list[str]) -> Any:
    TOOL_ERRORS.set(errors)  # of this task alone
    return await rollout


def _scores_groups(env: Any) -> bool:
    """Whether a reward function scores a group together."""
    return env.requires_group_rollouts or any(_scores_groups(part) for part in getattr(env, "envs", ()))


# ---------------------------------------------------------------------------------------------------------- the client


@cache
def _client_class() -> Any:
    base: Any = importlib.import_module("verifiers.legacy.clients").Client

    class QueueClient(base):
        """Answers complete requests; the native formats of the other methods do not occur."""

        async def get_response(self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **_: Any) -> Any:
            return await self.client.ask(tuple(prompt), [tool_schema(tool) for tool in tools or ()])

    QueueClient.__abstractmethods__ = frozenset()
    return QueueClient


def tool_schema(tool: Any) -> ToolSchema:
    return {"type": "function", "function": {key: tool[key] for key in ("name", "description", "parameters")}}


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


# ---------------------------------------------------------------------------------------------------- the environment


def open_environment(env_id: str, env_args: Mapping[str, Any], max_rows: int | None) -> LegacyEnvironment:
    """What `env_id`'s `load_environment` makes, with data sets and recorded rubrics.

    The library is silent unless VF_LOG_LEVEL is set: rlvr counts and reports failures.
    """
    vf: Any = importlib.import_module("verifiers.legacy")
    if "VF_LOG_LEVEL" not in os.environ:
        logging.getLogger("verifiers").setLevel(logging.CRITICAL)
    with quiet(), mock.patch.object(signal, "signal", lambda number, handler: signal.getsignal(number)):
        env = vf.load_environment(env_id, **env_args)
        env.build_dataset()
        env.build_eval_dataset()
    if not env.score_rollouts:
        raise ConfigError(f"task.env_id={env_id}: gives no scores (score_rollouts=False), so there is no reward.")
    _watch(vf.Rubric)
    for part in (env, *getattr(env, "envs", ())):
        if hasattr(part, "error_formatter"):
            part.error_formatter = functools.partial(_noted, part.error_formatter)
    return LegacyEnvironment(env)


def _noted(formatted: Callable[[Exception], str], error: Exception) -> str:
    """The text the model gets for a tool's exception, which the episode counts."""
    TOOL_ERRORS.get([]).append(text := formatted(error))
    return text


def _watch(rubric: Any) -> None:
    """Record exceptions of rubric functions in the states of their episodes."""
    if hasattr(rubric, FAILURES):
        return
    setattr(rubric, FAILURES, True)
    score_one, score_all = rubric._call_individual_reward_func, rubric._call_group_reward_func

    async def watched_one(self: Any, func: Callable[..., Any], state: Any) -> float:
        return await score_one(self, _recording(func, [state], float), state)

    async def watched_all(self: Any, func: Callable[..., Any], states: Sequence[Any]) -> Sequence[float]:
        def one_each(values: Any) -> list[float]:
            numbers = [float(value) for value in values]
            if len(numbers) != len(states):
                raise ValueError(f"returned {len(numbers)} numbers for {len(states)} episodes")
            return numbers

        return await score_all(self, _recording(func, states, one_each), states)

    rubric._call_individual_reward_func, rubric._call_group_reward_func = watched_one, watched_all


def _recording(func: Callable[..., Any], states: Sequence[Any], check: Callable[[Any], Any]) -> Callable[..., Any]:
    """`func` with the same signature, because the library passes arguments by name."""

    @functools.wraps(func)
    async def recorded(*args: Any, **kwargs: Any) -> Any:
        try:
            value = func(*args, **kwargs)
            return check(await value if inspect.isawaitable(value) else value)
        except Exception as error:
            for state in states:
                state.setdefault(FAILURES, []).append((getattr(func, "__name__", repr(func)), error))
            raise

    return recorded
