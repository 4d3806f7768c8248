"""Algorithms with a group baseline: GRPO and its variants."""

from collections.abc import Iterator
from math import inf

from rlvr.algorithms.advantages import group_normalized, leave_one_out
from rlvr.algorithms.algorithm import (
    SEVERAL_UPDATES,
    Aggregation,
    Algorithm,
    ClipHigh,
    ClipLow,
    ClippedRatio,
    NumMinibatches,
    StdNormalization,
)
from rlvr.algorithms.losses import clip, detached_clip, sequence_log_ratio
from rlvr.errors import ConfigError
from rlvr.registry import register
from rlvr.run_view import RunView
from rlvr.settings import NonNegativeFloat, NonNegativeInt, Usual, setting


@register("algorithm", "grpo")
class Grpo(ClippedRatio):
    """GRPO, arXiv:2402.03300."""

    compares_groups = True

    std_normalization: StdNormalization = "sample"

    def advantages(self, batch, penalties, mask):
        """The reward minus the group's mean, divided by its standard deviation."""
        return group_normalized(batch, penalties, mask, self.std_normalization)


@register("algorithm", "dr_grpo")
class DrGrpo(ClippedRatio):
    """Dr. GRPO, arXiv:2503.20783: no division by the standard deviation, no length normalization."""

    compares_groups = True

    aggregation: Aggregation = "fixed_length"

    def advantages(self, batch, penalties, mask):
        """The reward minus the group's mean."""
        return group_normalized(batch, penalties, mask, "none")


@register("algorithm", "rloo")
class Rloo(ClippedRatio):
    """RLOO, arXiv:2402.14740: leave-one-out baseline, whole-sequence REINFORCE."""

    compares_groups = True

    aggregation: Aggregation = "sequence_sum"

    def advantages(self, batch, penalties, mask):
        """The reward minus the mean of the group's other rewards."""
        return leave_one_out(batch, penalties, mask)


@register("algorithm", "dapo")
class Dapo(Grpo):
    """DAPO, arXiv:2503.14476: clip-higher, token-level loss, dynamic sampling, soft overlong penalty."""

    clip_high: ClipHigh = 0.28
    dynamic_sampling: bool = setting(
        True, "as rollout.dead_groups=refill; false: as keep", only_if="rollout.dead_groups == 'auto'"
    )
    max_refills: NonNegativeInt = setting(
        3, "as rollout.max_refills", only_if="dynamic_sampling and rollout.dead_groups == 'auto'"
    )
    overlong_buffer_tokens: NonNegativeInt = setting(
        8,
        "the penalty grows linearly over this many tokens before max_completion_tokens; 0: off",
        only_if="overlong_penalty > 0",
    )
    overlong_penalty: NonNegativeFloat = setting(
        1.0, "penalty at max_completion_tokens", only_if="overlong_buffer_tokens > 0"
    )

    @property
    def refills(self) -> int | None:
        return self.max_refills if self.dynamic_sampling else None

    def remarks(self, run: RunView) -> Iterator[str]:
        yield from super().remarks(run)
        if self.dynamic_sampling and run.rollout.dead_groups in ("keep", "drop"):
            yield f"rollout.dead_groups={run.rollout.dead_groups} turns dynamic_sampling off"

    def shaped_rewards(self, rewards, num_tokens, max_completion_tokens):
        """r - penalty * clamp((L - (L_max - L_buffer)) / L_buffer, 0, 1), eq. 13.

        L_max 100, buffer 20, penalty 1: 80 tokens cost 0, 90 cost 0.5, 100 cost 1. A buffer of 0 costs nothing.
        """
        buffer = self.overlong_buffer_tokens
        if buffer == 0:
            return rewards
        return rewards - self.overlong_penalty * ((num_tokens - (max_completion_tokens - buffer)) / buffer).clamp(0, 1)

    def check_run(self, run: RunView) -> None:
        """The buffer also has to fit into a completion."""
        super().check_run(run)
        if self.overlong_buffer_tokens >= run.rollout.max_completion_tokens:
            raise ConfigError(
                f"algorithm.overlong_buffer_tokens={self.overlong_buffer_tokens}: must be less than "
                f"rollout.max_completion_tokens={run.rollout.max_completion_tokens}; lower it."
            )


@register("algorithm", "gspo")
class Gspo(Grpo):
    """GSPO, arXiv:2507.18071: one length-normalized ratio per sequence, hence the narrow clip range."""

    aggregation: Aggregation = "sequence_mean"
    clip_low: ClipLow = 3e-4
    clip_high: ClipHigh = setting(
        4e-4,
        "the ratio is clipped above 1 + clip_high",
        only_if=SEVERAL_UPDATES,
        usual=Usual((1e-5, inf), below="every sequence is clipped after the first update of a batch"),
    )
    num_minibatches: NumMinibatches = 4

    def surrogate(self, log_ratio, logprobs, advantages, mask):
        """One ratio per sequence, s = exp(mean_t log r_t), eq. 5 and 7: grad = s A mean_t grad log pi_t.

        All tokens of a row share the ratio and its clipping.
        """
        ratio = sequence_log_ratio(log_ratio, mask).exp()
        return clip(ratio, advantages, self.clip_low, self.clip_high, self.dual_clip)


@register("algorithm", "cispo")
class Cispo(Algorithm):
    """CISPO, arXiv:2506.13585: clipped, detached ratio times log-probability; no lower clip."""

    compares_groups = True

    clip_high: ClipHigh = 0.2
    std_normalization: StdNormalization = "sample"

    def advantages(self, batch, penalties, mask):
        return group_normalized(batch, penalties, mask, self.std_normalization)

    def surrogate(self, log_ratio, logprobs, advantages, mask):
        """A detached ratio: every token keeps its gradient."""
        return detached_clip(log_ratio.exp(), logprobs, advantages, self.clip_high)
