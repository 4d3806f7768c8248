"""Settings for the tests of the RPN task."""

from typing import Any

from rlvr.config.schema import RpnReward
from rlvr.config.schema import RpnTask as RpnSettings
from rlvr.tasks.rpn import RpnTask

MODULAR = {
    "name": "rpn",
    "operators": ("+", "-", "*"),
    "operand_range": (0, 6),
    "modulus": 7,
    "max_abs_value": None,
    "shape": "tree",
    "complexity_range": (1, 3),
    "complexity_weights": None,
    "eval_complexity_weights": None,
    "held_out_share": 0.1,
    "max_prompt_tokens": 9,
}


def make_reward(**changes: Any) -> RpnReward:
    usual = {"type": "correct", "boxed_weight": 0.3, "correct_weight": 0.7, "max_error_share": 0.2}
    return RpnReward(**({"name": "rpn"} | usual | changes))


def make_settings(**changes: Any) -> RpnSettings:
    return RpnSettings(**(MODULAR | changes))


def make_task(seed: int = 0, reward: RpnReward | None = None, **changes: Any) -> RpnTask:
    return RpnTask(make_settings(**changes), seed, reward or make_reward())


INTEGERS = {"modulus": None, "max_abs_value": 20, "operand_range": (-2, 5)}
