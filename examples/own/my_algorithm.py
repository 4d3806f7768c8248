"""An algorithm of your own: REINFORCE with the batch's mean reward as its baseline.

In the folder of this file:

    rlvr train algorithm=my_algorithm:Reinforce rollout.group_size=1 rollout.prompts_per_step=64
    rlvr train algorithm=my_algorithm:Reinforce algorithm.baseline=false

It has every setting of `Algorithm` (KL, entropy, aggregation, mismatch correction, ...) and its own field. As it does
not compare the completions of a prompt, a group may have one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlvr.algorithms import Algorithm
from rlvr.algorithms.advantages import Estimate
from rlvr.algorithms.losses import Surrogate
from rlvr.errors import ConfigError
from rlvr.run_view import RunView
from rlvr.settings import setting
from rlvr.types import TokenBatch


class Reinforce(Algorithm):
    """REINFORCE, Williams 1992, https://doi.org/10.1007/BF00992696."""

    baseline: bool = setting(True, "subtract the mean reward of the batch")

    def advantages(self, batch: TokenBatch, penalties: Tensor, mask: Tensor) -> Estimate:
        """A = r - mean r, the same for each token of a row."""
        rewards = batch.rewards - penalties.sum(1)  # a KL in the reward, if there is one
        if self.baseline:
            rewards = rewards - rewards[batch.valid].mean()
        return Estimate(advantages=rewards[:, None].expand(mask.shape))

    def surrogate(self, log_ratio: Tensor, logprobs: Tensor, advantages: Tensor, mask: Tensor) -> Surrogate:
        """-A log pi: its gradient is the policy gradient. Nothing is clipped."""
        nowhere = torch.zeros_like(mask)
        loss = -advantages * logprobs
        return Surrogate(loss=loss, ratio=log_ratio.detach().exp(), clipped_low=nowhere, clipped_high=nowhere)

    def check_run(self, run: RunView) -> None:
        """One update per batch: there is no ratio that would correct a second one."""
        super().check_run(run)
        if self.num_epochs * self.num_minibatches > 1:
            raise ConfigError(
                f"algorithm.num_epochs={self.num_epochs}: {self.name} makes one update per batch; set "
                "algorithm.num_epochs=1 algorithm.num_minibatches=1."
            )
