"""Whole episodes with tools: real environments, chat and engine, over a tiny model that calls tools by chance."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Hashable, Sequence

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from rlvr.core.batch import episode_rows, to_batch
from rlvr.envs.tool_env import ToolEnv
from rlvr.envs.tools import make_tool
from rlvr.types import Completion, Episode, Example, Group, SamplingParams, StopReason
from tests.unit.core.tool_play import (
    DONE,
    Recorder,
    Script,
    Shelf,
    call,
    chat,
    make_engine,
    make_env,
    make_tools,
    model,
    play,
    read,
    search,
)
from tests.unit.core.walker import CONTEXT_TOKENS

# ------------------------------------------------------------------------------------------------- token in, token out


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
    assert not recorder.engine._scheduler.parked  # pyright: ignore[reportPrivateUsage]


def assert_extended(episode: Episode) -> None:
    """Each prompt is the one before with its completion, and something behind them."""
    for before, after in zip(episode.turns, episode.turns[1:], strict=False):
        known = before.prompt_ids + before.completion.token_ids
        assert after.prompt_ids[: len(known)] == known
        assert len(after.prompt_ids) > len(known)


def assert_masks(episodes: Sequence[Episode]) -> None:
    """One row an episode, with mask 1 exactly on what was sampled, and its log-probabilities there."""
    examples = [Example(id=episode.example_id, messages=(), answer="") for episode in episodes]
    batch = to_batch([Group(example=x, episodes=(e,)) for x, e in zip(examples, episodes, strict=True)])
    assert len(batch.ids) == len(episodes)
    for row, episode in enumerate(episodes):
        sampled = [token for turn in episode.turns for token in turn.completion.token_ids]
        logprobs = [value for turn in episode.turns for value in turn.completion.behavior_logprobs]
        assert batch.ids[row][batch.loss_mask[row]].tolist() == sampled
        assert torch.equal(batch.behavior_logprobs[row][batch.loss_mask[row]], torch.tensor(logprobs))
        assert not batch.behavior_logprobs[row][~batch.loss_mask[row]].any()
        last = episode.turns[-1]
        whole = last.prompt_ids + last.completion.token_ids
        assert batch.ids[row, : batch.lengths[row]].tolist() == list(whole)
        position = 0
        for turn in episode.turns:
            position = len(turn.prompt_ids)
            end = position + len(turn.completion.token_ids)
            assert batch.loss_mask[row, position:end].all()
        assert int(batch.loss_mask[row].sum()) == len(sampled)
        assert not batch.loss_mask[row, len(whole) :].any()


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
    encodes = [
        tuple(chat()._tokenizer.encode(chat().decode(ids), add_special_tokens=False)) == ids  # pyright: ignore
        for episode in episodes
        for ids in (turn.completion.token_ids for turn in episode.turns)
    ]
    assert encodes.count(False) >= 5


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


def test_pitfall_31_keys_and_values_are_kept_across_turns() -> None:
    """Every token goes through the model once, but the last one, which nothing follows."""
    engine = make_engine()
    seen: list[int] = []
    hook = model().get_input_embeddings().register_forward_pre_hook(lambda _, args: seen.append(args[0].numel()))
    try:
        for seed in range(12):
            seen.clear()
            episode = asyncio.run(play(make_env("house 7"), engine, seed))
            (row,) = episode_rows(episode)
            assert sum(seen) == len(row.ids) - 1
    finally:
        hook.remove()


class InstantEngine:
    """Three turns: search and read at once, read, complete. Turns of different episodes are mixed at random."""

    policy_version = 0

    def __init__(self) -> None:
        texts = (
            '<tool_call>{"name": "search", "arguments": {"query": "alpha"}}</tool_call>'
            '<tool_call>{"name": "slowly", "arguments": {"doc_id": "beta"}}</tool_call>',
            '<tool_call>{"name": "read", "arguments": {"doc_id": "delta"}}</tool_call>',
            '<tool_call>{"name": "complete", "arguments": {"answer": "alpha"}}</tool_call>',
        )
        self._ids = [tuple(chat()._tokenizer.encode(f"{text}<|im_end|>", add_special_tokens=False)) for text in texts]  # pyright: ignore
        self._random = random.Random(0)
        self.sessions: dict[Hashable, int] = {}

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, *, session: Hashable | None = None
    ) -> Completion:
        turn = self.sessions.setdefault(session, 0)
        self.sessions[session] += 1
        for _ in range(self._random.randrange(5)):
            await asyncio.sleep(0)
        zeros = (0.0,) * len(self._ids[turn])
        return Completion(
            token_ids=self._ids[turn],
            behavior_logprobs=zeros,
            sampling_logprobs=zeros,
            stop_reason=StopReason.STOP,
            policy_version=0,
        )

    def release(self, session: Hashable) -> None:
        del self.sessions[session]

    def load_weights(self, version: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


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
        state = env._state  # pyright: ignore[reportPrivateUsage]
        assert state == Shelf(own, seen=["alpha", "beta"])
        assert (episode.score.value, len(episode.turns), episode.stop_reason) == (2.0, 3, StopReason.STOP)
        assert episode.score.diagnostics["tool_errors"] == 0.0
    assert engine.sessions == {}


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
