"""What a configuration may say. Frozen pydantic models; an unknown key or a value out of range is an error.

The values live in `rlvr/conf/*.yaml` and only there: a field here has a type, bounds and a description, no default.
"""

from typing import Annotated

from pydantic import Field

from rlvr.config.schema.algorithms import (
    Aggregation,
    Algorithm,
    AlgorithmConfig,
    Cispo,
    Dapo,
    DrGrpo,
    Grpo,
    Gspo,
    Ppo,
    ReinforcePP,
    Rloo,
)
from rlvr.config.schema.base import NonNegativeInt, Section
from rlvr.config.schema.models import Lora, ModelConfig, PretrainedModel, ScratchBpeModel, ScratchModel, WarmStart
from rlvr.config.schema.prompts import Markers, MarkerSet, Prompt
from rlvr.config.schema.rewards import (
    CustomPart,
    FinqaNumericPart,
    FinqaProgramPart,
    FormatApproximatePart,
    FormatExactPart,
    LengthPart,
    MathPart,
    MixReward,
    NumberCheckPart,
    NumericPart,
    PartsReward,
    ReasoningGymPart,
    RepetitionPart,
    RewardConfig,
    RewardPart,
    RpnReward,
    TextPart,
)
from rlvr.config.schema.run import EngineConfig, Evaluation, LocalEngine, Rollout, Tracker, Trainer
from rlvr.config.schema.tasks import (
    FinqaTask,
    GeneratorTask,
    Gsm8kTask,
    HubTask,
    JsonlTask,
    MixPart,
    MixTask,
    ReasoningGymTask,
    RpnTask,
    SingleTask,
    TaskBundle,
    TaskConfig,
)

__all__ = [
    "Aggregation",
    "Algorithm",
    "AlgorithmConfig",
    "Cispo",
    "Config",
    "CustomPart",
    "Dapo",
    "DrGrpo",
    "EngineConfig",
    "Evaluation",
    "FinqaNumericPart",
    "FinqaProgramPart",
    "FinqaTask",
    "FormatApproximatePart",
    "FormatExactPart",
    "GeneratorTask",
    "Grpo",
    "Gsm8kTask",
    "Gspo",
    "HubTask",
    "JsonlTask",
    "LengthPart",
    "LocalEngine",
    "Lora",
    "MarkerSet",
    "Markers",
    "MathPart",
    "MixPart",
    "MixReward",
    "MixTask",
    "ModelConfig",
    "NumberCheckPart",
    "NumericPart",
    "PartsReward",
    "Ppo",
    "PretrainedModel",
    "Prompt",
    "ReasoningGymPart",
    "ReasoningGymTask",
    "ReinforcePP",
    "RepetitionPart",
    "RewardConfig",
    "RewardPart",
    "Rloo",
    "Rollout",
    "RpnReward",
    "RpnTask",
    "ScratchBpeModel",
    "ScratchModel",
    "Section",
    "SingleTask",
    "TaskBundle",
    "TaskConfig",
    "TextPart",
    "Tracker",
    "Trainer",
    "WarmStart",
]


class Config(Section):
    """A whole run."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="first part of the run folder's name")
    seed: NonNegativeInt = Field(description="the one seed; every other is derived from it")
    run_dir: Annotated[str, Field(min_length=1)] | None = Field(description="run folder; null: runs/<name>-<time>")
    resume: bool = Field(description="go on from the last complete checkpoint in run_dir")
    task: TaskConfig
    model: ModelConfig
    warm_start: WarmStart
    reward: Annotated[RpnReward | PartsReward | MixReward, Field(discriminator="name")]
    prompt: Prompt
    markers: Markers
    rollout: Rollout
    algorithm: AlgorithmConfig
    trainer: Trainer
    engine: EngineConfig
    evaluation: Evaluation
    tracker: Tracker
