"""Settings of the warm start."""

from typing import Literal, Self

from pydantic import model_validator

from rlvr.core.settings import check_warm_up
from rlvr.settings import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Settings, Share, setting

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
