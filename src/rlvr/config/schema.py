"""What a configuration may say. Frozen pydantic models; an unknown key or a value out of range is an error.

The values live in `rlvr/conf/*.yaml` and only there: a field here has a type, bounds and a description, no default.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """A part of the configuration: strict, frozen, without defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


# ---------------------------------------------------------------------------------------------------------- task


class RpnTask(Section):
    """Reverse Polish arithmetic, generated: `<boe> 4 0 1 + + = 4 1 + = 5 <eoe>`."""

    name: Literal["rpn"]
    operators: Annotated[tuple[Literal["+", "-", "*"], ...], Field(min_length=1)] = Field(
        description="operators to draw from, uniformly"
    )
    operand_range: tuple[int, int] = Field(description="smallest and largest operand, both included")
    modulus: Annotated[int, Field(ge=2, le=10_000)] | None = Field(
        description="all arithmetic modulo this; null: plain integers"
    )
    max_abs_value: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        description="plain integers only: bound on the absolute value of every intermediate result"
    )
    shape: Literal["chain", "tree"] = Field(
        description="chain: the left operand is always the running result; tree: uniform over all expression shapes"
    )
    complexity_range: tuple[PositiveInt, PositiveInt] = Field(description="fewest and most operators in an expression")
    complexity_weights: tuple[PositiveFloat, ...] | None = Field(
        description="training weights of each number of operators in complexity_range; null: uniform"
    )
    eval_complexity_weights: tuple[PositiveFloat, ...] | None = Field(
        description="the same for held-out examples; null: uniform"
    )
    held_out_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        description="share of all expressions, chosen by hash, that is never trained on"
    )
    max_prompt_tokens: PositiveInt = Field(description="longest prompt; complexity_range must fit into it")


TaskConfig = RpnTask

# --------------------------------------------------------------------------------------------------------- model


class ScratchModel(Section):
    """A Llama-architecture model with random weights and a word-level tokenizer made from the task's vocabulary."""

    name: Literal["scratch"]
    hidden_size: PositiveInt = Field(description="width of the residual stream")
    num_layers: PositiveInt = Field(description="decoder blocks")
    num_heads: PositiveInt = Field(description="attention heads; divides hidden_size into even head sizes")
    intermediate_size: PositiveInt = Field(description="width of the gated MLP")
    init_std: PositiveFloat = Field(description="standard deviation of the initial weights")
    rope_theta: PositiveFloat = Field(description="base of the rotary embedding; small for short contexts")
    max_context_tokens: PositiveInt = Field(description="context; holds the longest prompt plus completion")


class PretrainedModel(Section):
    """Any causal LM of transformers, by folder or Hub id."""

    name: Literal["hf"]
    name_or_path: Annotated[str, Field(min_length=1)] = Field(description="folder or Hub id of the model")
    trust_remote_code: bool = Field(description="run code that comes with the model")


ModelConfig = Annotated[ScratchModel | PretrainedModel, Field(discriminator="name")]


class WarmStart(Section):
    """Supervised training on the task's demonstrations before RL; only for models made from scratch."""

    enabled: bool = Field(description="false: RL starts from random weights")
    num_steps: PositiveInt = Field(description="optimizer steps in all")
    batch_size: PositiveInt = Field(description="fresh demonstrations per step")
    learning_rate: PositiveFloat = Field(description="peak of the linear schedule")
    warmup_steps: NonNegativeInt = Field(description="steps of linear warm-up")
    final_learning_rate_share: Share = Field(description="learning rate of the last step, as a share of the peak")
    weight_decay: NonNegativeFloat = Field(description="AdamW weight decay")
    worked_share: Share = Field(description="share of demonstrations that write the intermediate steps")
    final_phase_steps: NonNegativeInt = Field(description="the last so many steps use final_worked_share instead")
    final_worked_share: Share = Field(description="worked_share of the final phase: what RL has to win back")


# -------------------------------------------------------------------------------------------------------- reward


class RpnReward(Section):
    """Rewards of the RPN task, on the words of prompt + completion."""

    name: Literal["rpn"]
    type: Literal["boxed", "correct", "combined"] = Field(
        description="boxed: ends in `= operand <eoe>`; correct: boxed and the right operand; combined: weighted sum"
    )
    boxed_weight: NonNegativeFloat = Field(description="combined only: weight of boxed")
    correct_weight: NonNegativeFloat = Field(description="combined only: weight of correct")


RewardConfig = RpnReward

# ------------------------------------------------------------------------------------------------------- rollout


