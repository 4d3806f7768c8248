from rlvr.algorithms.algorithm import ClippedRatio, StdNormalization
from rlvr.registry import register


@register("algorithm", "grpo")
class Grpo(ClippedRatio):
    """GRPO, arXiv:2402.03300."""

    compares_groups = True

    std_normalization: StdNormalization = "sample"

    def advantages(self, batch, penalties, mask):
        """The reward minus the group's mean, divided by its standard deviation."""
        from rlvr.algorithms.advantages import group_normalized

        return group_normalized(batch, penalties, mask, std_normalization=self.std_normalization)
