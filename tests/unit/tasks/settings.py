"""Settings for the tests of the RPN task."""

from typing import Any

from rlvr.rewards.parts import PartsVerifier
from rlvr.rewards.rpn import RpnBoxed, RpnCorrect
from rlvr.tasks.rpn import Rpn, RpnTask

MODULAR = {
    "complexity_weights": None,
    "eval_complexity_weights": None,
    "max_prompt_tokens": 9,
}


def make_reward(boxed: float = 0.0, correct: float = 1.0) -> PartsVerifier:
    """With these weights."""
    return PartsVerifier({"boxed": RpnBoxed(weight=boxed), "correct": RpnCorrect(weight=correct)})


def make_settings(**changes: Any) -> Rpn:
    return Rpn(**(MODULAR | changes))


def make_task(seed: int = 0, reward: PartsVerifier | None = None, **changes: Any) -> RpnTask:
    return RpnTask(make_settings(**changes), seed, reward or make_reward())


INTEGERS = {"modulus": None, "max_abs_value": 20, "operand_range": (-2, 5)}
