"""GDPO, arXiv:2601.05242: every part of the reward is normalized within the group, then their sum within the batch.

rlvr train algorithm=gdpo:Gdpo reward=rpn_combined 'algorithm.weights={boxed: 0.3, correct: 0.7}'
"""

from collections.abc import Mapping
from dataclasses import replace

from rlvr.algorithms import ClippedRatio
from rlvr.algorithms.advantages import Estimate, group_normalized
from rlvr.algorithms.columns import PerEpisode
from rlvr.errors import ConfigError
from rlvr.settings import setting


class Gdpo(ClippedRatio):
    """Advantages of several rewards, so that none drowns the others."""

    compares_groups = True
    weights: Mapping[str, float] = setting(description="part of the reward -> weight", min_length=1)

    def columns(self):
        parts = PerEpisode(lambda group, episode: [episode.score.parts.get(name, 0.0) for name in self.weights])
        return super().columns() | {"parts": parts}

    def check_run(self, run):
        super().check_run(run)
        parts = run.reward.parts  # none of a mix, whose tasks have rewards of their own
        if parts and (unknown := self.weights.keys() - parts.keys()):
            raise ConfigError(
                f"algorithm.weights: the reward has no part {min(unknown)}; there are {', '.join(sorted(parts))}."
            )

    def advantages(self, batch, penalties, mask):
        total = penalties.new_zeros(mask.shape)
        for weight, rewards in zip(self.weights.values(), batch.columns["parts"].unbind(1), strict=True):
            total = (
                total + weight * group_normalized(replace(batch, rewards=rewards), penalties, mask, "sample").advantages
            )
        values = total[:, 0]
        return Estimate(advantages=(total - values.mean()) / (values.std() + 1e-4))
