"""Tools that hang: the caller gets an answer in time, threads are few and end."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest

from rlvr import threads
from rlvr.envs.tools import Tool, ToolResult, make_tool
from rlvr.errors import UserError
from rlvr.threads import CallThreads
from tests.system.harness import wait_until


@pytest.fixture
def wake() -> Iterator[threading.Event]:
    """Lets hanging tools end; set after the test."""
    event = threading.Event()
    yield event
    event.set()


def hanging(wake: threading.Event) -> Callable[[], str]:
    def hang() -> str:
        """Hang."""
        wake.wait(30)
        return "late"

    return hang


def calls(tool: Tool, arguments: Sequence[dict[str, Any]]) -> list[ToolResult]:
    """Results of concurrent calls."""

    async def together() -> list[ToolResult]:
        return await asyncio.gather(*(tool.call(one, index) for index, one in enumerate(arguments)))

    return asyncio.run(together())


def test_pitfall_27_a_tool_that_hangs_is_given_up(wake: threading.Event) -> None:
    async def beside() -> tuple[ToolResult, int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.005)
                ticks += 1

        ticking = asyncio.create_task(tick())
        result = await make_tool(hanging(wake), timeout_s=0.2).call({}, None)
        ticking.cancel()
        return result, ticks

    result, ticks = asyncio.run(beside())
    assert result == ToolResult(text="it timed out after 0.2 s", failure="timeout")
    assert ticks >= 5


@pytest.mark.slow
def test_pitfall_27_a_tool_that_ignores_cancel_is_left() -> None:
    async def stubborn() -> str:
        """Stay."""
        end = time.monotonic() + 2.5
        while time.monotonic() < end:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.5)
        raise ValueError("nobody reads this")

    async def alone() -> float:
        start = time.monotonic()
        result = await make_tool(stubborn, timeout_s=0.05).call({}, None)
        assert result.failure == "timeout"
        return time.monotonic() - start

    assert asyncio.run(alone()) < 2.2


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_a_cancelled_call_ends_at_once(kind: str, wake: threading.Event) -> None:
    async def hang_too() -> str:
        """Hang."""
        await asyncio.sleep(30)
        return ""

    async def give_up() -> int:
        tool = make_tool(hang_too if kind == "async" else hanging(wake), timeout_s=20.0)
        waiting = asyncio.create_task(tool.call({}, None))
        await asyncio.sleep(0.02)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        return len(asyncio.all_tasks())

    assert asyncio.run(give_up()) == 1


def num_tool_threads() -> int:
    return sum(thread.name == "rlvr-call" for thread in threading.enumerate())


def test_few_calls_run_at_once_and_their_threads_end() -> None:
    running, most = [0], [0]

    def note(state: int) -> int:
        """Note."""
        running[0] += 1
        most[0] = max(most[0], running[0])
        time.sleep(0.001)
        running[0] -= 1
        return state

    tool = make_tool(note, timeout_s=5.0, threads=CallThreads(max_threads=3))
    assert [result.text for result in calls(tool, [{}] * 100)] == [str(index) for index in range(100)]
    assert 1 <= most[0] <= 4  # one that has answered may not have ended yet
    wait_until(lambda: num_tool_threads() == 0)


def test_hanging_threads_are_replaced(wake: threading.Event) -> None:
    def maybe(hangs: bool) -> str:
        """Perhaps."""
        if hangs:
            wake.wait(30)
        return "ok"

    tool = make_tool(maybe, timeout_s=0.1, threads=CallThreads(max_threads=2))
    results = calls(tool, [{"hangs": index < 6} for index in range(20)])
    assert [result.failure for result in results] == ["timeout"] * 6 + [None] * 14
    wait_until(lambda: num_tool_threads() == 6)
    wake.set()
    wait_until(lambda: num_tool_threads() == 0)


def test_pitfall_27_waiting_for_a_thread_is_not_timed() -> None:
    def slow() -> str:
        """Take a while."""
        time.sleep(0.1)
        return "ok"

    tool = make_tool(slow, timeout_s=0.75, threads=CallThreads(max_threads=1))  # less than eight calls take
    assert [result.text for result in calls(tool, [{}] * 8)] == ["ok"] * 8


def test_pitfall_27_too_many_hanging_threads_are_a_sentence(wake: threading.Event) -> None:
    tool = make_tool(hanging(wake), timeout_s=0.02, threads=CallThreads(max_threads=2, max_hanging=4))

    async def many() -> None:
        for _ in range(10):
            await tool.call({}, None)

    with pytest.raises(UserError, match="4 calls, such as 'hang', hang in their threads"):
        asyncio.run(many())
    assert num_tool_threads() == 4
    wake.set()
    wait_until(lambda: num_tool_threads() == 0)


def test_pitfall_27_a_program_ends_although_a_tool_hangs() -> None:
    program = """
import asyncio, threading
from rlvr.envs.tools import make_tool

def hang() -> str:
    '''Hang.'''
    threading.Event().wait()

print(asyncio.run(make_tool(hang, timeout_s=0.05).call({}, None)).failure)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "timeout\n", "")


def test_pitfall_27_a_call_that_is_given_up_is_not_made() -> None:
    made: list[str] = []

    async def given_up() -> None:
        threads, released = CallThreads(max_threads=1), threading.Event()
        first = asyncio.create_task(threads.run("holds", released.wait, 10.0))
        second = asyncio.create_task(threads.run("waits", lambda: made.append("waits"), 10.0))
        await asyncio.sleep(0.05)
        second.cancel()
        await asyncio.wait({second})
        released.set()
        assert await first
        await threads.run("last", lambda: made.append("last"), 5.0)

    asyncio.run(given_up())
    assert made == ["last"]


def test_pitfall_37_a_quick_call_is_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the clock would decide which episodes are computed together, and with it the last bits of their logprobs."""

    async def turns_of_others(call: Callable[[], object]) -> int:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(others())
        await asyncio.sleep(0)
        before = turns
        await CallThreads().run("call", call, 10.0)
        beside.cancel()
        return turns - before

    monkeypatch.setattr(threads, "QUICK_S", 20.0)
    assert asyncio.run(turns_of_others(lambda: time.sleep(0.005))) <= 3
    monkeypatch.setattr(threads, "QUICK_S", 0.01)
    assert asyncio.run(turns_of_others(lambda: time.sleep(0.2))) > 3
