from rlvr.algorithms.algorithm import Algorithm, ClipHigh, StdNormalization
from rlvr.registry import register


@register("algorithm", "cispo")
class Cispo(Algorithm):
    """CISPO, arXiv:2506.13585: clipped, detached ratio times log-probability; no lower clip."""

    compares_groups = True

    clip_high: ClipHigh = 0.2
    std_normalization: StdNormalization = "sample"

    def advantages(self, batch, penalties, mask):
        from rlvr.algorithms.advantages import group_normalized

        return group_normalized(batch, penalties, mask, std_normalization=self.std_normalization)

    def surrogate(self, log_ratio, logprobs, advantages, mask):
        """A ratio that carries no gradient, so that no token loses its own."""
        from rlvr.algorithms.losses import detached_clip

        return detached_clip(log_ratio, logprobs, advantages, mask, clip_high=self.clip_high)
