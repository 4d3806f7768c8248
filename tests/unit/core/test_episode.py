"""Episodes with a scripted engine: what was sampled is kept, prompts are only extended, failures are records."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import pytest

from rlvr.core.batch import episode_rows
from rlvr.core.env import Reply, TurnText
from rlvr.core.episode import ChatModel, run_episode
from rlvr.errors import UserError
from rlvr.rewards.base import RewardError
from rlvr.types import Completion, Episode, Example, Message, SamplingParams, Score, StopReason, ToolSchema
from tests.unit.core.fakes import FakeChat, FakeEngine, completion

STOP = 9
EXAMPLE = Example(id="e", messages=(Message(role="user", content="ab"),), answer="c")


class LetterCodec(FakeChat):
    """Letters a, b, c ... are 10, 11, 12, ...; 9 is the stop token; 30 is another way to write "ab".

    `encode(decode([30])) == [10, 11]`, as with real tokenizers: text does not say which ids were sampled.
    """

    stop_ids = frozenset({STOP})

    def __init__(self) -> None:
        self.told: list[list[str]] = []

    def encode_prompt(self, messages: Sequence[Message], tools: Sequence[object] = ()) -> tuple[int, ...]:
        return tuple(ord(letter) - ord("a") + 10 for message in messages for letter in message.content)

    def next_prompt(
        self,
        prompt_ids: tuple[int, ...],
        completion_ids: tuple[int, ...],
        conversation: Sequence[Message],
        reply: Sequence[Message],
        tools: Sequence[object] = (),
    ) -> tuple[int, ...]:
        assert completion_ids[-1] == STOP
        self.told.append([message.content for message in conversation])
        return (*prompt_ids, *completion_ids, *self.encode_prompt(reply), 7)  # 7: header of the next completion

    def decode(self, ids: Sequence[int]) -> str:
        return "".join({STOP: "$", 7: ">", 30: "ab"}.get(token) or chr(token - 10 + ord("a")) for token in ids)


class ScriptedEngine(FakeEngine):
    """Returns the scripted completions in turn."""

    def __init__(self, *script: tuple[int, ...], stop: StopReason = StopReason.STOP) -> None:
        super().__init__()
        self.script, self.stop = script, stop

    async def sample(self, sampling: SamplingParams) -> Completion:
        ids = self.script[len(self.prompts) - 1]
        if not ids:
            raise ConnectionError("the engine is gone")
        return completion(*ids, stop=self.stop, logprobs=[-0.125 * (i + 1) for i in range(len(ids))])


class TalkingEnv:
    """Answers "d" until `num_turns` completions were made."""

    max_turns: int | None = None
    tools: tuple[ToolSchema, ...] = ()

    def __init__(self, num_turns: int, error: Exception | None = None) -> None:
        self.num_turns, self.error = num_turns, error
        self.heard: list[str] = []
        self.scored: list[TurnText] = []

    async def start(self) -> tuple[Message, ...]:
        return EXAMPLE.messages

    async def step(self, said: Message) -> Reply:
        self.heard.append(said.content)
        done = len(self.heard) >= self.num_turns
        return Reply(messages=() if done else (Message(role="tool", content="d"),), done=done)

    async def score(self, turns: Sequence[TurnText]) -> Score:
        self.scored = list(turns)
        if self.error:
            raise self.error
        return Score(value=1.0)


def run(engine: ScriptedEngine, env: TalkingEnv, codec: LetterCodec | None = None, *, context: int = 100) -> Episode:
    def sampling(turn: int) -> SamplingParams:
        return SamplingParams(max_tokens=8, stop_ids=frozenset({STOP}), seed=100 + turn)

    model = ChatModel(engine=engine, chat=codec or LetterCodec(), max_context_tokens=context)
    return asyncio.run(run_episode(EXAMPLE, env, model, sampling, sample_index=3, seed=17))


def two_turns() -> ScriptedEngine:
    return ScriptedEngine((30, 12, STOP), (11, STOP))


def test_pitfall_06_trained_ids_are_sampled_ids() -> None:
    engine = two_turns()
    episode = run(engine, TalkingEnv(2))
    first, second = (30, 12, STOP), (11, STOP)
    assert LetterCodec().decode((30,)) == "ab"  # which would be encoded as 10 11
    assert [turn.completion.token_ids for turn in episode.turns] == [first, second]
    assert engine.prompts == [(10, 11), (10, 11, *first, 13, 7)]
    (row,) = episode_rows(episode)
    assert row.ids == (10, 11, *first, 13, 7, *second)  # the reply and the header are not trained on
    assert row.loss_mask == (False, False, True, True, True, False, False, True, True)
    assert row.behavior_logprobs == (0, 0, -0.125, -0.25, -0.375, 0, 0, -0.125, -0.25)


@pytest.mark.parametrize(
    ("script", "stop", "num_turns", "ends", "status"),
    [
        ([(12, 12)], StopReason.LENGTH, 2, StopReason.LENGTH, "scored"),
        ([(12,)], StopReason.ABORTED, 2, StopReason.ABORTED, "error"),  # not a wrong answer
        ([(12, STOP), (11, STOP)], StopReason.STOP, 3, StopReason.MAX_TURNS, "scored"),
        ([(12, STOP), (11, STOP)], StopReason.STOP, 2, StopReason.STOP, "scored"),
        ([(11, STOP)], StopReason.STOP, 1, StopReason.STOP, "scored"),
    ],
)
def test_how_an_episode_ends(script: Any, stop: StopReason, num_turns: int, ends: StopReason, status: str) -> None:
    engine, env = ScriptedEngine(*script, stop=stop), TalkingEnv(num_turns)
    env.max_turns = min(num_turns, 2)
    episode = run(engine, env)
    assert (episode.stop_reason, episode.score.status) == (ends, status)
    assert [turn.stop_reason for turn in env.scored] == [stop] * len(script)
    # only an end token is taken off
    assert [turn.text for turn in env.scored] == [turn.completion.removesuffix("$") for turn in env.scored]
    assert [params.seed for params in engine.requests] == [100, 101][: len(script)]  # each turn has its own
    assert len(env.heard) == (len(script) if stop is StopReason.STOP else 0)
    if num_turns == 1:  # nothing is kept for a next turn
        assert (engine.sessions, engine.released) == ([None], [])


def test_completions_never_outgrow_the_context() -> None:
    engine = two_turns()
    run(engine, TalkingEnv(2), context=11)
    assert [params.max_tokens for params in engine.requests] == [8, 4]  # 2 and 7 tokens are taken
    episode = run(two_turns(), TalkingEnv(2), context=7)  # the reply fills it
    assert (len(episode.turns), episode.stop_reason) == (1, StopReason.LENGTH)


def test_a_prompt_that_fills_the_context_is_an_error() -> None:
    with pytest.raises(UserError, match=r"prompt of example 'e' has 2 tokens.*context of 2 tokens"):
        run(two_turns(), TalkingEnv(1), context=2)


def test_a_verifier_that_raises_gives_an_error_score() -> None:
    score = run(two_turns(), TalkingEnv(1, error=ValueError("no parser for this"))).score
    assert score.status == "error"
    assert math.isnan(score.value)
    assert score.diagnostics == {"error": "ValueError: no parser for this"}


def test_pitfall_29_a_verifier_that_breaks_its_contract() -> None:
    with pytest.raises(RewardError, match="reward 'mine' returned nan"):
        run(two_turns(), TalkingEnv(1, error=RewardError("reward 'mine' returned nan")))


class RestartingEnv(TalkingEnv):
    """Says after the first completion what the conversation is from now on."""

    async def step(self, said: Message) -> Reply:
        reply = await super().step(said)
        if len(self.heard) > 1:
            return reply
        return Reply(messages=(Message(role="user", content="ef"),), done=False, restarts=True)


def test_pitfall_07_what_was_said_before_a_restart_is_forgotten() -> None:
    engine, env, codec = ScriptedEngine((12, STOP), (13, STOP), (12, STOP)), RestartingEnv(3), LetterCodec()
    episode = run(engine, env, codec)
    assert engine.prompts == [(10, 11), (14, 15), (14, 15, 13, STOP, 13, 7)]
    assert codec.told == [["ef", "d$"]]  # neither "ab" nor what was said to it
    assert [turn.restarts for turn in episode.turns] == [False, True, False]
    assert len(list(episode_rows(episode))) == 2
    # a verifier reads each turn as it came
    assert [(turn.prompt, turn.completion) for turn in env.scored] == [("ab", "c$"), ("ef", "d$"), ("d>", "c$")]


def test_the_session_is_one_per_episode_and_always_released() -> None:
    first, second = two_turns(), two_turns()
    run(first, TalkingEnv(2))
    run(second, TalkingEnv(2))
    assert first.sessions[0] is first.sessions[1] is first.released[0]
    assert first.sessions[0] != second.sessions[0]
    broken = ScriptedEngine((30, STOP), ())
    with pytest.raises(ConnectionError):
        run(broken, TalkingEnv(2))
    assert broken.released == broken.sessions[:1]
