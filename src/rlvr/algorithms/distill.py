"""On-policy distillation: the policy's own samples, scored token by token by a teacher."""

from __future__ import annotations

from typing import Annotated

from pydantic import model_validator

from rlvr.algorithms.advantages import Estimate, group_normalized
from rlvr.algorithms.algorithm import ClippedRatio, StdNormalization
from rlvr.algorithms.columns import START, Column, Logprobs
from rlvr.errors import ConfigError
from rlvr.registry import register
from rlvr.run_view import RunView
from rlvr.settings import NonNegativeFloat, PositiveFloat, setting, wrong

MOVING = ("policy", "self", "current")
"""Names that a user may give to a teacher that moves with every update."""


@register("algorithm", "distill")
class Distill(ClippedRatio):
    """On-policy distillation, arXiv:2306.13649, thinkingmachines.ai/blog/on-policy-distillation: minus the reverse KL
    to a teacher, token by token, alone or beside a reward."""

    default_group_size = 1

    teacher: Annotated[
        str,
        setting(
            description="a run or model folder, a Hub id, openai:URL#NAME (a server that returns prompt logprobs, as "
            "vLLM does), or start: the policy before its first update",
            min_length=1,
        ),
    ]
    refresh_every: int | None = setting(
        None,
        "updates after which teacher=start becomes the policy of then; null: never",
        only_if="teacher == 'start'",
        ge=2,
    )
    reward_coef: NonNegativeFloat = setting(0.0, "weight of GRPO's advantages beside the teacher's; 0: no reward")
    std_normalization: StdNormalization = setting("sample", "of GRPO's advantages", only_if="reward_coef > 0")
    max_gap: PositiveFloat = setting(
        1.0,
        "largest difference of the two logprobs of a token, in nats: more costs samples (docs/benchmarks.md)",
    )

    def columns(self) -> dict[str, Column]:
        return super().columns() | {"teacher": Logprobs(self.teacher, refresh_every=self.refresh_every)}

    def advantages(self, batch, penalties, mask):
        """A_t = clamp(log teacher - log behavior, +-max_gap) + reward_coef x GRPO's.

        A token gets its own term alone, as with a discount of 0: the expected gradient is that of the reverse KL of the
        next token, sum over t of KL(policy || teacher) given the tokens before. Unknown logprobs count as equal.
        """
        gap = (batch.columns["teacher"] - batch.behavior_logprobs).nan_to_num(0.0).clamp(-self.max_gap, self.max_gap)
        if self.reward_coef == 0:
            return Estimate(advantages=gap - penalties)
        rewarded = group_normalized(batch, penalties, mask, self.std_normalization).advantages
        return Estimate(advantages=gap + self.reward_coef * rewarded)

    @model_validator(mode="after")
    def _teacher_stands_still(self) -> Distill:
        if self.teacher in MOVING:
            raise wrong(
                "teacher",
                "a teacher that moves with the policy collapsed it: accuracy 0.0 from step 14 on, in every form "
                f"that was measured; use {START}, which stands still, or {START} with refresh_every=N",
            )
        if self.teacher == START and self.reward_coef == 0:
            raise wrong(
                "teacher",
                "the policy's own start teaches it nothing that it does not know: set algorithm.reward_coef=1 "
                "rollout.group_size=8, so that a reward moves it, or name another teacher",
            )
        return self

    def check_run(self, run: RunView) -> None:
        """A reward is compared within groups."""
        super().check_run(run)
        if self.reward_coef > 0 and run.rollout.group_size < 2:
            raise ConfigError(
                f"algorithm.reward_coef={self.reward_coef}: compares the rewards of a group, and rollout.group_size="
                f"{run.rollout.group_size} leaves none; raise it to 2 or more, or set algorithm.reward_coef=0."
            )
