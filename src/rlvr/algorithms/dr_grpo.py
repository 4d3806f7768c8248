from rlvr.algorithms.algorithm import Aggregation, ClippedRatio
from rlvr.registry import register


@register("algorithm", "dr_grpo")
class DrGrpo(ClippedRatio):
    """Dr. GRPO, arXiv:2503.20783: no division by the standard deviation, no length normalization."""

    compares_groups = True

    aggregation: Aggregation = "fixed_length"

    def advantages(self, batch, penalties, mask):
        """The reward minus the group's mean."""
        from rlvr.algorithms.advantages import group_centered

        return group_centered(batch, penalties, mask)
