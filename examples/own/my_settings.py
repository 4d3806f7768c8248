"""Settings of your own: kinds, bounds, conditions and checks, here of a part of a reward that pays for a length.

In the folder of this file:

    rlvr train --config-name rpn_test reward.parts.length.type=my_settings:Length reward.parts.length.ideal=5

`rlvr train --help-config reward.parts=my_settings:Length` prints the fields.
"""

from typing import Literal, Self

from pydantic import model_validator

from rlvr.errors import ConfigError
from rlvr.rewards.base import Part
from rlvr.run_view import RunView
from rlvr.settings import PositiveInt, Share, setting, wrong
from rlvr.types import Attempt


class Length(Part):
    """1 for a length within the limits, less far from the ideal one. --help-config shows the first sentence."""

    kind: Literal["tokens", "words"] = setting("tokens", "what is counted")
    least: PositiveInt = setting(1, "shorter completions earn nothing")
    most: PositiveInt = setting(20, "longer completions earn nothing")
    ideal: int | None = setting(None, "null: all lengths earn the same", ge=1)
    falloff: Share = setting(0.5, "what is earned at the limits", only_if="ideal is not None")

    @model_validator(mode="after")
    def _limits_fit(self) -> Self:
        if self.least > self.most:
            raise wrong("least", f"is more than most={self.most}; lower it")
        return self

    def check_run(self, run: RunView) -> None:
        super().check_run(run)
        if self.kind == "tokens" and self.most > run.rollout.max_completion_tokens:
            raise ConfigError("reward: most is above rollout.max_completion_tokens; lower it.")

    def grade(self, attempt: Attempt) -> float:
        count = attempt.num_tokens if self.kind == "tokens" else len(attempt.text.split())
        if self.ideal is None or not self.least <= count <= self.most:
            return float(self.least <= count <= self.most)
        limit = self.most if count > self.ideal else self.least
        return 1 - (1 - self.falloff) * (count - self.ideal) / (limit - self.ideal or 1)
