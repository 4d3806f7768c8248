"""Tasksets of verifiers 0.4 (its v1 API): `Taskset`, `Task`, `Toolset`."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import asyncio
import logging
import os
import weakref
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import verifiers.v1 as vf
from pydantic import ValidationError
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.runtimes import SubprocessConfig
from verifiers.v1.utils.loaders import default_harness_id, load_environment, resolve_env_config

from rlvr.core.env import Env
from rlvr.data.readers import quiet
from rlvr.errors import ConfigError
from rlvr.rewards.base import checked
from rlvr.types import Example, Message, Score, ToolSchema, TurnText
from rlvr_verifiers.edition import Row
from rlvr_verifiers.env import EpisodeError, LibraryEnv, Requests, Scored, counted, to_messages
from rlvr_verifiers.v1_agent import AGENT, AnyTask, first_messages, play, refusal, to_response
from rlvr_verifiers.v1_tools import LocalToolset, localized


class V1Environment:
    """A taskset: its tasks are the rows. It has no evaluation set, so a share of them is held out."""

    held_out = None

    def __init__(self, env: vf.Env[Any], tasks: Sequence[AnyTask], notes: tuple[str, ...]) -> None:
        self.train, self.notes = [to_row(task) for task in tasks], notes
        self.env, self._taskset = env, env.taskset
        # set up for each event loop: their connections belong to one
        self._shared: weakref.WeakKeyDictionary[Any, asyncio.Task[Any]] = weakref.WeakKeyDictionary()

    def tools(self, row: Row) -> tuple[ToolSchema, ...]:
        """Those of toolsets that are servers elsewhere are not known before the episode."""
        toolsets = [*self._taskset.toolsets(self._taskset.config), *row.source.toolsets(row.source.config)]
        local = [LocalToolset(toolset) for toolset in toolsets if not toolset.config.url]
        return tuple(schema for toolset in local for _, schema in toolset.offered)

    def own(self, question: str) -> Row:
        """A user's question in place of the first task's, without an answer."""
        task = self.train[0].source
        known = {"prompt": question} | ({"answer": ""} if isinstance(getattr(task.data, "answer", None), str) else {})
        return to_row(task.with_data(**known))

    def envs(self, example: Example, row: Row, count: int, scored: Scored | None = None) -> Sequence[Env]:
        return [V1Env(example, row.source, self, scored=scored) for _ in range(count)]

    async def shared(self) -> Sequence[Any]:
        """The taskset's toolsets, set up once."""
        loop = asyncio.get_running_loop()
        if loop not in self._shared:
            self._shared[loop] = asyncio.ensure_future(self._set_up())
        return await asyncio.shield(self._shared[loop])

    async def _set_up(self) -> Sequence[Any]:
        toolsets = self._taskset.toolsets(self._taskset.config)
        for toolset in toolsets:
            if not toolset.config.url:
                await toolset.setup()
        await self.env.start()
        return [localized(toolset) for toolset in toolsets]


class V1Env(LibraryEnv):
    """One rollout of a task. How long it may be is up to the task's stops, and to rlvr."""

    def __init__(
        self, example: Example, task: AnyTask, environment: V1Environment, *, scored: Scored | None = None
    ) -> None:
        super().__init__(example, max_turns=None, scored=scored)
        self._task, self._environment = task, environment

    def play(self, requests: Requests) -> Coroutine[Any, Any, Any]:
        return _play(self._task, self._environment, requests)

    def response(self, said: Message, *, truncated: bool) -> Any:
        return to_response(said, truncated=truncated)

    def refusal(self) -> Exception:
        return refusal()

    async def graded(self, result: Any, turns: Sequence[TurnText]) -> Score:
        episode = result.episode
        for failed in (*episode.traces, episode):
            if failed.is_timeout:
                raise EpisodeError(f"a time limit of the task: {getattr(failed, 'stop_condition', 'episode')}")
            if not failed.ok:
                error = failed.last_error
                raise EpisodeError(f"{error.type}: {error.message}" if error else "the rollout failed")
        if len(episode.traces) != 1:
            raise EpisodeError(
                f"the environment played {len(episode.traces)} rollouts in an episode, and rlvr trains one"
            )
        (trace,) = episode.traces
        if not trace.rewards:
            raise EpisodeError("the task gave no reward")
        unscored = [name for name, reward in trace.rewards.items() if reward is None]
        if unscored:
            raise EpisodeError(f"the task gave no reward {unscored[0]!r}")
        parts = {name: float(reward.score) for name, reward in trace.rewards.items()}
        parts |= {name: float(value) for name, value in trace.metrics.items() if value is not None}
        counts = counted(turns, has_tools=bool(self.tools), measured={}, tool_errors=result.num_tool_errors)
        return checked(self._example.id, Score(value=float(trace.reward), parts=parts, diagnostics=counts))

    def stopped_by_limit(self, said: Message) -> bool:
        """A stop called `max_turns`: what the library calls its own limit."""
        ended = self._loop
        if not said.tool_calls or ended.cancelled() or ended.exception():
            return False
        traces = ended.result().episode.traces
        if traces and traces[-1].stop_condition == "max_turns":
            self.max_turns = self._num_said
        return self.max_turns is not None


