"""MaxRL, arXiv:2602.02710: the group's mean divides, not its standard deviation: rarely solved prompts weigh more.

rlvr train algorithm=max_rl:MaxRL
"""

from statistics import fmean

from rlvr.algorithms import ClippedRatio
from rlvr.algorithms.advantages import Estimate
from rlvr.algorithms.columns import PerEpisode


class MaxRL(ClippedRatio):
    """A = (r - mean) / mean; 0 in a group that is all wrong."""

    compares_groups = True

    def columns(self):
        return super().columns() | {"mean": PerEpisode(mean)}

    def advantages(self, batch, penalties, mask):
        center = batch.columns["mean"]
        return Estimate(advantages=((batch.rewards - center) / center.clamp(min=1e-4))[:, None].expand(mask.shape))


def mean(group, episode):
    return fmean([e.score.value for e in group.episodes if e.score.status != "error"] or [0.0])
