"""Settings of optimization, precision, checkpoints, and of the warm start."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from rlvr.settings import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Settings, Share, setting, wrong


class TrainerSettings(Settings):
    """Optimization, precision, checkpoints."""

    max_steps: PositiveInt = setting(60, "steps of the run: rollouts, then update", debug=3, le=10**9)
    learning_rate: PositiveFloat | Literal["auto"] = setting(
        "auto",
        "peak learning rate of AdamW; auto: 1e-6 for a pretrained model, 1e-5 for its adapters, 4e-4 for a model made "
        "from scratch",
    )
    schedule: Literal["constant", "linear", "cosine"] = setting("constant", "learning rate after the warm-up")
    warmup_steps: NonNegativeInt | Annotated[float, Field(gt=0, lt=1)] = setting(
        10, "steps of linear warm-up; a number below 1 is a share of max_steps", debug=0
    )
    final_learning_rate_share: Share = setting(0.1, "learning rate at the end / peak", only_if="schedule != 'constant'")
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = setting(0.9, "AdamW")
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = setting(0.95, "AdamW")
    weight_decay: NonNegativeFloat = setting(0.0, "AdamW")
    max_grad_norm: PositiveFloat = setting(1.0, "the gradient is clipped to this norm")
    microbatch_tokens: PositiveInt | Literal["auto"] = setting(
        "auto",
        "tokens per forward and backward pass; gradients accumulate exactly, only memory and speed change; auto: on a "
        "GPU the most that fit by the memory plan (docs/gpu.md), on a CPU 2048",
    )
    device: Literal["auto", "cpu", "cuda"] = setting(
        "auto",
        "where the model is trained and the local engine samples; auto: this process's GPU (number LOCAL_RANK) where "
        "torch sees one, else the CPU",
    )
    precision: Literal["auto", "fp32", "bf16"] = setting(
        "auto",
        "autocast of forward and backward; auto: bf16 on a GPU, and on a CPU with bf16 instructions from hidden size "
        "128 on, where it is faster",
    )
    num_threads: Annotated[int, Field(ge=1, le=1024)] | None = setting(
        None,
        "CPU threads, of the trainer and of the local engine beside it (rollout.max_staleness > 0) each; null: one for "
        "models under 500k parameters, else all cores, shared by both",
    )
    strategy: Literal["single", "ddp", "fsdp2"] = setting(
        "single", "single: one process; ddp: every process holds the model; fsdp2: each holds a part of it"
    )
    world_size: PositiveInt | None = setting(
        None, "processes that must be there, or the run is refused; null: as many as the launcher started"
    )
    cpu_offload: bool = setting(
        False,
        "fsdp2 on GPUs: weights, gradients and moments wait in the CPU's memory; slower",
        only_if="strategy == 'fsdp2'",
    )
    checkpoint_every: PositiveInt | None = setting(10, "steps between checkpoints; null: only at the end")
    keep_last: PositiveInt = setting(2, "checkpoints to keep, newest first", only_if="checkpoint_every is not None")
    keep_best: bool = setting(
        True, "also keep the checkpoint with the best held-out accuracy", only_if="checkpoint_every is not None"
    )

    @model_validator(mode="after")
    def _warm_up_ends(self) -> Self:
        return _warm_up_ends(self, self.max_steps, "trainer.max_steps")

    def fitted(self, model: Any) -> Self:
        """With what `auto` and shares stand for in a run with this model."""
        values: dict[str, Any] = {}
        if isinstance(self.warmup_steps, float):
            values["warmup_steps"] = round(self.warmup_steps * self.max_steps)
        if self.learning_rate == "auto":
            values["learning_rate"] = 4.0e-4 if model.from_scratch else 1.0e-5 if model.adapted else 1.0e-6
        return self.model_copy(update=values)


def _warm_up_ends(section: Any, steps: int, limit: str) -> Any:
    if section.warmup_steps > steps and section.warmup_steps != type(section).model_fields["warmup_steps"].default:
        raise wrong("warmup_steps", f"is more than {limit}={steps}, so the learning rate is never reached; lower it")
    return section


WARM = "enabled and model.from_scratch"


class WarmStartSettings(Settings):
    """Supervised training on the task's demonstrations before RL; only for models made from scratch."""

    enabled: bool = setting(True, "false: RL starts from random weights")
    loss_on: Literal["completion", "all"] = setting(
        "completion",
        "completion: only what follows the prompt; all: the prompt too, as in pretraining",
        only_if=WARM,
    )
    num_steps: PositiveInt = setting(1000, "optimizer steps in all", only_if=WARM, debug=300)
    batch_size: PositiveInt = setting(64, "fresh demonstrations per step", only_if=WARM)
    learning_rate: PositiveFloat = setting(3.0e-3, "peak of the linear schedule", only_if=WARM)
    warmup_steps: NonNegativeInt = setting(20, "steps of linear warm-up", only_if=WARM, debug=6)
    final_learning_rate_share: Share = setting(
        0.05, "learning rate of the last step, as a share of the peak", only_if=WARM
    )
    weight_decay: NonNegativeFloat = setting(0.01, "AdamW weight decay", only_if=WARM)
    worked_share: Share = setting(
        1.0,
        "share of demonstrations that write the intermediate steps",
        only_if=f"{WARM} and final_phase_steps < num_steps",
    )
    final_phase_steps: NonNegativeInt = setting(
        200, "the last steps, this many, use final_worked_share instead", only_if=WARM, debug=60
    )
    final_worked_share: Share = setting(
        0.15,
        "worked_share of the final phase: what RL has to win back",
        only_if=f"{WARM} and final_phase_steps > 0",
    )

    @model_validator(mode="after")
    def _warm_up_ends(self) -> Self:
        return _warm_up_ends(self, self.num_steps, "warm_start.num_steps")
