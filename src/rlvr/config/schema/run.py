"""How a run samples, trains, evaluates and reports."""

from typing import Annotated, Literal

from pydantic import Field

from rlvr.config.schema.base import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Section, Share
from rlvr.config.schema.tasks import TaskBundle
from rlvr.config.schema.trackers import Mlflow, Tensorboard, Text, TrackerName, Wandb

MAX_WAIT_S = 604_800.0
"""A week: sockets cannot wait for ever."""


class Rollout(Section):
    """How completions are sampled for training."""

    prompts_per_step: PositiveInt = Field(
        description="examples per step; a step samples group_size completions of each"
    )
    group_size: PositiveInt = Field(description="completions of one example, compared with each other")
    max_staleness: NonNegativeInt = Field(
        description="updates that the weights which sampled a token may be behind those that train on it; 0: sampling "
        "and training take turns, k: the next k batches are sampled while the trainer works"
    )
    max_completion_tokens: PositiveInt = Field(description="longest completion; longer ones are truncated")
    temperature: PositiveFloat = Field(description="sampling temperature; the trainer's logprobs use it too")
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(description="nucleus sampling; 1 turns it off")
    top_k: NonNegativeInt = Field(description="sample from the k likeliest tokens; 0 turns it off")
    min_p: Annotated[float, Field(ge=0, lt=1)] = Field(
        description="leave out tokens less likely than min_p x the likeliest; 0 turns it off"
    )


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
    microbatch_tokens: PositiveInt | Literal["auto"] = Field(
        description="tokens per forward and backward pass; gradients accumulate exactly, only memory and speed change; "
        "auto: on a GPU the most that fit by the memory plan (docs/gpu.md), on a CPU 2048"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        description="where the model is trained and the local engine samples; auto: this process's GPU (number "
        "LOCAL_RANK) where torch sees one, else the CPU"
    )
    precision: Literal["auto", "fp32", "bf16"] = Field(
        description="autocast of forward and backward; auto: bf16 on a GPU, and on a CPU with bf16 instructions from "
        "hidden size 128 on, where it is faster"
    )
    num_threads: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        description="CPU threads, of the trainer and of the local engine beside it (rollout.max_staleness > 0) each; "
        "null: one for models under 500k parameters, else all cores, shared by both"
    )
    strategy: Literal["single", "ddp", "fsdp2"] = Field(
        description="single: one process; ddp: every process holds the model; fsdp2: each holds a part of it"
    )
    world_size: PositiveInt | None = Field(
        description="processes that have to be there, or the run is refused; null: as many as the launcher started"
    )
    cpu_offload: bool = Field(
        description="fsdp2 on GPUs: weights, gradients and moments wait in the CPU's memory; slower"
    )
    checkpoint_every: PositiveInt | None = Field(description="steps between checkpoints; null: only at the end")
    keep_last: PositiveInt = Field(description="checkpoints to keep, newest first")
    keep_best: bool = Field(description="also keep the checkpoint with the best held-out accuracy")


class LocalEngine(Section):
    """In-process continuous batching over the policy's own weights."""

    name: Literal["local"]
    max_batch_size: Annotated[int, Field(ge=1, le=65_536)] = Field(
        description="completions decoded at the same time; more wait their turn"
    )


class VllmEngine(Section):
    """Servers of vLLM, which get the policy's weights after every update (docs/vllm.md)."""

    name: Literal["vllm"]
    urls: Annotated[tuple[Annotated[str, Field(pattern=r"^https?://", max_length=500)], ...], Field(min_length=1)] = (
        Field(description="addresses of the servers; the least busy one gets the next completion")
    )
    sync: Literal["folder", "adapter", "broadcast"] = Field(
        description="folder: all weights go to the servers as files, adapters added to what is under them; adapter: "
        "only the adapter, in the place of the last one (needs model.lora.enabled and servers with --enable-lora); "
        "broadcast: all weights over the network, for servers that share no folder with the trainer"
    )
    broadcast_host: Annotated[str, Field(min_length=1, max_length=255)] | None = Field(
        description="address of the trainer's machine from which weights are broadcast, on free ports; null: the one "
        "by which it reaches the servers, 127.0.0.1 where they are on it"
    )
    weights_dir: Annotated[str, Field(min_length=1)] | None = Field(
        description="folder for these files, which servers read under the same name; null: weights/ in the run folder"
    )
    max_batch_size: PositiveInt = Field(
        description="completions that all servers together are asked for at the same time; more wait their turn"
    )
    timeout_s: Annotated[float, Field(gt=0, le=MAX_WAIT_S)] = Field(
        description="a request or a push of weights that takes longer has failed; the first ones of a server are slow"
    )
    wait_s: Annotated[float, Field(ge=0, le=MAX_WAIT_S)] = Field(
        description="how long to wait for a server to come back when none is left; then the run ends, to be resumed"
    )
    max_retries: NonNegativeInt = Field(description="further attempts for a completion, with the same seed")
    max_logprob_gap: PositiveFloat | None = Field(
        description="largest difference between a server's logprobs and the trainer's, compared after every push; "
        "null: 1e-4 where both compute in float32, else 0.25"
    )


EngineConfig = Annotated[LocalEngine | VllmEngine, Field(discriminator="name")]


class Evaluation(Section):
    """Held-out evaluation while training; the first one is made before the first update."""

    every: PositiveInt = Field(description="steps between evaluations; the last step is always evaluated")
    num_examples: PositiveInt = Field(description="held-out examples, always the same")
    samples_per_example: NonNegativeInt = Field(
        description="0: greedy only; k > 0: also k sampled completions each, for avg@k and pass@k"
    )
    headline: Annotated[str, Field(pattern=r"^(accuracy|sampled_accuracy|(sampled_)?part_.+)$")] = Field(
        description="the number of eval/<task>/ that the console shows and the best checkpoint is best at: accuracy, "
        "sampled_accuracy, part_<name> or sampled_part_<name> of a part of the reward"
    )
    also: dict[str, TaskBundle] = Field(
        description="more tasks to evaluate, each with its own prompt and metric: a list of names, e.g. [finqa]; or "
        "name: {task: jsonl, set: ['task.path=...']}"
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
    report_to: tuple[TrackerName, ...] = Field(
        description="trackers that get every number of metrics.jsonl, too: mlflow, wandb, tensorboard, or several "
        "(docs/trackers.md)"
    )
    run_name: Text | None = Field(description="what the run is called there; null: as its folder")
    group: Text | None = Field(
        description="what it belongs to there; null: nothing, or, with --multirun, the sweep's folder"
    )
    tags: tuple[Annotated[str, Field(min_length=1, max_length=64)], ...] = Field(
        description="labels there, e.g. [baseline,paper]; MLflow reads team:nlp as a tag with a value"
    )
    max_completions: NonNegativeInt = Field(
        description="completions of each rollout file that are shown there, in the order of the file; 0: none"
    )
    timeout_s: PositiveFloat = Field(
        description="a tracker that takes longer over something is given up; training never waits, the end of the run "
        "at most so long"
    )
    upload_timeout_s: PositiveFloat = Field(description="the same for the final model where log_model=true")
    mlflow: Mlflow
    wandb: Wandb
    tensorboard: Tensorboard
