"""An episode with tools: what ends it, what the model is told, what is counted."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from rlvr.core.env import Reply
from rlvr.envs.tool_env import MAX_CALLS_PER_TURN, ToolEnv
from rlvr.envs.tools import Tool, ToolError, make_tool
from rlvr.errors import UserError
from rlvr.rewards.base import RewardError
from rlvr.rewards.trace import Trace
from rlvr.types import Attempt, Example, Message, Score, StopReason, ToolCall, TurnText

EXAMPLE = Example(id="e", messages=(Message(role="user", content="Where?"),), answer="Oslo")


@dataclass
class Notes:
    """What an episode knows."""

    seen: list[str] = field(default_factory=list)
    answer: str | None = None


@dataclass
class Traced(Notes):
    trace: Trace = field(default_factory=Trace)


def mark(text: str, state: Traced) -> str:
    """Mark."""
    state.trace.note("step", text)
    return text


class AnswerVerifier:
    """1 for the right answer in the state, or in the last turn's text."""

    name = "answer"

    async def verify(self, attempt: Attempt) -> Score:
        assert isinstance(attempt.state, Notes)
        right = attempt.example.answer in (attempt.state.answer, attempt.text)
        return Score(value=float(right), diagnostics={"seen": float(len(attempt.state.seen))})


def search(query: str, state: Notes) -> str:
    """Search."""
    state.seen.append(query)
    return f"about {query}"


def fail() -> str:
    """Fail."""
    raise ToolError("nothing there")


def down() -> str:
    """Down."""
    raise UserError("the service stays down")


def complete(answer: str, state: Notes) -> None:
    """Answer."""
    state.answer = answer


TOOLS = [make_tool(function, timeout_s=5.0, inline=True) for function in (search, fail, down)]
TOOLS.append(make_tool(complete, timeout_s=5.0, inline=True, final=True))


def make_env(
    state: Notes | None = None, *, max_turns: int = 4, tools: Sequence[Tool] = tuple(TOOLS), **kwargs: Any
) -> ToolEnv:
    state = Notes() if state is None else state
    return ToolEnv(EXAMPLE, tools=tools, state=state, verifier=AnswerVerifier(), max_turns=max_turns, **kwargs)


def call(name: str, **arguments: object) -> ToolCall:
    return ToolCall(id=f"call_{name}", name=name, arguments=arguments)


MALFORMED = ToolCall(id="c", name="", arguments={}, problem="the call is no JSON")


def said(*calls: ToolCall, content: str = "") -> Message:
    return Message(role="assistant", content=content, tool_calls=calls)


def turn(text: str = "", num_tokens: int = 1, calls: tuple[ToolCall, ...] = ()) -> TurnText:
    return TurnText(
        prompt="", completion=text, text=text, stop_reason=StopReason.STOP, num_tokens=num_tokens, calls=calls
    )


def play(env: ToolEnv, *messages: Message) -> tuple[list[Reply], Score]:
    async def episode() -> tuple[list[Reply], Score]:
        await env.start()
        replies = [await env.step(message) for message in messages]
        return replies, await env.score([turn()] * max(1, len(messages)))

    return asyncio.run(episode())


def told(env: ToolEnv, *calls: ToolCall) -> str:
    """What the model is told about the last of its calls."""
    replies, _ = play(env, said(*calls))
    assert not replies[0].done
    return replies[0].messages[-1].content


COUNTS = ("tool_calls", "tool_errors", "malformed_calls", "unknown_tools", "invalid_arguments", "tool_timeouts")


def test_a_call_is_answered_by_a_message_of_the_tool() -> None:
    replies, score = play(make_env(), said(call("search", query="Oslo")))
    message = Message(role="tool", content="about Oslo", name="search", call_id="call_search")
    assert replies == [Reply(messages=(message,), done=False)]
    assert score.diagnostics == dict.fromkeys(COUNTS, 0.0) | {"seen": 1.0, "turns": 1.0, "tool_calls": 1.0}


def test_a_step_of_the_trace_has_the_turn_that_made_it() -> None:
    state = Traced()
    note = make_tool(mark, timeout_s=5.0, inline=True)
    calls = [said(call("mark", text="a")), said(call("mark", text="b"), call("mark", text="c")), said(content="Oslo")]
    _, score = play(make_env(state, tools=(note,)), *calls)
    assert [(step.text, step.turn) for step in score.trace if step.kind == "step"] == [("a", 0), ("b", 1), ("c", 1)]


def test_pitfall_28_counts_override_those_of_a_verifier() -> None:
    class Claims(AnswerVerifier):
        async def verify(self, attempt: Attempt) -> Score:
            return Score(value=1.0, diagnostics={"tool_calls": 99.0, "turns": 99.0, "mine": 2.0})

    env = ToolEnv(EXAMPLE, tools=TOOLS, state=Notes(), verifier=Claims(), max_turns=4)
    _, score = play(env, said(call("search", query="Oslo")))
    assert [score.diagnostics[name] for name in ("tool_calls", "turns", "mine")] == [1.0, 1.0, 2.0]


def test_pitfall_28_an_attempt_has_all_calls_and_the_last_text() -> None:
    first = turn("looking", calls=(call("search", query="a"), call("complete", answer="Oslo")))
    last = turn("done", num_tokens=5, calls=(call("search", query="b"),))
    attempt = Attempt.of(EXAMPLE, [first, last])
    assert attempt.calls == (*first.calls, *last.calls)
    assert (attempt.num_tokens, attempt.text, attempt.turns) == (6, "done", (first, last))


