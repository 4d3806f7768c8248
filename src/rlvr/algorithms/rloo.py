from rlvr.algorithms.algorithm import Aggregation, ClippedRatio
from rlvr.registry import register


@register("algorithm", "rloo")
class Rloo(ClippedRatio):
    """RLOO, arXiv:2402.14740: leave-one-out baseline, whole-sequence REINFORCE."""

    compares_groups = True

    aggregation: Aggregation = "sequence_sum"

    def advantages(self, batch, penalties, mask):
        """The reward minus the mean of the group's other rewards."""
        from rlvr.algorithms.advantages import leave_one_out

        return leave_one_out(batch, penalties, mask)
