"""Algorithms: one model a row of `rlvr.algorithms.table`."""

from typing import Annotated, Literal

from pydantic import Field

from rlvr.config.schema.base import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Section, Share

Aggregation = Literal["token_mean", "sequence_mean", "sequence_sum", "fixed_length"]
Mismatch = Literal["none", "truncate", "mask", "sequence_truncate", "sequence_mask", "geometric_mask"]


class Algorithm(Section):
    """Settings that every algorithm has."""

    aggregation: Aggregation = Field(
        description="token_mean: sum / all trained tokens; sequence_mean: mean over rows of per-row token means; "
        "sequence_sum: mean over rows of per-row sums; fixed_length: sum / (rows x max_completion_tokens)"
    )
    kl_coef: NonNegativeFloat = Field(description="weight of the KL to the frozen starting policy; 0: no reference")
    kl_estimator: Literal["k1", "k2", "k3"] = Field(description="Schulman's estimators of KL(policy || reference)")
    kl_placement: Literal["loss", "reward"] = Field(description="add the KL to the loss or subtract it from the reward")
    entropy_coef: NonNegativeFloat = Field(description="weight of the entropy bonus")
    truncated: Literal["keep", "mask"] = Field(
        description="truncated completions: keep them with the reward they got, or leave them out of the loss"
    )
    num_epochs: PositiveInt = Field(description="passes over each batch of rollouts")
    num_minibatches: PositiveInt = Field(description="optimizer steps per pass; divides the rows of a batch")
    mismatch_correction: Mismatch = Field(
        description="weight the policy loss by old / behavior probability, of the token or of its whole sequence "
        "(product; geometric: mean), truncated at mismatch_cap (TIS) or dropped above it (geometric: below 1/cap, too)"
    )
    mismatch_cap: Annotated[float, Field(gt=1)] = Field(
        description="cap of the mismatch correction; geometric_mask needs one close to 1, such as 1.05"
    )
    train_on_tool_tokens: bool = Field(
        description="wrong, and there to show it: train on what tools and templates wrote, too (docs/tools.md)"
    )


class Clip(Algorithm):
    """Algorithms with a clipped probability ratio."""

    clip_low: PositiveFloat = Field(description="the ratio is clipped below 1 - clip_low")
    clip_high: PositiveFloat = Field(description="the ratio is clipped above 1 + clip_high")


class Grpo(Clip):
    """GRPO, arXiv:2402.03300."""

    name: Literal["grpo"]
    std_normalization: Literal["sample", "population", "none"] = Field(
        description="divide by the group's standard deviation with ddof 1 (sample) or 0 (population), or not at all"
    )


class DrGrpo(Clip):
    """Dr. GRPO, arXiv:2503.20783: no std, no length normalization."""

    name: Literal["dr_grpo"]


class Dapo(Clip):
    """DAPO, arXiv:2503.14476: clip-higher, token-level loss, dynamic sampling, soft overlong penalty."""

    name: Literal["dapo"]
    std_normalization: Literal["sample", "population", "none"] = Field(description="as in grpo")
    dynamic_sampling: bool = Field(description="replace groups whose rewards are all equal by new prompts")
    max_refills: NonNegativeInt = Field(description="rounds of replacement per step; what is left then is dropped")
    overlong_buffer_tokens: NonNegativeInt = Field(
        description="the penalty grows linearly over the last so many tokens before max_completion_tokens"
    )
    overlong_penalty: NonNegativeFloat = Field(description="penalty at max_completion_tokens")


class Rloo(Clip):
    """RLOO, arXiv:2402.14740: leave-one-out baseline, whole-sequence REINFORCE."""

    name: Literal["rloo"]


class ReinforcePP(Clip):
    """REINFORCE++, arXiv:2501.03262: token returns normalized over the whole batch."""

    name: Literal["reinforce_pp"]
    gamma: Annotated[float, Field(gt=0, le=1)] = Field(description="discount per token")


class Gspo(Clip):
    """GSPO, arXiv:2507.18071: one length-normalized ratio per sequence."""

    name: Literal["gspo"]
    std_normalization: Literal["sample", "population", "none"] = Field(description="as in grpo")


class Cispo(Algorithm):
    """CISPO, arXiv:2506.13585: clipped, detached ratio times log-probability."""

    name: Literal["cispo"]
    clip_high: PositiveFloat = Field(description="the detached ratio is clipped above 1 + clip_high")
    std_normalization: Literal["sample", "population", "none"] = Field(description="as in grpo")


class Ppo(Clip):
    """PPO, arXiv:1707.06347, with a critic on the policy's trunk."""

    name: Literal["ppo"]
    gamma: Annotated[float, Field(gt=0, le=1)] = Field(description="discount per token")
    gae_lambda: Share = Field(description="lambda of generalized advantage estimation")
    value_coef: NonNegativeFloat = Field(description="weight of the critic's loss")
    value_clip: PositiveFloat | None = Field(description="clip range of the critic's update; null: no clipping")
    whiten_advantages: bool = Field(description="normalize advantages over the batch")
    target_kl: PositiveFloat | None = Field(
        description="stop this batch's remaining updates once KL(old || current) exceeds 1.5 x this; null: never"
    )


AlgorithmConfig = Annotated[Grpo | DrGrpo | Dapo | Rloo | ReinforcePP | Gspo | Cispo | Ppo, Field(discriminator="name")]
