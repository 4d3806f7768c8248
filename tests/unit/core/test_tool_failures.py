"""Episodes in which tools or the engine fail: the batch goes on, and nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from rlvr.core.engine.engine import LocalEngine
from rlvr.envs.tools import make_tool
from rlvr.threads import CallThreads
from rlvr.types import Completion, SamplingParams, StopReason
from tests.unit.core.tool_play import (
    DONE,
    Recorder,
    Script,
    call,
    chat,
    make_engine,
    make_env,
    make_tools,
    play,
    wait_until,
)


class FailingEngine(Recorder):
    """Gives up, or breaks, in the second turn of the sessions that are marked."""

    def __init__(self, engine: LocalEngine, how: dict[int, str]) -> None:
        super().__init__(engine)
        self._how = how

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, *, session: Hashable | None = None, **_: Any
    ) -> Completion:
        completion = await super().generate(prompt_ids, sampling, session=session)
        how = self._how.get(sampling.seed)
        if how == "raise":
            raise ConnectionError("the engine is gone")
        return completion if how is None else replace(completion, stop_reason=StopReason.ABORTED)


def test_pitfall_27_a_batch_survives_failing_tools_and_engines() -> None:
    wake = threading.Event()

    def hang() -> str:
        """Hang."""
        wake.wait(30)
        return ""

    async def hang_too() -> str:
        """Hang."""
        await asyncio.sleep(30)
        return ""

    def fail() -> str:
        """Fail."""
        raise ZeroDivisionError("by zero")

    def odd() -> object:
        """Odd."""
        return {"found": [1, None]}

    def huge() -> str:
        """Huge."""
        return "x" * 10_000_000

    threads = CallThreads()
    bad = [make_tool(f, timeout_s=0.1, threads=threads) for f in (hang, hang_too)]
    bad += [make_tool(f, timeout_s=10.0, threads=threads) for f in (fail, odd, huge)]
    tools = [*bad, *make_tools()]
    engine = FailingEngine(make_engine(4), {1000 * 5 + 1: "abort", 1000 * 6 + 1: "raise"})

    async def batch() -> tuple[list[Any], int]:
        scripts = [Script([call(tool.name)], DONE) for tool in bad]
        scripts += [Script([call("search", query="alpha")], DONE) for _ in range(5)]
        playing = [play(make_env(f"{i}", tools), engine, i, codec=script) for i, script in enumerate(scripts)]
        return await asyncio.gather(*playing, return_exceptions=True), len(asyncio.all_tasks())

    before = threading.active_count()
    episodes, num_tasks = asyncio.run(batch())
    assert isinstance(episodes.pop(6), ConnectionError)
    told = [chat().decode(episode.turns[-1].prompt_ids) for episode in episodes]
    assert "Error: hang: it took more than 0.1 s and was given up" in told[0]
    assert "Error: hang_too: it took more than 0.1 s and was given up" in told[1]
    assert "Error: fail: ZeroDivisionError: by zero" in told[2]
    assert '{"found":[1,null]}' in told[3]
    stops = [StopReason.STOP] * 4 + [StopReason.LENGTH, StopReason.ABORTED] + [StopReason.STOP] * 3
    assert [episode.stop_reason for episode in episodes] == stops
    scores = [episode.score for episode in episodes]
    assert [score.status for score in scores] == ["scored"] * 5 + ["error"] + ["scored"] * 3
    assert [score.diagnostics.get("tool_timeouts") for score in scores[:3]] == [1.0, 1.0, 0.0]
    assert len(engine.released) == 10
    assert not engine.engine._scheduler.parked
    wake.set()
    wait_until(lambda: threading.active_count() <= before)
    assert num_tasks <= 2  # the batch itself, and the engine's, which ends by itself
    gc.collect()


def test_pitfall_27_giving_a_batch_up_ends_its_tools() -> None:
    started = []

    async def hang() -> str:
        """Hang."""
        started.append(True)
        await asyncio.sleep(30)
        return ""

    engine = make_engine(4)
    tools = [make_tool(hang, timeout_s=20.0), *make_tools()]

    async def batch() -> set[asyncio.Task[Any]]:
        playing = [
            asyncio.create_task(play(make_env(f"{i}", tools), engine, i, codec=Script([call("hang")])))
            for i in range(5)
        ]
        while len(started) < 5:
            assert not any(task.done() for task in playing)
            await asyncio.sleep(0)
        for task in playing:
            task.cancel()
        found = await asyncio.gather(*playing, return_exceptions=True)
        assert {type(error) for error in found} == {asyncio.CancelledError}
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert asyncio.run(batch()) == set()
    assert not engine._scheduler.parked
