from rlvr.algorithms.algorithm import TokenReturns
from rlvr.registry import register


@register("algorithm", "reinforce_pp")
class ReinforcePP(TokenReturns):
    """REINFORCE++, arXiv:2501.03262: token returns normalized over the whole batch."""

    def advantages(self, batch, penalties, mask):
        from rlvr.algorithms.advantages import batch_normalized_returns

        return batch_normalized_returns(batch, penalties, mask, gamma=self.gamma)
