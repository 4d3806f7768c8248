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
    CitationPart,
    CombinedPart,
    CompletionPart,
    CustomPart,
    EnvReward,
    FinqaNumericPart,
    FinqaProgramPart,
    FormatApproximatePart,
    FormatExactPart,
    HopsPart,
    LengthPart,
    MathPart,
    MixReward,
    MultiHopAnswerPart,
    NumberCheckPart,
    NumericPart,
    PartsReward,
    ReasoningGymPart,
    RepetitionPart,
    RetrievalPart,
    RewardConfig,
    RewardPart,
    RpnReward,
    TextPart,
)
from rlvr.config.schema.run import EngineConfig, Evaluation, LocalEngine, Rollout, Tracker, Trainer, VllmEngine
from rlvr.config.schema.tasks import (
    FinqaTask,
    GeneratorTask,
    Gsm8kTask,
    HotpotqaTask,
    HubTask,
    JsonlTask,
    MixPart,
    MixTask,
    MultiHopTask,
    MusiqueTask,
    ReasoningGymTask,
    Retrieval,
    RpnTask,
    SingleTask,
    TaskBundle,
    TaskConfig,
    TwoHopTask,
    VerifiersTask,
    Wiki2Task,
)
from rlvr.config.schema.trackers import Mlflow, Tensorboard, TrackerName, Wandb

__all__ = [
    "Aggregation",
    "Algorithm",
    "AlgorithmConfig",
    "Cispo",
    "CitationPart",
    "CombinedPart",
    "CompletionPart",
    "Config",
    "CustomPart",
    "Dapo",
    "DrGrpo",
    "EngineConfig",
    "EnvReward",
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
    "HopsPart",
    "HotpotqaTask",
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
    "Mlflow",
    "ModelConfig",
    "MultiHopAnswerPart",
    "MultiHopTask",
    "MusiqueTask",
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
    "Retrieval",
    "RetrievalPart",
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
    "Tensorboard",
    "TextPart",
    "Tracker",
    "TrackerName",
    "Trainer",
    "TwoHopTask",
    "VerifiersTask",
    "VllmEngine",
    "Wandb",
    "WarmStart",
    "Wiki2Task",
]


class Config(Section):
    """A whole run."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="first part of the run folder's name")
    seed: NonNegativeInt = Field(description="the one seed; every other is derived from it")
    run_dir: Annotated[str, Field(min_length=1)] | None = Field(
        description="run folder; null: runs/<name>-<time>, and runs/latest points to it"
    )
    resume: bool = Field(description="go on from the last complete checkpoint in run_dir")
    debug: bool = Field(description="few examples and steps, every rollout written, every episode printed by turn")
    task: TaskConfig
    model: ModelConfig
    warm_start: WarmStart
    reward: Annotated[RpnReward | PartsReward | EnvReward | MixReward, Field(discriminator="name")]
    prompt: Prompt
    markers: Markers
    rollout: Rollout
    algorithm: AlgorithmConfig
    trainer: Trainer
    engine: EngineConfig
    evaluation: Evaluation
    tracker: Tracker
