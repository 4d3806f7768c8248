from rlvr.algorithms.algorithm import Aggregation, ClipHigh, ClipLow, NumMinibatches
from rlvr.algorithms.grpo import Grpo
from rlvr.registry import register


@register("algorithm", "gspo")
class Gspo(Grpo):
    """GSPO, arXiv:2507.18071: one length-normalized ratio per sequence, hence the narrow clip range."""

    aggregation: Aggregation = "sequence_mean"
    clip_low: ClipLow = 3e-4
    clip_high: ClipHigh = 4e-4
    num_minibatches: NumMinibatches = 4

    def surrogate(self, log_ratio, logprobs, advantages, mask):
        """One ratio a sequence."""
        from rlvr.algorithms.losses import sequence_clip

        return sequence_clip(log_ratio, logprobs, advantages, mask, clip_low=self.clip_low, clip_high=self.clip_high)
