"""Settings of the warm start, and of training beside what core reads."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from rlvr.core.settings import TrainerSettings, known
from rlvr.run_view import ModelView
from rlvr.settings import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Settings, Share, setting, wrong

_WARM, _WORDS = "enabled and model.from_scratch", "{enabled} and a model made from scratch"
TUNED, _TUNED = "enabled and not model.from_scratch", "{enabled}=true and model=hf"
IN_EPOCHS = "enabled and (num_steps is None or not model.from_scratch)  # {enabled}, and model=hf or {num_steps}=null"
IN_STEPS = (
    "enabled and (num_epochs is None or model.from_scratch)  # {enabled}, and a model made from scratch or "
    "{num_epochs}=null"
)


class WarmStartSettings(Settings):
    """Supervised training before RL, on the task's demonstrations or the model's own right samples."""

    enabled: bool | Literal["auto"] = setting(
        "auto", "train before RL; auto: a model made from scratch, which else starts from random weights"
    )
    cache: bool = setting(
        True,
        "reuse the weights of an earlier identical warm start, and cache those of a new one (trained weights of up to "
        "2 GiB)",
        only_if="enabled",
    )
    source: Literal["demonstrations", "own"] = setting(
        "demonstrations",
        "demonstrations: of the task's data; own: the model's own samples that the metric calls right",
        only_if=f"{TUNED}  # {_TUNED}",
    )
    num_examples: PositiveInt | None = setting(
        None,
        "demonstrations, or questions to sample, of each training task; null: all, or 1,000 of an endless task",
        only_if=IN_EPOCHS,
        debug=32,
    )
    samples: PositiveInt = setting(
        8,
        "completions sampled of each question",
        only_if=f"{TUNED} and source == 'own'  # {_TUNED} and {{source}}=own",
    )
    num_epochs: PositiveInt | None = setting(
        3,
        "passes over the examples; a model made from scratch makes num_steps over ever new ones, unless that is null",
        only_if=IN_EPOCHS,
        debug=1,
    )
    num_steps: PositiveInt | None = setting(
        1000, "optimizer steps; with model=hf num_epochs decides, unless that is null", only_if=IN_STEPS, debug=300
    )
    loss_on: Literal["completion", "all"] = setting(
        "completion",
        "completion: only tokens of completions; all: also prompts and replies, as in pretraining",
        only_if="enabled",
    )
    optimizer: Literal["adamw", "muon"] = setting(
        "adamw", "muon: hidden matrices by Muon, the rest by AdamW; fewer steps from scratch", only_if="enabled"
    )
    batch_size: PositiveInt | Literal["auto"] = setting(
        "auto", "demonstrations per step; auto: 64 from scratch, 16 with model=hf", only_if="enabled"
    )
    learning_rate: PositiveFloat | Literal["auto"] = setting(
        "auto",
        "peak of the linear schedule; auto: 3e-3 from scratch, 1e-5 for a pretrained model, 1e-4 for its adapters",
        only_if="enabled",
    )
    warmup_steps: NonNegativeInt | Annotated[float, Field(gt=0, lt=1)] | Literal["auto"] = setting(
        "auto",
        "steps of linear warm-up; a number below 1 is a share of all; auto: 20 from scratch, 0.1 with model=hf",
        only_if="enabled",
        debug=0.02,
    )
    final_learning_rate_share: Share = setting(0.05, "learning rate of the last step / peak", only_if="enabled")
    weight_decay: NonNegativeFloat = setting(0.01, "weight decay; with muon only of its matrices", only_if="enabled")
    worked_share: Share = setting(
        1.0,
        "share of demonstrations that write the intermediate steps",
        only_if=f"{_WARM} and (num_steps is None or final_phase_steps < num_steps)  # {_WORDS} and "
        "{final_phase_steps} < {num_steps}",
    )
    final_phase_steps: NonNegativeInt = setting(
        200, "number of last steps that use final_worked_share instead", only_if=f"{_WARM}  # {_WORDS}", debug=60
    )
    final_worked_share: Share = setting(
        0.15,
        "worked_share of the final phase; RL has to regain the steps",
        only_if=f"{_WARM} and final_phase_steps > 0  # {_WORDS} and {{final_phase_steps}} > 0",
    )

    @property
    def examples_per_step(self) -> int:
        return known(self.batch_size)

    def warmup_of(self, steps: int) -> int:
        """Steps of warm-up among `steps`."""
        warmup = known(self.warmup_steps)
        return round(warmup * steps) if isinstance(warmup, float) else warmup

    def fitted(self, model: ModelView) -> Self:
        """Settings with `auto` resolved for a run with this model."""
        auto: dict[str, Any] = {"enabled": False, "batch_size": 16, "warmup_steps": 0.1}
        auto["learning_rate"] = 1.0e-4 if model.adapted else 1.0e-5
        if model.from_scratch:
            auto = {"enabled": True, "batch_size": 64, "warmup_steps": 20, "learning_rate": 3.0e-3}
        values = {key: value for key, value in auto.items() if getattr(self, key) == "auto"}
        if model.from_scratch and isinstance(self.warmup_steps, float) and self.num_steps is not None:
            values["warmup_steps"] = self.warmup_of(self.num_steps)
        return self.model_copy(update=values)

    def epochs(self, model: ModelView) -> int | None:
        """Passes over the examples; None if `num_steps` decides."""
        return self.num_epochs if self.num_steps is None or not model.from_scratch else None

    def of_trainer(self, trainer: "TrainingSettings", num_steps: int) -> "TrainingSettings":
        """Settings of the trainer that makes these steps: what the warm start does not say is RL's."""
        own = ("optimizer", "learning_rate", "final_learning_rate_share", "weight_decay")
        changes = {name: known(getattr(self, name)) for name in own} | {"schedule": "linear", "max_steps": num_steps}
        changes["warmup_steps"] = self.warmup_of(num_steps)
        if self.optimizer == "muon" and trainer.strategy == "fsdp2":  # it needs whole matrices
            changes |= {"strategy": "ddp", "cpu_offload": False}
        return trainer.model_copy(update=changes)

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if self.num_steps is None and self.num_epochs is None:
            raise wrong("num_steps", "and num_epochs are both null; give one of them")
        return check_warm_up(check_rate(self), self.num_steps or 0, "warm_start.num_steps")


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
            values["warmup_steps"] = self.num_warmup_steps
        if self.learning_rate == "auto":
            values["learning_rate"] = 4.0e-4 if model.from_scratch else 1.0e-5 if model.adapted else 1.0e-6
        if self.precision == "auto" and not (model.from_scratch or model.adapted):
            from rlvr.models.devices import likely_device

            # Weights of a 16-bit file lie on its grid, and an update of the size of a step of the grid is lost in a
            # rounded copy: after a warm start of 6 steps 0.72 of the answers were right, 0.34 rounded (docs/log.md)
            if likely_device(self.device).type == "cpu":
                values["precision"] = "fp32"
        return self.model_copy(update=values)

    @model_validator(mode="after")
    def _float16_is_not_sharded(self) -> Self:
        if self.precision == "fp16" and self.strategy == "fsdp2":
            raise wrong("precision", "is not possible with trainer.strategy=fsdp2; set bf16, or trainer.strategy=ddp")
        return self

    @model_validator(mode="after")
    def _muon_is_not_sharded(self) -> Self:
        if self.optimizer == "muon" and self.strategy == "fsdp2":
            raise wrong("optimizer", "needs whole matrices; set trainer.strategy=ddp, or adamw")
        return check_rate(self)

    @model_validator(mode="after")
    def _warm_up_ends(self) -> Self:
        return check_warm_up(self, self.max_steps, "max_steps")


def check_rate(section: Any) -> Any:
    if section.optimizer == "muon" and section.learning_rate == "auto":
        raise wrong("learning_rate", "is a rate of AdamW; with optimizer=muon give one, e.g. 0.01")
    return section


def check_warm_up(section: Any, steps: int, limit: str) -> Any:
    given, default = section.warmup_steps, type(section).model_fields["warmup_steps"].default
    if given not in ("auto", default) and given > steps > 0:
        raise wrong("warmup_steps", f"is more than {limit}={steps}, so the learning rate is never reached; lower it")
    return section
