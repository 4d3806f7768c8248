"""A summary of the run in a few lines, printed before anything is loaded."""

from rlvr.config import Config


def summary(config: Config) -> list[str]:
    """`["task: gsm8k (openai/gsm8k)", "model: Qwen/Qwen2.5-0.5B-Instruct, float32, LoRA r=16", ...]`"""
    rollout, evaluation = config.rollout, config.evaluation
    steps = f"{config.trainer.max_steps} steps of {rollout.prompts_per_step} prompts x {rollout.group_size} completions"
    also = [f"{name} ({bundle.task.origin})" for name, bundle in evaluation.also.items()]
    beside = f", also {', '.join(also)}" if also else ""
    parts = " + ".join(f"{part.weight:g} x {name}" for name, part in config.reward.parts.items() if part.weight)
    measured = ", ".join(name for name, part in config.reward.parts.items() if not part.weight)
    parts += f"; measured only: {measured}" if measured else ""
    return [
        f"task: {config.task.label} ({config.task.origin})",
        f"model: {config.model.summary}",
        f"reward: {parts or ('by task' if config.task.bundles else 'by the environment')}",
        *_warm_start(config),
        f"training: {config.algorithm.name}, {steps}, learning rate {config.trainer.learning_rate:g}"
        if config.trainer.max_steps
        else "training: none (trainer.max_steps=0)",
        *_staleness(config),
        "evaluation: none"
        if evaluation.every is None
        else f"evaluation: every {evaluation.every} steps, {evaluation.num_examples} examples{beside}",
        *(f"note: {note}" for note in config.notes),
    ]


def _warm_start(config: Config) -> list[str]:
    """The supervised training of a pretrained model."""
    warm = config.warm_start
    if config.model.from_scratch or not warm.enabled:
        return []
    own = f"{warm.samples} samples of each question, the right ones"
    source = own if warm.source == "own" else "demonstrations"
    epochs = warm.epochs(config.model)
    length = f"{warm.num_steps} steps" if epochs is None else f"{epochs} epochs"
    return [f"warm start: {source}, {length}, learning rate {warm.learning_rate:g}"]


def _staleness(config: Config) -> list[str]:
    """The sampling mode and its off-policy correction."""
    limit, correction = config.rollout.max_staleness, config.algorithm.mismatch_correction
    if limit == 0:
        return []
    how = f"corrected by {correction}"
    if correction == "none":
        how = "not corrected (algorithm.mismatch_correction=none costs accuracy, benchmarks/results/stale.md)"
    return [f"rollouts: sampled while the trainer works, by weights at most {limit} updates old, {how}"]
