"""A distillation of your own: follow a teacher where the answer is wrong, and leave right answers to the reward.

In the folder of this file, with a run that solves the task as the teacher:

    rlvr train algorithm=my_distillation:Rescue algorithm.teacher=runs/first

`columns` names what the trainer computes before `advantages`: here the teacher's logprobs of the sampled tokens, and
whether each episode is right.
"""

from __future__ import annotations

from torch import Tensor

from rlvr.algorithms.advantages import Estimate
from rlvr.algorithms.columns import Column, Logprobs, PerEpisode
from rlvr.algorithms.grpo import Grpo
from rlvr.settings import setting
from rlvr.types import TokenBatch


class Rescue(Grpo):
    """GRPO, and for wrong episodes minus the reverse KL to a teacher."""

    teacher: str = setting(description="a run or model folder, or a Hub id")
    teacher_coef: float = setting(0.2, "weight of the teacher", ge=0)

    def columns(self) -> dict[str, Column]:
        wrong = PerEpisode(lambda group, episode: float(episode.score.value < 1))
        return super().columns() | {"teacher": Logprobs(self.teacher), "wrong": wrong}

    def advantages(self, batch: TokenBatch, penalties: Tensor, mask: Tensor) -> Estimate:
        gap = (batch.columns["teacher"] - batch.behavior_logprobs).clamp(-10, 10)  # [B, T]
        rewarded = super().advantages(batch, penalties, mask).advantages
        return Estimate(advantages=rewarded + self.teacher_coef * batch.columns["wrong"][:, None] * gap)