def test_a_turn_without_a_call_ends_or_is_reminded() -> None:
    turns = said(content="Let me think."), said(call("search", query="a")), said(content="Hm."), said(content="Oslo")
    ended, _ = play(make_env(), turns[0])
    assert ended == [Reply(messages=(), done=True)]
    replies, score = play(make_env(reminds=True, potential=lambda state: 0.5), *turns)
    assert [reply.done for reply in replies] == [False, False, False, True]
    assert replies[0].messages == replies[2].messages
    assert replies[0].messages[0].role == "user"
    assert replies[0].messages[0].content.endswith("search, fail, down, complete; complete ends the task.")
    assert (score.diagnostics["reminders"], score.diagnostics["tool_errors"], len(score.potentials)) == (2.0, 0.0, 4)


def test_the_final_tool_ends_the_episode_at_once() -> None:
    state = Notes()
    calls = (call("search", query="a"), call("complete", answer="Oslo"), call("search", query="b"))
    replies, score = play(make_env(state), said(*calls))
    assert replies == [Reply(messages=(), done=True)]
    assert state == Notes(seen=["a"], answer="Oslo")
    assert score.value == 1.0


def test_pitfall_28_a_failed_final_call_does_not_end_the_episode() -> None:
    replies, score = play(make_env(), said(call("complete", answer=[])), said(call("complete", answer="Oslo")))
    assert [reply.done for reply in replies] == [False, True]
    assert replies[0].messages[0].content.startswith("Error: complete: argument 'answer' should be a valid string")
    assert (score.value, score.diagnostics["invalid_arguments"]) == (1.0, 1.0)


def test_pitfall_28_an_unknown_tool_names_the_nearest_one() -> None:
    assert told(make_env(), call("serch", query="a")) == (
        "Error: there is no tool 'serch'; did you mean 'search'? The tools are: search, fail, down, complete"
    )
    assert "did you mean" not in told(make_env(), call("xyzzy"))
    assert len(told(make_env(), call("x" * 100_000))) < 200


def test_pitfall_28_a_malformed_call_is_answered() -> None:
    replies, _ = play(make_env(), said(MALFORMED))
    message = Message(role="tool", content="Error: the call is no JSON", name="", call_id="c")
    assert replies == [Reply(messages=(message,), done=False)]


def test_pitfall_26_every_kind_of_failure_is_counted() -> None:
    async def slow() -> str:
        """Slow."""
        await asyncio.sleep(5)
        return ""

    tools = [*TOOLS, make_tool(slow, timeout_s=0.02)]
    calls = [MALFORMED, call("none"), call("search", query=[]), call("slow"), call("fail"), call("search", query="a")]
    _, score = play(make_env(tools=tools), said(*calls))
    assert [score.diagnostics[name] for name in COUNTS] == [6.0, 5.0, 1.0, 1.0, 1.0, 1.0]


def test_pitfall_28_in_the_last_turn_only_final_tools_run() -> None:
    state = Notes()
    first = said(call("search", query="a"))
    last = said(call("search", query="b"), call("complete", answer="Oslo"))
    replies, score = play(make_env(state, max_turns=2), first, last)
    assert state == Notes(seen=["a"], answer="Oslo")
    assert [reply.done for reply in replies] == [False, True]
    assert (score.diagnostics["tool_calls"], score.diagnostics["tool_errors"]) == (3.0, 0.0)


def test_a_turn_runs_a_bounded_number_of_calls() -> None:
    state = Notes()
    calls = [call("search", query="a")] * (MAX_CALLS_PER_TURN + 2)
    replies, score = play(make_env(state), said(*calls))
    assert len(state.seen) == MAX_CALLS_PER_TURN
    assert len(replies[0].messages) == len(calls)
    assert score.diagnostics["tool_errors"] == 2.0


def test_pitfall_08_potentials_are_those_before_each_turn() -> None:
    def potential(state: Any) -> float:
        return len(state.seen) / 2

    messages = [said(call("search", query="a")), said(call("search", query="b")), said(content="Oslo")]
    _, score = play(make_env(potential=potential), *messages)
    assert score.potentials == (0.0, 0.5, 1.0)
    assert play(make_env(), *messages)[1].potentials == ()
    _, used_up = play(make_env(potential=potential, max_turns=2), *messages[:2])
    assert used_up.potentials == (0.0, 0.5)  # one for each turn, though the environment would have gone on


def test_a_potential_that_is_no_number_ends_the_run() -> None:
    with pytest.raises(RewardError, match="the potential of example 'e' is nan"):
        play(make_env(potential=lambda state: math.nan), said(content="Oslo"))


def test_pitfall_26_a_user_error_of_a_tool_ends_the_run() -> None:
    with pytest.raises(UserError, match="stays down"):
        play(make_env(), said(call("down")))


def test_pitfall_38_an_env_is_single_use() -> None:
    env = make_env()
    play(env, said(content="Oslo"))
    with pytest.raises(RuntimeError, match="'e' is single-use"):
        play(env)


def test_two_tools_of_one_name_are_an_error() -> None:
    with pytest.raises(UserError, match="have the same name"):
        make_env(tools=[*TOOLS, TOOLS[0]])
