"""KL-Cov, arXiv:2505.22617: the tokens that lower the entropy most pay a KL to the policy before the batch's updates.

rlvr train algorithm=kl_cov:KlCov algorithm.share=0.02
"""

from dataclasses import replace

from rlvr.algorithms.algorithm import NumMinibatches
from rlvr.algorithms.grpo import Grpo
from rlvr.settings import NonNegativeFloat, Share, setting


class KlCov(Grpo):
    """GRPO with a KL on the tokens of the largest covariance in a microbatch; 0 in a batch's first update."""

    num_minibatches: NumMinibatches = 4
    share: Share = setting(0.02, "tokens with a KL", gt=0)
    cov_coef: NonNegativeFloat = setting(1.0, "weight of their KL")

    def token_loss(self, log_ratio, predicted, rows, mask):
        assert rows.advantages is not None
        found = super().token_loss(log_ratio, predicted, rows, mask)
        logprobs, advantages = predicted.logprobs.detach()[mask], rows.advantages[mask]
        covariance = (logprobs - logprobs.mean()) * (advantages - advantages.mean())
        chosen = mask.masked_scatter(mask, covariance > covariance.quantile(1 - self.share))
        return replace(found, loss=found.loss + self.cov_coef * log_ratio.abs() * chosen)
