"""Clip-Cov, arXiv:2505.22617: the tokens that lower the entropy most get no gradient.

rlvr train algorithm=clip_cov:ClipCov algorithm.share=0.02
"""

from rlvr.algorithms.advantages import Estimate
from rlvr.algorithms.grpo import Grpo
from rlvr.settings import Share, setting


class ClipCov(Grpo):
    """GRPO without the tokens of the largest covariance of log-probability and advantage. (The paper draws them at
    random between two bounds.)"""

    share: Share = setting(0.02, "tokens without gradient", gt=0)

    def advantages(self, batch, penalties, mask):
        advantages = super().advantages(batch, penalties, mask).advantages.masked_fill(~mask, 0.0)
        logprobs, chosen = batch.behavior_logprobs[mask].nan_to_num(), advantages[mask]
        covariance = (logprobs - logprobs.mean()) * (chosen - chosen.mean())
        kept = covariance <= covariance.quantile(1 - self.share)
        return Estimate(advantages=advantages.masked_scatter(mask, chosen * kept))
