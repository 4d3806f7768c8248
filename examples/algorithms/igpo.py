"""IGPO, arXiv:2510.14967: a turn is worth what it adds to the probability of the right answer.

rlvr train algorithm=igpo:IGPO
"""

from itertools import accumulate, pairwise
from math import exp
from statistics import fmean, pstdev

from rlvr.algorithms import ClippedRatio
from rlvr.algorithms.advantages import Estimate
from rlvr.algorithms.columns import FromGold
from rlvr.settings import NonNegativeFloat, setting


class IGPO(ClippedRatio):
    """A = the normalized reward + weight * the normalized gains of this turn and the later ones."""

    compares_groups = True
    weight: NonNegativeFloat = setting(1.0, "weight of the gains")

    def columns(self):
        return super().columns() | {"turns": FromGold(self.of_turns)}

    def advantages(self, batch, penalties, mask):
        return Estimate(advantages=batch.columns["turns"])

    def gains(self, gold):
        """Of every turn but the last, whose worth is the reward."""
        return [[exp(after) - exp(before) for before, after in pairwise(one)] for one in gold]

    def of_turns(self, group, gold):
        gains, rewards = self.gains(gold), [episode.score.value for episode in group.episodes]
        flat = iter(normalized([gain for one in gains for gain in one]))
        worth = [
            [*(self.weight * next(flat) for _ in one), last]
            for one, last in zip(gains, normalized(rewards), strict=True)
        ]
        return [list(accumulate(reversed(one)))[::-1] for one in worth]


def normalized(values):
    known = [value for value in values if value == value]  # an error has no reward
    mean, std = fmean(known or [0.0]), pstdev(known or [0.0])
    return [(value - mean) / (std + 1e-4) if value == value else 0.0 for value in values]
