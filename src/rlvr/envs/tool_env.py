"""An environment with tools: the model calls tools until it answers.

assistant  search(query="Oslo")         ->  tool     "Oslo is the capital of Norway."
assistant  complete(answer="Norway")    ->  done: `complete` is a final tool
"""

import difflib
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from rlvr.core.env import Reply
from rlvr.envs.single_turn import SingleTurnEnv
from rlvr.envs.tools import Tool
from rlvr.errors import UserError
from rlvr.rewards.base import RewardError, Verifier, run_verifier
from rlvr.rewards.trace import Trace
from rlvr.types import Attempt, Example, Message, Score, ToolCall, ToolSchema, TraceStep, TurnText

MAX_CALLS_PER_TURN = 32
"""Calls beyond this number in one turn are not executed: their results would exceed the context anyway."""

COUNTED = ("tool_calls", "tool_errors", "malformed_calls", "unknown_tools", "invalid_arguments", "tool_timeouts")
_FAILURES = {"arguments": "invalid_arguments", "timeout": "tool_timeouts"}


class ToolEnv(SingleTurnEnv):
    """Ends with a successful call of a final tool, with a turn without calls, or after `max_turns` turns.

    With `reminds` a turn without calls gets a user message (call a tool or `complete`) instead, and is counted.

    The calls of a turn run sequentially. Errors of a call go to the model as a tool message and are counted in
    `Score.diagnostics`; they do not end the episode. In the last turn only final tools are executed, as no later turn
    reads other results. `state` belongs to this episode; tools get it, and the verifier as `attempt.state`.
    `potential(state)` before each turn goes into `Score.potentials`. If the state has a `Trace` called `trace`, it is
    told the turn and goes into `Score.trace`.
    """

    def __init__(
        self,
        example: Example,
        *,
        tools: Sequence[Tool],
        state: object,
        verifier: Verifier,
        max_turns: int,
        potential: Callable[[object], float] | None = None,
        reminds: bool = False,
    ) -> None:
        super().__init__(example, verifier, state)
        self.max_turns: int | None = max_turns
        self.tools: tuple[ToolSchema, ...] = tuple(tool.schema for tool in tools)
        self._tools = {tool.name: tool for tool in tools}
        if len(self._tools) < len(tools):
            raise UserError(f"two of the tools {[tool.name for tool in tools]} have the same name: rename one.")
        self._last_turn = max_turns - 1
        self._potential, self._reminds = potential, reminds
        trace = getattr(state, "trace", None)
        self._trace = trace if isinstance(trace, Trace) else Trace()
        self._potentials: list[float] = []
        self._num_turns = 0
        self._counts: Counter[str] = Counter()

    async def start(self) -> tuple[Message, ...]:
        messages = await super().start()
        self._note_potential()
        return messages

    async def step(self, said: Message) -> Reply:
        """Run the calls of a turn, in order, up to the first success of a final tool.

        Raises UserError if a tool does.
        """
        is_last = self._num_turns >= self._last_turn
        self._trace.turn = self._num_turns
        self._num_turns += 1
        self._counts["tool_calls"] += len(said.tool_calls)
        if not said.tool_calls and (is_last or not self._reminds):
            return Reply(messages=(), done=True)
        replies = [] if said.tool_calls else [self._reminder()]
        for index, call in enumerate(said.tool_calls):
            text, ends = await self._call(call, is_last, index)
            if ends:
                return Reply(messages=(), done=True)
            replies.append(Message(role="tool", content=text, name=call.name, call_id=call.id))
        self._note_potential()
        return Reply(messages=tuple(replies), done=False)

    async def score(self, turns: Sequence[TurnText]) -> Score:
        """The verifier's score of turns and state, with the counts of calls and errors if there are tools."""
        attempt = Attempt.of(self._example, turns, self._state)
        score = await run_verifier(self._verifier, attempt)
        names = [*(COUNTED if self._tools else ()), *(["reminders"] if self._reminds else ())]
        counted = {"turns": float(len(turns))} if names else {}
        counted |= {name: float(self._counts[name]) for name in names}
        return replace(
            score,
            diagnostics={**score.diagnostics, **counted},
            potentials=tuple(self._potentials[: len(turns)]),
            trace=(*self._trace.steps, *score.trace, *await self._ending(attempt)),
        )

    async def _ending(self, attempt: Attempt) -> tuple[TraceStep, ...]:
        """Final trace steps, after those of the verifier."""
        return ()

    async def _call(self, call: ToolCall, is_last: bool, index: int) -> tuple[str, bool]:
        if call.problem is not None:
            return self._failed("malformed_calls", call.problem), False
        tool = self._tools.get(call.name)
        if tool is None:
            return self._failed("unknown_tools", self._no_such_tool(call.name)), False
        if is_last and not tool.final:
            return "not executed: this was the last turn", False
        if index >= MAX_CALLS_PER_TURN:
            return self._failed(None, f"not executed: more than {MAX_CALLS_PER_TURN} calls in one turn"), False
        result = await tool.call(call.arguments, self._state)
        if result.failure is not None:
            return self._failed(_FAILURES.get(result.failure), f"{tool.name}: {result.text}"), False
        return result.text, tool.final

    def _reminder(self) -> Message:
        self._counts["reminders"] += 1
        final = " or ".join(name for name, tool in self._tools.items() if tool.final)
        text = f"You have called no tool: call one of {', '.join(self._tools)}; {final} ends the task."
        return Message(role="user", content=text)

    def _failed(self, kind: str | None, text: str) -> str:
        self._counts["tool_errors"] += 1
        if kind is not None:
            self._counts[kind] += 1
        return f"Error: {text}"

    def _no_such_tool(self, name: str) -> str:
        near = difflib.get_close_matches(name[:64], self._tools, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        return f"there is no tool {name[:64]!r}; {hint}The tools are: {', '.join(self._tools)}"

    def _note_potential(self) -> None:
        if self._potential is None:
            return
        value = self._potential(self._state)
        if not math.isfinite(value):
            raise RewardError(f"the potential of example {self._example.id!r} is {value!r}, not a finite number.")
        self._potentials.append(float(value))
