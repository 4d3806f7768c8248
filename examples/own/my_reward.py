"""A reward of your own: pay for the share of words in CAPITALS, up to a limit.

Start it in this folder, or name the folder with --config-dir:

    rlvr train --config-name gsm8k_smoke reward.parts.shout.type=my_reward:Shout reward.parts.shout.limit=0.5

`metrics.jsonl` has it as reward/shout. It runs in a process of its own that is killed after reward.timeout_s; set
`in_process = True` if it never blocks. What it raises is counted and named with file and line; None is an answer that
it cannot read.
"""

from rlvr.rewards.base import Part
from rlvr.settings import Share, setting
from rlvr.types import Attempt


class Shout(Part):
    """The share of words in capitals, at most `limit`."""

    limit: Share = setting(1.0, "share of capital words that earns the most; more earns no more")

    def grade(self, attempt: Attempt) -> float | None:
        words = [word for word in attempt.text.split() if word.isalpha()]
        if not words:
            return None
        return min(self.limit, sum(word.isupper() for word in words) / len(words))
