"""The algorithm interface: a class whose fields are its settings, with two methods that define it.

    @register("algorithm", "dr_grpo")
    class Mine(Algorithm):
        def advantages(self, batch, penalties, mask): ...                   rewards -> an advantage per token
        def surrogate(self, log_ratio, logprobs, advantages, mask): ...     logprobs -> the policy loss per token

What it wants beside rewards and logprobs, such as a teacher's logprobs, is a column (`columns.py`). KL, entropy,
mismatch correction and aggregation are shared: `objective.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import model_validator

from rlvr.algorithms.advantages import Estimate
from rlvr.algorithms.columns import START, Column, Logprobs, OfPolicy
from rlvr.algorithms.losses import Estimator, Surrogate, clip
from rlvr.algorithms.weights import Mode
from rlvr.errors import ConfigError
from rlvr.run_view import RunView
from rlvr.settings import Component, NonNegativeFloat, Range, Usual, setting, wrong
from rlvr.types import Predictions, TokenBatch

if TYPE_CHECKING:
    from torch import Tensor

MAX_MEAN_WEIGHT = 1.2
"""Largest mismatch_cap of a geometric mean: 0.18 nats per token."""

Correction = Literal[
    "auto",
    "none",
    "truncate",
    "mask",
    "icepop",
    "sequence_truncate",
    "sequence_mask",
    "geometric_mask",
    "geometric_mask_tokens",
]
SEVERAL_UPDATES = "num_epochs * num_minibatches > 1"
"""With one update per batch the ratio to the old policy is exactly 1: no clipping, no early stop."""

# Fields with different defaults per algorithm: a subclass sets `aggregation: Aggregation = "fixed_length"`.
Aggregation = Annotated[
    Mode,
    setting(
        description="token_mean: sum / all trained tokens; sequence_mean: mean over episodes of their token means; "
        "prompt_mean: mean over prompts of the token means of their episodes together; "
        "sequence_sum: mean over episodes of their sums; fixed_length: sum / (episodes x max_completion_tokens)"
    ),
]
KlEstimator = Annotated[
    Estimator,
    setting(description="Schulman's estimators of KL(policy || reference)", only_if="kl_coef > 0"),
]
KlPlacement = Annotated[
    Literal["loss", "reward"],
    setting(description="add the KL to the loss or subtract it from the reward", only_if="kl_coef > 0"),
]
NumEpochs = Annotated[
    int,
    setting(
        description="passes over each batch of rollouts",
        usual=Usual((1, 16), above="the policy leaves the one that drew the samples"),
        ge=1,
    ),
]
NumMinibatches = Annotated[
    int, setting(debug=2, description="optimizer steps per pass; divides the rows of a batch", ge=1)
]
ClipLow = Annotated[
    float, setting(description="the ratio is clipped below 1 - clip_low", only_if=SEVERAL_UPDATES, gt=0, lt=1)
]
ClipHigh = Annotated[
    float,
    setting(
        description="the ratio is clipped above 1 + clip_high",
        only_if=SEVERAL_UPDATES,
        usual=Usual((0.01, inf), below="nearly every token is clipped after the first update of a batch"),
        gt=0,
    ),
]
StdNormalization = Annotated[
    Literal["sample", "population", "batch", "none"],
    setting(
        description="divide by the group's standard deviation with ddof 1 (sample) or 0 (population), by that of the "
        "whole batch around its groups' means (batch), or not"
    ),
]


class Algorithm(Component, ABC):
    """Settings common to all algorithms."""

    group: ClassVar[str] = "algorithm"
    compares_groups: ClassVar[bool] = False  # the baseline is the group's: needs at least two completions
    returns_per_token: ClassVar[bool] = False  # potential-based shaping has an effect
    default_group_size: ClassVar[int | None] = None  # of rollout.group_size, where it is not that section's own

    aggregation: Aggregation = "token_mean"
    kl_coef: NonNegativeFloat = setting(
        0.0,
        "weight of the KL to the frozen starting policy; 0: no reference model",
        usual=Usual((0, 1), above="leaving the reference costs more than right answers pay"),
    )
    kl_estimator: KlEstimator = "k3"
    kl_placement: KlPlacement = "loss"
    kl_unbiased: bool = setting(
        False,
        "multiply the KL in the loss by the probability ratio, whose gradient makes k1's and k3's that of the reverse "
        "KL (DeepSeek-V3.2; TRL: use_bias_correction_kl)",
        only_if="kl_coef > 0 and kl_placement == 'loss'",
    )
    entropy_coef: NonNegativeFloat = setting(
        0.0, "weight of the entropy bonus", usual=Usual((0, 0.1), above="noise pays more than right answers")
    )
    truncated: Literal["keep", "mask"] = setting(
        "keep", "truncated completions: keep them with the reward they got, or leave them out of the loss"
    )
    num_epochs: NumEpochs = 1
    num_minibatches: NumMinibatches = 1
    mismatch_correction: Correction = setting(
        "auto",
        "weight the policy loss by old / behavior probability, of the token or of its whole sequence (product; "
        "geometric: mean), truncated at mismatch_cap (TIS) or dropped above it (icepop and geometric: also below "
        "1 / cap; geometric_mask_tokens drops rows by their mean and weights the other tokens by their own); auto: "
        "truncate where samples may be older than the policy or come from servers, if they are of the whole "
        "vocabulary, else none",
    )
    mismatch_cap: float = setting(
        2.0,
        "cap of the mismatch correction; geometric_mask and geometric_mask_tokens need one close to 1, such as 1.05",
        only_if="mismatch_correction != 'none'",
        gt=1,
    )

    # Overridden by algorithms.

    @abstractmethod
    def advantages(self, batch: TokenBatch, penalties: Tensor, mask: Tensor) -> Estimate:
        """Advantages [B, T] of a whole batch; its `rewards` [B] are already shaped.

        `penalties` [B, T] is the KL cost of each sampled token (0 without a KL in the reward), `mask` [B, T] the tokens
        in the loss; other positions are ignored.
        """

    @abstractmethod
    def surrogate(self, log_ratio: Tensor, logprobs: Tensor, advantages: Tensor, mask: Tensor) -> Surrogate:
        """Policy loss of each token [b, T].

        `log_ratio` = log pi - log pi_old (bounded), `logprobs` = log pi, `advantages` and `mask` are [b, T], with 0 at
        masked tokens. The gradient flows through `log_ratio` and `logprobs` only.
        """

    def token_loss(self, log_ratio: Tensor, predicted: Predictions, rows: TokenBatch, mask: Tensor) -> Surrogate:
        """As `surrogate`, for a loss that reads more: `predicted` (logprobs and entropy [b, T], with gradient) and the
        columns of the `rows`. An algorithm that overrides it gets every token, also those without an advantage."""
        assert rows.advantages is not None, "set before the loss, 0 outside of it"
        return self.surrogate(log_ratio, predicted.logprobs, rows.advantages, mask)

    def columns(self) -> dict[str, Column]:
        """What the trainer computes before `advantages`, by name; extend it with `super().columns() | {...}`.

        With one update per batch the old policy is the current one: the update's own pass gives the ratio (1) and the
        mismatch weights. A KL in the reward needs old logprobs before the update.
        """
        columns: dict[str, Column] = {}
        if self.num_epochs * self.num_minibatches > 1 or self.kl_coef_in("reward") > 0:
            columns["old_logprobs"] = OfPolicy("logprobs")
        if self.kl_coef > 0:
            columns["reference_logprobs"] = Logprobs(START)
        if isinstance(self, Critic):
            columns["values"] = OfPolicy("values")
        return columns

    def shaped_rewards(self, rewards: Tensor, num_tokens: Tensor, max_completion_tokens: int) -> Tensor:
        """Rewards [B] before any statistics; `num_tokens` [B] is the length of the episode's longest completion."""
        return rewards

    def stop_early(self, approx_kl: float) -> bool:
        """True to skip a batch's remaining updates; `approx_kl` is the mean KL(old || current) per token."""
        return False

    @property
    def refills(self) -> int | None:
        """Rounds of replacement for groups with equal rewards, unless the rollout settings say; None: keep them."""
        return None

    # Derived from the settings.

    @property
    def divides_by_std(self) -> bool:
        """True if the rewards of a group are divided by their standard deviation."""
        return getattr(self, "std_normalization", "none") in ("sample", "population")

    def kl_coef_in(self, placement: Literal["loss", "reward"]) -> float:
        """`kl_coef` if the KL is placed there, else 0."""
        return self.kl_coef if self.kl_placement == placement else 0.0

    def fitted(self, run: RunView) -> Self:
        """The settings with `auto` resolved for a run."""
        if self.mismatch_correction != "auto":
            return self
        late = run.rollout.max_staleness > 0 or not run.engine.in_process
        correction = "truncate" if late and not run.rollout.truncates else "none"
        return self.model_copy(update={"mismatch_correction": correction})

    @model_validator(mode="after")
    def _cap_of_a_mean_is_near_one(self) -> Algorithm:
        if self.mismatch_correction.startswith("geometric") and self.mismatch_cap > MAX_MEAN_WEIGHT:
            raise wrong(
                "mismatch_cap",
                f"mismatch_correction={self.mismatch_correction} compares it with a mean over the tokens of a row, "
                f"which is never that far from 1; set it to 1.05, or to {MAX_MEAN_WEIGHT} at most",
            )
        return self

    def check_run(self, run: RunView) -> None:
        """Raise ConfigError for a batch size, sampling setting or staleness that the algorithm cannot use."""
        rollout = run.rollout
        for name, column in self.columns().items():
            if not isinstance(column, Column):
                raise ConfigError(
                    f"algorithm={self.name}: its columns give {name} a {type(column).__name__}; give it a Column, such "
                    "as Logprobs or PerEpisode of rlvr.algorithms.columns."
                )
        if self.compares_groups and rollout.group_size < 2:
            raise ConfigError(
                f"rollout.group_size={rollout.group_size}: algorithm={self.name} compares the completions of a group "
                "and needs at least 2; raise it, or choose an algorithm that does not, such as ppo or reinforce_pp."
            )
        if rollout.prompts_per_step * rollout.group_size % self.num_minibatches:
            raise ConfigError(
                f"algorithm.num_minibatches={self.num_minibatches}: does not divide the batch of "
                f"rollout.prompts_per_step={rollout.prompts_per_step} x rollout.group_size={rollout.group_size} rows; "
                "choose a divisor."
            )
        updates, uncorrected = self.num_epochs * self.num_minibatches, self.mismatch_correction in ("none", "auto")
        if uncorrected and rollout.max_staleness > 0 and updates > 1:
            raise ConfigError(
                f"rollout.max_staleness={rollout.max_staleness}: with algorithm.num_epochs={self.num_epochs} x "
                f"num_minibatches={self.num_minibatches} updates per batch the ratio is to the policy before them, and "
                "nothing corrects for the older one that sampled (docs/algorithms.md); set "
                "algorithm.mismatch_correction=truncate (which needs rollout.top_p=1.0, the whole vocabulary), or "
                "algorithm.num_epochs=1 algorithm.num_minibatches=1."
            )
        if not uncorrected and rollout.truncates:
            raise ConfigError(
                f"algorithm.mismatch_correction={self.mismatch_correction}: needs sampling from the whole vocabulary, "
                f"not rollout.top_p={rollout.top_p}, top_k={rollout.top_k}, min_p={rollout.min_p}; set these to 1, 0 "
                "and 0, or algorithm.mismatch_correction=none."
            )