class Rollout(Section):
    """How completions are sampled for training."""

    prompts_per_step: PositiveInt = Field(
        description="examples per step; a step samples group_size completions of each"
    )
    group_size: PositiveInt = Field(description="completions of one example, compared with each other")
    max_completion_tokens: PositiveInt = Field(description="longest completion; longer ones are truncated")
    temperature: PositiveFloat = Field(description="sampling temperature; the trainer's logprobs use it too")
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(description="nucleus sampling; 1 turns it off")
    top_k: NonNegativeInt = Field(description="sample from the k likeliest tokens; 0 turns it off")
    min_p: Annotated[float, Field(ge=0, lt=1)] = Field(
        description="leave out tokens less likely than min_p x the likeliest; 0 turns it off"
    )


# ----------------------------------------------------------------------------------------------------- algorithm

Aggregation = Literal["token_mean", "sequence_mean", "sequence_sum", "fixed_length"]


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
    mismatch_correction: Literal["none", "truncate", "mask"] = Field(
        description="weight tokens by old / behavior probability: clipped at mismatch_cap (TIS) or dropped above it"
    )
    mismatch_cap: Annotated[float, Field(gt=1)] = Field(description="cap of the mismatch correction")


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

# ------------------------------------------------------------------------------------------------------- trainer


class Trainer(Section):
    """Optimization, precision, checkpoints."""

    max_steps: PositiveInt = Field(description="steps of the run: rollouts, then update")
    learning_rate: PositiveFloat = Field(description="peak learning rate of AdamW")
    schedule: Literal["constant", "linear", "cosine"] = Field(description="learning rate after the warm-up")
    warmup_steps: NonNegativeInt = Field(description="steps of linear warm-up")
    final_learning_rate_share: Share = Field(description="linear and cosine: learning rate at the end / peak")
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = Field(description="AdamW")
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = Field(description="AdamW")
    weight_decay: NonNegativeFloat = Field(description="AdamW")
    max_grad_norm: PositiveFloat = Field(description="the gradient is clipped to this norm")
    microbatch_tokens: PositiveInt = Field(
        description="tokens per forward and backward pass; gradients accumulate exactly, only memory and speed change"
    )
    precision: Literal["auto", "fp32", "bf16"] = Field(
        description="autocast of forward and backward; auto: bf16 on a CPU with bf16 instructions from hidden size "
        "128 on, where it is faster"
    )
    num_threads: PositiveInt | None = Field(
        description="CPU threads; null: one for models under 500k parameters, else all cores"
    )
    strategy: Literal["single"] = Field(description="how training is spread over processes")
    checkpoint_every: PositiveInt | None = Field(description="steps between checkpoints; null: only at the end")
    keep_last: PositiveInt = Field(description="checkpoints to keep, newest first")
    keep_best: bool = Field(description="also keep the checkpoint with the best held-out accuracy")


# -------------------------------------------------------------------------------------------- engine, evaluation


class LocalEngine(Section):
    """In-process continuous batching over the policy's own weights."""

    name: Literal["local"]
    max_batch_size: PositiveInt = Field(description="completions decoded at the same time; more wait their turn")


EngineConfig = LocalEngine


class Evaluation(Section):
    """Held-out evaluation while training; the first one is made before the first update."""

    every: PositiveInt = Field(description="steps between evaluations; the last step is always evaluated")
    num_examples: PositiveInt = Field(description="held-out examples, always the same")
    samples_per_example: NonNegativeInt = Field(
        description="0: greedy only; k > 0: also k sampled completions each, for avg@k and pass@k"
    )


class Tracker(Section):
    """What is shown and written."""

    console: Literal["auto", "live", "plain", "none"] = Field(
        description="live line, plain lines, or nothing; auto: live on a terminal"
    )
    log_every: PositiveInt = Field(description="steps between console lines; metrics.jsonl has every step")
    rollouts_every: PositiveInt | None = Field(
        description="steps between rollout files, the first step included; null: none"
    )
    rollouts_max_groups: PositiveInt | None = Field(description="groups per rollout file; null: all")


class Config(Section):
    """A whole run."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="first part of the run folder's name")
    seed: NonNegativeInt = Field(description="the one seed; every other is derived from it")
    run_dir: Annotated[str, Field(min_length=1)] | None = Field(description="run folder; null: runs/<name>-<time>")
    resume: bool = Field(description="go on from the last complete checkpoint in run_dir")
    task: TaskConfig
    model: ModelConfig
    warm_start: WarmStart
    reward: RewardConfig
    rollout: Rollout
    algorithm: AlgorithmConfig
    trainer: Trainer
    engine: EngineConfig
    evaluation: Evaluation
    tracker: Tracker
