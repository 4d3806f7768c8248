import asyncio
import math

import pytest

from rlvr.core.env import Reply
from rlvr.envs.single_turn import SingleTurnEnv
from rlvr.rewards.base import RewardError
from rlvr.rewards.expressions import Arithmetic
from rlvr.rewards.parts import PartsVerifier
from rlvr.rewards.rpn import RpnBoxed, RpnCorrect, RpnVerifier
from rlvr.types import Attempt, Example, Message, Score, StopReason, TurnText

EXAMPLE = Example(id="3 1 +", messages=(Message(role="user", content="<boe> 3 1 + ="),), answer="4")
VERIFIER = RpnVerifier(PartsVerifier({"boxed": RpnBoxed(weight=0.0), "correct": RpnCorrect()}))


def make_env() -> SingleTurnEnv:
    return SingleTurnEnv(EXAMPLE, VERIFIER, Arithmetic(operators=("+",), smallest=0, largest=6, modulus=7))


def turn(completion: str) -> TurnText:
    text = completion.removesuffix(" <eoe>")
    prompt = EXAMPLE.messages[0].content
    return TurnText(prompt=prompt, completion=completion, text=text, stop_reason=StopReason.STOP, num_tokens=2)


def test_an_episode_is_one_completion() -> None:
    async def episode() -> None:
        env = make_env()
        assert await env.start() == EXAMPLE.messages
        assert await env.step(Message(role="assistant", content="4 <eoe>")) == Reply(messages=(), done=True)
        assert (await env.score([turn("4 <eoe>")])).parts == {"boxed": 1.0, "correct": 1.0}

    asyncio.run(episode())


@pytest.mark.parametrize(
    ("completion", "status", "value"),
    [
        ("4 <eoe>", "scored", 1.0),
        ("5 <eoe>", "scored", 0.0),
        ("4", "invalid", 0.0),
        ("7 <eoe>", "invalid", 0.0),  # no word of the arithmetic that the environment hands on
    ],
)
def test_the_score_is_the_verifiers(completion: str, status: str, value: float) -> None:
    score = asyncio.run(make_env().score([turn(completion)]))
    assert (score.status, score.value) == (status, value)


class Broken:
    """A verifier that returns NaN for one completion only."""

    name = "broken"

    async def verify(self, attempt: Attempt) -> Score:
        return Score(value=math.nan if attempt.completion == "bad" else float(attempt.text))


def test_pitfall_29_every_completion_gets_its_own_finite_score() -> None:
    async def group(completions: list[str]) -> list[float]:
        envs = [SingleTurnEnv(EXAMPLE, Broken()) for _ in completions]
        scores = await asyncio.gather(*(e.score([turn(c)]) for e, c in zip(envs, completions, strict=True)))
        return [one.value for one in scores]

    assert asyncio.run(group(["0", "3", "1", "2"])) == [0.0, 3.0, 1.0, 2.0]
    with pytest.raises(RewardError, match=r"reward 'broken' returned .*value=nan"):
        asyncio.run(group(["0", "bad", "1"]))
