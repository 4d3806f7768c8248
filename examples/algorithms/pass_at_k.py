"""Pass@k training, arXiv:2508.10751, analytic: the reward of k samples is 1 if one of them is right.

rlvr train algorithm=pass_at_k:PassAtK algorithm.k=2
"""

from math import comb, sqrt

from rlvr.algorithms import ClippedRatio
from rlvr.algorithms.advantages import Estimate
from rlvr.algorithms.columns import PerEpisode
from rlvr.settings import PositiveInt, setting


class PassAtK(ClippedRatio):
    """The normalized reward of a set of k completions, averaged over all sets of the group that hold the completion."""

    compares_groups = True
    k: PositiveInt = setting(4, "completions of an attempt, at most rollout.group_size")

    def columns(self):
        return super().columns() | {"advantage": PerEpisode(self.advantage)}

    def advantages(self, batch, penalties, mask):
        return Estimate(advantages=batch.columns["advantage"][:, None].expand(mask.shape))

    def advantage(self, group, episode):
        rights = [e.score.value > 0.5 for e in group.episodes if e.score.status != "error"]
        n, wrong, k = len(rights), rights.count(False), min(self.k, len(rights))
        if episode.score.status == "error" or wrong in (0, n) or comb(wrong, k) == 0:
            return 0.0  # every set of k has the same reward
        mean = 1 - comb(wrong, k) / comb(n, k)
        own = 1.0 if episode.score.value > 0.5 else 1 - comb(wrong - 1, k - 1) / comb(n - 1, k - 1)
        return (own - mean) / sqrt(mean * (1 - mean))