class ClippedRatio(Algorithm):
    """Algorithms that clip the probability ratio of each token, as PPO does."""

    clip_low: ClipLow = 0.2
    clip_high: ClipHigh = 0.2
    dual_clip: float | None = setting(
        None, "largest ratio of tokens with a negative advantage, such as 3; null: none", only_if=SEVERAL_UPDATES, gt=1
    )

    def surrogate(self, log_ratio: Tensor, logprobs: Tensor, advantages: Tensor, mask: Tensor) -> Surrogate:
        return clip(log_ratio.exp(), advantages, self.clip_low, self.clip_high, self.dual_clip)


LEAST_CREDIT = 0.01  # of a reward, at the first token of the longest completion


def _gammas(run: Mapping[str, Any]) -> Range:
    """from where 1 % of a reward at the end reaches the first token of the longest completion"""
    return LEAST_CREDIT ** (1 / run["rollout"]["max_completion_tokens"]), 1.0


class TokenReturns(ClippedRatio):
    """Algorithms with a return per token: they need no group, and the KL penalty is per token."""

    returns_per_token = True

    gamma: float = setting(
        1.0,
        "discount per token",
        usual=Usual(_gammas, below="hardly any of a reward at the end reaches the first token", link="trained"),
        gt=0,
        le=1,
    )
    kl_estimator: KlEstimator = "k1"
    kl_placement: KlPlacement = "reward"


class Critic(Algorithm):
    """Algorithms that train a value head on the policy's trunk; `batch.columns["values"]` holds its estimates."""

    value_coef: NonNegativeFloat = setting(
        0.1,
        "weight of the critic's loss",
        usual=Usual(
            (1e-4, inf), below="the critic is not trained, and advantages are made from what it says", link="trained"
        ),
    )

    @abstractmethod
    def value_loss(self, values: Tensor, old_values: Tensor, returns: Tensor) -> Tensor:
        """Loss of the critic per token [b, T], before `value_coef`; `returns` come from `advantages`."""
