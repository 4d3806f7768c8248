"""Algorithms with a return per token: PPO and REINFORCE++."""

from rlvr.algorithms.advantages import Estimate, normalize_over_tokens, token_returns
from rlvr.algorithms.algorithm import SEVERAL_UPDATES, Critic, NumEpochs, NumMinibatches, TokenReturns
from rlvr.algorithms.losses import clipped_value_loss
from rlvr.registry import register
from rlvr.settings import PositiveFloat, Share, setting


@register("algorithm", "reinforce_pp")
class ReinforcePP(TokenReturns):
    """REINFORCE++, arXiv:2501.03262: token returns normalized over the whole batch."""

    def advantages(self, batch, penalties, mask):
        """A_t = (G_t - mean G) / (std G + epsilon), G_t = r_t + gamma G_{t+1}."""
        returns, _ = token_returns(batch, penalties, None, self.gamma, 1.0)
        return Estimate(advantages=normalize_over_tokens(returns, mask))


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
        """Generalized advantages; the returns are the critic's targets."""
        advantages, returns = token_returns(batch, penalties, batch.columns["values"], self.gamma, self.gae_lambda)
        advantages = normalize_over_tokens(advantages, mask) if self.whiten_advantages else advantages
        return Estimate(advantages=advantages, returns=returns)

    def value_loss(self, values, old_values, returns):
        """Squared error, clipped around the old values."""
        return clipped_value_loss(values, old_values, returns, value_clip=self.value_clip)

    def stop_early(self, approx_kl: float) -> bool:
        return self.target_kl is not None and approx_kl > 1.5 * self.target_kl
