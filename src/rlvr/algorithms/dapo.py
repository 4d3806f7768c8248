from typing import Any

from rlvr.algorithms.algorithm import ClipHigh
from rlvr.algorithms.grpo import Grpo
from rlvr.errors import ConfigError
from rlvr.registry import register
from rlvr.settings import NonNegativeFloat, NonNegativeInt, setting


@register("algorithm", "dapo")
class Dapo(Grpo):
    """DAPO, arXiv:2503.14476: clip-higher, token-level loss, dynamic sampling, soft overlong penalty."""

    clip_high: ClipHigh = 0.28
    dynamic_sampling: bool = setting(True, "replace groups whose rewards are all equal by new prompts")
    max_refills: NonNegativeInt = setting(
        3, "rounds of replacement per step; what is left then is dropped", only_if="dynamic_sampling"
    )
    overlong_buffer_tokens: NonNegativeInt = setting(
        8,
        "the penalty grows linearly over this many tokens before rollout.max_completion_tokens; 0: off",
        only_if="overlong_penalty > 0",
    )
    overlong_penalty: NonNegativeFloat = setting(
        1.0, "penalty at rollout.max_completion_tokens", only_if="overlong_buffer_tokens > 0"
    )

    @property
    def refills(self) -> int | None:
        return self.max_refills if self.dynamic_sampling else None

    def shaped_rewards(self, rewards, num_tokens, max_completion_tokens):
        from rlvr.algorithms.advantages import soft_overlong

        return soft_overlong(
            rewards,
            num_tokens,
            max_completion_tokens=max_completion_tokens,
            overlong_buffer_tokens=self.overlong_buffer_tokens,
            overlong_penalty=self.overlong_penalty,
        )

    def check_run(self, config: Any) -> None:
        """The buffer also has to fit into a completion."""
        super().check_run(config)
        if self.overlong_buffer_tokens >= config.rollout.max_completion_tokens:
            raise ConfigError(
                f"algorithm.overlong_buffer_tokens={self.overlong_buffer_tokens}: must be less than "
                f"rollout.max_completion_tokens={config.rollout.max_completion_tokens}; lower it."
            )
