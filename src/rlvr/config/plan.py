"""What a run is about to do, in a few lines: said before anything is loaded."""

from rlvr.config.prompt_rules import prompt_notes
from rlvr.config.schema import (
    Config,
    EnvReward,
    GeneratorTask,
    MixTask,
    MultiHopTask,
    PartsReward,
    PretrainedModel,
    ReasoningGymTask,
    RpnReward,
    RpnTask,
    SingleTask,
    TwoHopTask,
    VerifiersTask,
)


def plan(config: Config) -> list[str]:
    """`["task: gsm8k from openai/gsm8k", "model: Qwen/Qwen2.5-0.5B-Instruct, float32, LoRA r=16", ...]`"""
    rollout = config.rollout
    steps = f"{config.trainer.max_steps} steps of {rollout.prompts_per_step} prompts x {rollout.group_size} completions"
    also = [f"{name} ({_source(bundle.task)})" for name, bundle in config.evaluation.also.items()]
    return [
        f"task: {_tasks(config)}",
        f"model: {_model(config)}",
        f"reward: {_reward(config)}",
        f"training: {config.algorithm.name}, {steps}, learning rate {config.trainer.learning_rate:g}",
        *_staleness(config),
        f"evaluation: every {config.evaluation.every} steps, {config.evaluation.num_examples} examples"
        + (f", also {', '.join(also)}" if also else ""),
        *(f"note: {note}" for note in prompt_notes(config)),
    ]


def _staleness(config: Config) -> list[str]:
    """What is sampled while the trainer works, and what corrects for its age."""
    limit, correction = config.rollout.max_staleness, config.algorithm.mismatch_correction
    if limit == 0:
        return []
    said = f"corrected by {correction}"
    if correction == "none":
        said = "not corrected (algorithm.mismatch_correction=none): watch policy/mismatch_kl"
    return [f"rollouts: sampled while the trainer works, by weights at most {limit} updates old, {said}"]


def _tasks(config: Config) -> str:
    if isinstance(config.task, MixTask):
        parts = [f"{name} x {part.weight:g} ({_source(part.task)})" for name, part in config.task.parts.items()]
        return f"mix of {', '.join(parts)}"
    return f"{config.task.name} ({_source(config.task)})"


def _source(task: SingleTask) -> str:
    """Where a task's examples come from."""
    if isinstance(task, RpnTask | TwoHopTask):
        return "generated"
    if isinstance(task, GeneratorTask):
        return task.source
    if isinstance(task, VerifiersTask):
        return task.env_id
    if isinstance(task, MultiHopTask):
        return f"{task.train_sets}; retriever {task.retriever}"
    return task.dataset if isinstance(task, ReasoningGymTask) else task.path


def _model(config: Config) -> str:
    model = config.model
    if not isinstance(model, PretrainedModel):
        return f"{model.name}, {model.num_layers} layers of width {model.hidden_size}"
    bits = ", 4-bit" * model.load_in_4bit + ", 8-bit" * model.load_in_8bit
    adapters = f", LoRA r={model.lora.r}" if model.lora.enabled else ""
    return f"{model.name_or_path}, {model.dtype}{bits}{adapters}"


def _reward(config: Config) -> str:
    if isinstance(config.reward, PartsReward):
        return " + ".join(f"{part.weight:g} x {name}" for name, part in config.reward.parts.items())
    if isinstance(config.reward, EnvReward):
        return "that of the environment"
    return config.reward.type if isinstance(config.reward, RpnReward) else "that of each task"
