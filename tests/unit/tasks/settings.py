"""The RPN task for tests: small settings, rewards, scores."""

from typing import Any

from rlvr.rewards.parts import PartsVerifier
from rlvr.rewards.rpn import RpnBoxed, RpnCorrect
from rlvr.tasks.rpn import Rpn, RpnTask
from rlvr.types import Attempt, Example, Message, Score, StopReason
from tests.unit.rewards.attempts import finished

MODULAR = {"complexity_weights": None, "eval_complexity_weights": None, "max_prompt_tokens": 9}
INTEGERS = {"modulus": None, "max_abs_value": 20, "operand_range": (-2, 5)}


def make_reward(boxed: float = 0.0, correct: float = 1.0) -> PartsVerifier:
    return PartsVerifier({"boxed": RpnBoxed(weight=boxed), "correct": RpnCorrect(weight=correct)})


def make_settings(**changes: Any) -> Rpn:
    return Rpn(**(MODULAR | changes))


def make_task(seed: int = 0, reward: PartsVerifier | None = None, **changes: Any) -> RpnTask:
    return RpnTask(make_settings(**changes), seed, reward or make_reward())


def score(task: RpnTask, prompt: str, completion: str, answer: str) -> Score:
    example = Example(id="", messages=(Message(role="user", content=prompt),), answer=answer)
    text = completion.removesuffix(" <eoe>")
    attempt = Attempt(
        example=example, completion=completion, text=text, stop_reason=StopReason.STOP, num_tokens=1,
        state=task.arithmetic,
    )  # fmt: skip
    return finished(task.verifier.verify(attempt))
