"""Rejection-sampling fine-tuning, online: maximum likelihood of the right samples of each step.

rlvr train algorithm=rft:Rft
"""

from rlvr.algorithms import ClippedRatio
from rlvr.algorithms.advantages import Estimate


class Rft(ClippedRatio):
    """A = 1 for a right completion, else 0; no baseline, no wrong samples."""

    def advantages(self, batch, penalties, mask):
        return Estimate(advantages=(batch.rewards > 0.5).to(penalties.dtype)[:, None].expand(mask.shape))
