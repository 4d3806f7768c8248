"""GiGPO, arXiv:2505.10978: beside episodes, turns that begin in the same state are compared, by what came of them.

rlvr train algorithm=gigpo:GiGPO
"""

from statistics import fmean, pstdev

from rlvr.algorithms import ClippedRatio
from rlvr.algorithms.advantages import Estimate, group_normalized
from rlvr.algorithms.columns import PerTurn
from rlvr.settings import NonNegativeFloat, setting


class GiGPO(ClippedRatio):
    """A = the episode's advantage + weight * that of the turn. The state of a turn is everything that was said."""

    compares_groups = True
    weight: NonNegativeFloat = setting(1.0, "weight of the advantages of turns")
    gamma: float = setting(0.95, "discount of the reward per turn", gt=0, le=1)

    def columns(self):
        return super().columns() | {"turns": PerTurn(self.of_turns)}

    def advantages(self, batch, penalties, mask):
        of_episodes = group_normalized(batch, penalties, mask, "sample").advantages
        return Estimate(advantages=of_episodes + self.weight * batch.columns["turns"])

    def of_turns(self, group, episode):
        def value(one, place):
            return one.score.value * self.gamma ** (len(one.turns) - 1 - place)

        found, scored = [], [one for one in group.episodes if one.score.status != "error"]
        for place, turn in enumerate(episode.turns if episode in scored else ()):
            same = [value(one, i) for one in scored for i, t in enumerate(one.turns) if t.prompt_ids == turn.prompt_ids]
            found.append((value(episode, place) - fmean(same)) / (pstdev(same) + 1e-4))
        return found or [0.0] * len(episode.turns)
