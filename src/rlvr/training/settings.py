"""Settings of the warm start, and of training beside what core reads."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from rlvr.core.settings import TrainerSettings
from rlvr.run_view import ModelView
from rlvr.settings import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Settings, Share, setting, wrong

_WARM, _WORDS = "enabled and model.from_scratch", "{enabled} and a model made from scratch"
WARM = f"{_WARM}  # {_WORDS}"


class WarmStartSettings(Settings):
    """Supervised training on the task's demonstrations before RL; only for models made from scratch."""

    enabled: bool = setting(True, "false: RL starts from random weights")
    cache: bool = setting(True, "reuse the weights of an earlier identical warm start, and cache those of a new one")
    loss_on: Literal["completion", "all"] = setting(
        "completion",
        "completion: only tokens of completions; all: also the prompt, as in pretraining",
        only_if=WARM,
    )
    optimizer: Literal["adamw", "muon"] = setting(
        "adamw", "muon: hidden matrices by Muon, the rest by AdamW; fewer steps", only_if=WARM
    )
    num_steps: PositiveInt = setting(1000, "optimizer steps", only_if=WARM, debug=300)
    batch_size: PositiveInt = setting(64, "fresh demonstrations per step", only_if=WARM)
    learning_rate: PositiveFloat = setting(3.0e-3, "peak of the linear schedule", only_if=WARM)
    warmup_steps: NonNegativeInt = setting(20, "steps of linear warm-up", only_if=WARM, debug=6)
    final_learning_rate_share: Share = setting(0.05, "learning rate of the last step / peak", only_if=WARM)
    weight_decay: NonNegativeFloat = setting(0.01, "weight decay; with muon only of its matrices", only_if=WARM)
    worked_share: Share = setting(
        1.0,
        "share of demonstrations that write the intermediate steps",
        only_if=f"{_WARM} and final_phase_steps < num_steps  # {_WORDS} and {{final_phase_steps}} < {{num_steps}}",
    )
    final_phase_steps: NonNegativeInt = setting(
        200, "number of last steps that use final_worked_share instead", only_if=WARM, debug=60
    )
    final_worked_share: Share = setting(
        0.15,
        "worked_share of the final phase; RL has to regain the steps",
        only_if=f"{_WARM} and final_phase_steps > 0  # {_WORDS} and {{final_phase_steps}} > 0",
    )

    @model_validator(mode="after")
    def _warm_up_ends(self) -> Self:
        return check_warm_up(self, self.num_steps, "warm_start.num_steps")


class TrainingSettings(TrainerSettings):
    """Optimization, precision, devices and checkpoints."""

    device: Literal["auto", "cpu", "cuda", "mps", "xpu"] = setting(
        "auto",
        "where the model is trained and the local engine samples; auto: this process's accelerator (number LOCAL_RANK) "
        "where torch sees one (apart from mps), else the CPU",
    )
    num_threads: Annotated[int, Field(ge=1, le=1024)] | None = setting(
        None,
        "CPU threads of the trainer, and of a local engine that samples meanwhile; null: one for models under 500k "
        "parameters, else all cores, shared by both",
    )
    world_size: PositiveInt | None = setting(
        None, "required number of processes; null: as many as the launcher started"
    )
    checkpoint_every: PositiveInt | None = setting(10, "steps between checkpoints; null: only at the end")
    keep_last: PositiveInt = setting(2, "checkpoints to keep, newest first", only_if="checkpoint_every is not None")
    keep_best: bool = setting(
        True, "also keep the checkpoint with the best held-out accuracy", only_if="checkpoint_every is not None"
    )

    def fitted(self, model: ModelView) -> Self:
        """Settings with `auto` and shares resolved for a run with this model."""
        values: dict[str, Any] = {}
        if isinstance(self.warmup_steps, float):
            values["warmup_steps"] = round(self.warmup_steps * self.max_steps)
        if self.learning_rate == "auto":
            values["learning_rate"] = 4.0e-4 if model.from_scratch else 1.0e-5 if model.adapted else 1.0e-6
        return self.model_copy(update=values)

    @model_validator(mode="after")
    def _warm_up_ends(self) -> Self:
        return check_warm_up(self, self.max_steps, "max_steps")


def check_warm_up(section: Any, steps: int, limit: str) -> Any:
    if section.warmup_steps > steps and section.warmup_steps != type(section).model_fields["warmup_steps"].default:
        raise wrong("warmup_steps", f"is more than {limit}={steps}, so the learning rate is never reached; lower it")
    return section