async def _play(task: AnyTask, environment: V1Environment, requests: Requests) -> Any:
    return await play(task, environment.env, await environment.shared(), requests)


def to_row(task: AnyTask) -> Row:
    data = task.data
    messages = to_messages(first_messages(data.system_prompt, data.prompt))
    answer = getattr(data, "answer", "")
    known = "" if answer is None else answer if isinstance(answer, str) else str(answer)
    return Row(messages=messages, answer=known, identity=task.hash, source=task)


def open_environment(env_id: str, env_args: Mapping[str, Any], max_rows: int | None) -> V1Environment:
    """The taskset of this name. The library is silent unless VF_LOG_LEVEL is set: rlvr counts and reports failures."""
    if "VF_LOG_LEVEL" not in os.environ:
        logging.getLogger("verifiers").setLevel(logging.CRITICAL)
    with quiet():
        try:
            config = resolve_env_config({"taskset": {"id": env_id, **env_args}})
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"] if part != "taskset")
            raise ValueError(f"{where}: {first['msg']}") from None
        seats = agent_config_fields(config)
        if len(seats) != 1:
            raise ConfigError(f"task.env_id={env_id}: plays several agents ({', '.join(seats)}), and rlvr trains one.")
        env = load_environment(config.model_copy(update=dict.fromkeys(seats, AGENT)))
        taskset = env.taskset
        if not taskset.bounded:
            if max_rows is None:
                raise ConfigError(
                    f"task.env_id={env_id}: its tasks have no end; say how many are trained on, e.g. "
                    "task.max_train_examples=1000."
                )
            taskset = taskset.take(2 * max_rows)  # some are held out
        tasks = list(taskset)
    _refuse_others(env_id, taskset, tasks)
    notes = ()
    if (harness := default_harness_id(env_id)) != "bash":
        notes = (f"{harness} has an agent program of its own, which is not used: rlvr's agent calls its tools",)
    return V1Environment(env, tasks, notes)


def _refuse_others(env_id: str, taskset: vf.Taskset[Any, Any], tasks: Sequence[AnyTask]) -> None:
    """ConfigError for a taskset that does not run in this process, with one agent that opens with a prompt."""
    where = f"task.env_id={env_id}"
    if not tasks:
        raise ConfigError(f"{where}: its taskset has no tasks.")
    if any(task.NEEDS_CONTAINER or task.data.image is not None for task in tasks):
        raise ConfigError(f"{where}: its tasks run in containers, and rlvr plays them in its own process.")
    if any(task.data.prompt is None for task in tasks):
        raise ConfigError(f"{where}: a task has no prompt: a user has to open it, and rlvr has none.")
    for toolset in (*taskset.toolsets(taskset.config), *tasks[0].toolsets(tasks[0].config)):
        if not toolset.config.url and not isinstance(toolset.config.runtime, SubprocessConfig):
            kind = toolset.config.runtime.type
            raise ConfigError(f"{where}: its tools run in {kind}, and rlvr calls tools in its own process.")
