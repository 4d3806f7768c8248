"""Supervised training as an algorithm: advantage 1 for every token of a right episode."""

import torch

from rlvr.algorithms.advantages import Estimate
from rlvr.algorithms.algorithm import Algorithm
from rlvr.algorithms.losses import Surrogate


class Sft(Algorithm):
    """The loss is the mean negative logprob of the completions' tokens. Chosen by no name: see `warm_start`."""

    def advantages(self, batch, penalties, mask):
        return Estimate(advantages=torch.ones_like(penalties))

    def surrogate(self, log_ratio, logprobs, advantages, mask):
        never = torch.zeros_like(mask)
        return Surrogate(
            loss=-advantages * logprobs, ratio=log_ratio.detach().exp(), clipped_low=never, clipped_high=never
        )
