"""Whole episodes with tools: real environments, chat and engine, a tiny model that calls tools by chance."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from rlvr.core.batch import episode_rows, to_batch
from rlvr.core.engine.engine import LocalEngine
from rlvr.envs.tool_env import ToolEnv
from rlvr.envs.tools import make_tool
from rlvr.threads import CallThreads
from rlvr.types import Completion, Episode, SamplingParams, StopReason
from tests.unit.core.fakes import FakeEngine, completion, group
from tests.unit.core.tool_play import (
    CONTEXT_TOKENS,
    DONE,
    Recorder,
    Script,
    Shelf,
    call,
    chat,
    make_engine,
    make_env,
    make_tools,
    play,
    read,
    search,
    wait_until,
)

pytestmark = pytest.mark.slow


def encoded(text: str) -> tuple[int, ...]:
    return tuple(chat()._tokenizer.encode(text, add_special_tokens=False))


@settings(max_examples=25, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
@given(
    seed=st.integers(0, 10**6),
    num_episodes=st.integers(1, 5),
    max_turns=st.integers(1, 5),
    max_batch_size=st.integers(1, 6),
    context=st.sampled_from([256, CONTEXT_TOKENS]),
)
def test_pitfall_06_trained_ids_are_sampled_ids_with_tools(
    seed: int, num_episodes: int, max_turns: int, max_batch_size: int, context: int
) -> None:
    recorder = Recorder(make_engine(max_batch_size))

    async def batch() -> list[Episode]:
        envs = [make_env(f"house {index}", max_turns=max_turns) for index in range(num_episodes)]
        return await asyncio.gather(*(play(env, recorder, seed + i, context=context) for i, env in enumerate(envs)))

    episodes = asyncio.run(batch())
    heard = {tuple(calls) for calls in recorder.calls.values()}
    assert len(heard) == num_episodes
    for episode in episodes:
        calls = tuple((turn.prompt_ids, turn.completion) for turn in episode.turns)
        assert calls in heard  # nothing was changed between engine and record
        assert_extended(episode)
    assert_masks(episodes)
    assert not recorder.engine._scheduler.parked


def assert_extended(episode: Episode) -> None:
    """Each prompt is the one before with its completion, and something behind them."""
    for before, after in pairwise(episode.turns):
        known = before.prompt_ids + before.completion.token_ids
        assert after.prompt_ids[: len(known)] == known
        assert len(after.prompt_ids) > len(known)


def assert_masks(episodes: Sequence[Episode]) -> None:
    """One row an episode, with mask 1 exactly on what was sampled, and its log-probabilities there."""
    batch = to_batch([group(episode) for episode in episodes])
    assert len(batch.ids) == len(episodes)
    for row, episode in enumerate(episodes):
        ids, mask, logprobs = (x[row].tolist() for x in (batch.ids, batch.loss_mask, batch.behavior_logprobs))
        whole = episode.turns[-1].prompt_ids + episode.turns[-1].completion.token_ids
        assert ids[: batch.lengths[row]] == list(whole)
        expected = [0.0] * len(ids)
        spans = []
        for turn in episode.turns:
            span = slice(len(turn.prompt_ids), len(turn.prompt_ids) + len(turn.completion.token_ids))
            assert tuple(ids[span]) == turn.completion.token_ids
            expected[span] = torch.tensor(turn.completion.behavior_logprobs).tolist()
            spans += range(len(ids))[span]
        assert [place for place, sampled in enumerate(mask) if sampled] == spans
        assert logprobs == expected


def test_the_random_episodes_do_everything_that_can_be_done() -> None:
    """The property above says nothing if no tool is ever called."""
    recorder = Recorder(make_engine(16))

    async def batch() -> list[Episode]:
        return await asyncio.gather(*(play(make_env(f"house {i}"), recorder, i) for i in range(60)))

    episodes = asyncio.run(batch())
    assert {len(episode.turns) for episode in episodes} == {1, 2, 3, 4}
    assert {episode.stop_reason for episode in episodes} >= {StopReason.STOP, StopReason.MAX_TURNS}
    totals = {
        name: sum(float(episode.score.diagnostics[name]) for episode in episodes)
        for name in ("tool_calls", "tool_errors", "malformed_calls", "unknown_tools", "invalid_arguments")
    }
    assert min(totals.values()) >= 3
    assert totals["tool_calls"] > totals["tool_errors"]
    sampled = [turn.completion.token_ids for episode in episodes for turn in episode.turns]
    assert sum(encoded(chat().decode(ids)) != ids for ids in sampled) >= 5


def test_pitfall_05_tool_replies_are_not_in_the_mask() -> None:
    async def one(seed: int) -> Episode:
        return await play(make_env("house 7"), make_engine(), seed)

    episode = next(e for e in (asyncio.run(one(seed)) for seed in range(50)) if e.score.value > 0 and len(e.turns) > 1)
    (row,) = episode_rows(episode)
    hidden = chat().decode([token for token, sampled in zip(row.ids, row.loss_mask, strict=True) if not sampled])
    shown = chat().decode([token for token, sampled in zip(row.ids, row.loss_mask, strict=True) if sampled])
    assert " of house 7\n" in hidden
    assert " of house 7\n" not in shown
    assert "<tool_call>" in shown


TURNS = (
    '<tool_call>{"name": "search", "arguments": {"query": "alpha"}}</tool_call>'
    '<tool_call>{"name": "slowly", "arguments": {"doc_id": "beta"}}</tool_call>',
    '<tool_call>{"name": "read", "arguments": {"doc_id": "delta"}}</tool_call>',
    '<tool_call>{"name": "complete", "arguments": {"answer": "alpha"}}</tool_call>',
)


class InstantEngine(FakeEngine):
    """Says the turns above in each session. Turns of different episodes are mixed at random."""

    def __init__(self) -> None:
        super().__init__()
        self._ids = [encoded(f"{text}<|im_end|>") for text in TURNS]
        self._random = random.Random(0)
        self._turns: Counter[Hashable] = Counter()

    async def sample(self, sampling: SamplingParams) -> Completion:
        session = self.sessions[-1]
        self._turns[session] += 1
        ids = self._ids[self._turns[session] - 1]
        for _ in range(self._random.randrange(5)):
            await asyncio.sleep(0)
        return completion(*ids)


def slowly(doc_id: str, state: Shelf) -> str:
    """Read, in a thread."""
    state.seen.append(doc_id)
    return f"{doc_id} of {state.owner}"


def test_pitfall_38_episodes_never_see_each_others_documents() -> None:
    engine, tools = InstantEngine(), make_tools(search, slowly, read)

    async def batch() -> list[tuple[ToolEnv, Episode]]:
        envs = [make_env(f"house-{index}-", tools) for index in range(300)]
        return list(zip(envs, await asyncio.gather(*(play(env, engine, 0) for env in envs)), strict=True))

    for index, (env, episode) in enumerate(asyncio.run(batch())):
        own = f"house-{index}-"
        text = chat().decode(episode.turns[-1].prompt_ids)
        for document in ("alpha 0", "alpha 2", "beta", "delta"):
            assert f"{document} of {own}" in text
        assert text.count("house-") == text.count(own) == 6  # the question and five documents
        state = env._state
        assert state == Shelf(own, seen=["alpha", "beta"])
        assert (episode.score.value, len(episode.turns), episode.stop_reason) == (2.0, 3, StopReason.STOP)
        assert episode.score.diagnostics["tool_errors"] == 0.0
    assert len(engine.released) == len(set(engine.released)) == 300


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_pitfall_27_a_batch_does_not_wait_for_a_slow_tool(kind: str) -> None:
    """The slow tool waits until all others have ended: if they waited for it too, nothing would ever end."""
    others_ended = threading.Event()

    def wait() -> str:
        """Wait."""
        return str(others_ended.wait(20))

    async def wait_too() -> str:
        """Wait."""
        while not others_ended.is_set():
            await asyncio.sleep(0.001)
        return "True"

    slow = make_tool(wait if kind == "thread" else wait_too, timeout_s=20.0)
    engine, quick = make_engine(4), make_tools()

    async def batch() -> Episode:
        waiting = asyncio.create_task(
            play(make_env("slow", [slow, *quick]), engine, 0, codec=Script([call(slow.name)], DONE))
        )
        turns = [[call("search", query="alpha")], [call("read", doc_id="beta")], DONE]
        await asyncio.gather(*(play(make_env(f"{i}"), engine, i, codec=Script(*turns)) for i in range(1, 12)))
        assert not waiting.done()
        others_ended.set()
        return await waiting

    episode = asyncio.run(batch())
    assert "True" in chat().decode(episode.turns[1].prompt_ids)


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
    assert "Error: hang: it timed out after 0.1 s" in told[0]
    assert "Error: hang_too: it timed out after 0.1 s" in told[1]
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
