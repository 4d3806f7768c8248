"""A part of a reward of your own: pay for brevity, beside the part that pays for the right answer.

In the folder of this file:

    rlvr train --config-name rpn_test reward.parts.brief.type=my_reward:Brief reward.parts.brief.weight=0.2

The fields of the class are its settings, `reward.parts.brief.*`; `metrics.jsonl` has its value as `reward/brief`.
"""

from rlvr.rewards.base import Part
from rlvr.settings import PositiveInt, setting
from rlvr.types import Attempt, StopReason


class Brief(Part):
    """1 for an episode of at most `free_tokens` tokens, and less for a longer one."""

    free_tokens: PositiveInt = setting(6, "sampled tokens that cost nothing, those of all turns together")

    def grade(self, attempt: Attempt) -> float | None:
        if attempt.stop_reason is StopReason.LENGTH:
            return None  # cut off before its end: counted as invalid, with the value 0
        return min(1.0, self.free_tokens / attempt.num_tokens)
