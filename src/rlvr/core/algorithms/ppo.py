"""Algorithms in which each token has its own return."""

from rlvr.core.algorithms.advantages import batch_normalized_returns, generalized_advantages
from rlvr.core.algorithms.algorithm import SEVERAL_UPDATES, Critic, NumEpochs, NumMinibatches, TokenReturns
from rlvr.core.algorithms.losses import clipped_value_loss
from rlvr.registry import register
from rlvr.settings import PositiveFloat, Share, setting


@register("algorithm", "reinforce_pp")
class ReinforcePP(TokenReturns):
    """REINFORCE++, arXiv:2501.03262: token returns normalized over the whole batch."""

    def advantages(self, batch, penalties, mask):
        return batch_normalized_returns(batch, penalties, mask, gamma=self.gamma)


@register("algorithm", "ppo")
class Ppo(TokenReturns, Critic):
    """PPO, arXiv:1707.06347, with a critic on the policy's trunk."""

    num_epochs: NumEpochs = 2
    num_minibatches: NumMinibatches = 2
    gae_lambda: Share = setting(
        1.0, "lambda of generalized advantage estimation; 1: Monte-Carlo returns minus the critic"
    )
    value_clip: PositiveFloat | None = setting(
        0.2, "clip range of the critic's update; null: no clipping", only_if=f"value_coef > 0 and {SEVERAL_UPDATES}"
    )
    whiten_advantages: bool = setting(True, "normalize advantages over the batch")
    target_kl: PositiveFloat | None = setting(
        None,
        "skip a batch's remaining updates once KL(old || current) exceeds 1.5 x this; null: never",
        only_if=SEVERAL_UPDATES,
    )

    def advantages(self, batch, penalties, mask):
        settings = {"gamma": self.gamma, "gae_lambda": self.gae_lambda, "whiten_advantages": self.whiten_advantages}
        return generalized_advantages(batch, penalties, mask, **settings)

    def value_loss(self, values, old_values, returns):
        """Squared error, clipped around the old values."""
        return clipped_value_loss(values, old_values, returns, value_clip=self.value_clip)

    def stop_early(self, approx_kl: float) -> bool:
        return self.target_kl is not None and approx_kl > 1.5 * self.target_kl
