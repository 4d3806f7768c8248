"""The README.md of an exported model: scores, use, training, how to repeat it, samples.

Every number was measured by the run at the exported step; without one the card says so. Untrusted texts (model output,
settings, names) are escaped or inside code fences that they cannot close.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr import __version__
from rlvr.config import Config
from rlvr.config.said import leaf_values
from rlvr.evaluation.tables import score_name
from rlvr.settings import dumped
from rlvr.tracking.episodes import visible

MAX_CHARS = 2_000  # of one text from a model
MAX_SETTING_CHARS = 100  # a longer value is in training_config.yaml only
SHOWN = (
    *("seed", "task.name", "algorithm.name", "model.dtype", "model.load_in_4bit", "model.load_in_8bit"),
    *("model.hidden_size", "model.num_layers", "model.lora.r", "model.lora.alpha", "model.lora.target_modules"),
    *("warm_start.num_steps", "trainer.max_steps", "trainer.learning_rate", "trainer.schedule", "trainer.warmup_steps"),
    *("trainer.weight_decay", "trainer.max_grad_norm", "trainer.precision", "rollout.prompts_per_step"),
    *("rollout.group_size", "rollout.max_completion_tokens", "rollout.temperature", "rollout.top_p"),
    *("algorithm.clip_low", "algorithm.clip_high", "algorithm.kl_coef", "algorithm.aggregation"),
    *("algorithm.num_epochs", "algorithm.num_minibatches"),
)
"""The settings in the table, beside the task's own."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """An episode of training."""

    step: int
    texts: tuple[tuple[str, str], ...]  # (prompt | completion | reply, text)
    reward: float | None


@dataclass(frozen=True, kw_only=True)
class Card:
    """The contents of the card."""

    name: str  # folder or repository to load
    title: str
    config: Config
    kind: str  # whole, adapter or merged
    step: int
    is_final: bool
    base_model: str | None  # its Hub id; None: from scratch, or a local folder
    license: str | None
    num_parameters: int
    before: Mapping[str, float]  # the run's metrics at step 0
    after: Mapping[str, float]  # and at `step`
    samples: Sequence[Sample]
    prompt: str | None  # a whole prompt as text, for models without a chat template
    messages: Sequence[Mapping[str, str]]  # a prompt for models with one
    missing: Sequence[str]  # settings that name something on the machine of the run


def write_card(card: Card) -> str:
    """The whole README.md."""
    sections = (_head, _scores, _use, _training, _repeat, _samples)
    text = "\n\n".join(line for section in sections for line in section(card))
    return f"---\n{_metadata(card)}\n---\n\n{text}\n"


def _metadata(card: Card) -> str:
    """The YAML that the Hub reads, with the headline score of each evaluated set for `model-index`."""
    from huggingface_hub import EvalResult, ModelCardData

    results = [
        EvalResult(
            task_type="text-generation",
            dataset_type=_hub_id(card.config, score.task) or score.task,
            dataset_name=score.task,
            dataset_split="held out",
            dataset_args={"num_examples": score.num_examples},
            metric_type="accuracy",
            metric_name=score.name,
            metric_value=round(score.value, 4),
            metric_args={"low_95": round(score.low, 4), "high_95": round(score.high, 4)},
        )
        for score in scores(card.after)
        if score.name == "accuracy"
    ]
    data = ModelCardData(
        library_name="peft" if card.kind == "adapter" else "transformers",
        pipeline_tag="text-generation",
        license=card.license,
        base_model=card.base_model,
        datasets=[found for name in card.config.trained if (found := _hub_id(card.config, name))] or None,
        tags=["rlvr", "reinforcement-learning", card.config.algorithm.name, card.config.task.name],
        model_name=card.title,
        eval_results=results or None,
    )
    return data.to_yaml().strip()


def _hub_id(config: Config, name: str) -> str:
    """Where the Hub has the data of a task; empty for tasks that make their examples."""
    if (bundle := config.bundles.get(name)) is None:
        return ""
    path = getattr(bundle.task, "path", "")
    return bundle.task.hub_id or (path if re.fullmatch(r"[\w.-]+/[\w.-]+", path) and not Path(path).exists() else "")


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """One number of an evaluation with its 95 % interval."""

    task: str
    name: str
    value: float
    low: float
    high: float
    num_examples: int


def scores(metrics: Mapping[str, float]) -> list[Evaluated]:
    """All finite numbers with an interval: `eval/rpn/accuracy` with `..._low` and `..._high`."""
    found = []
    for name in metrics:
        match = re.fullmatch(r"eval/([^/]+)/(.+)", name)
        keys = (name, f"{name}_low", f"{name}_high", f"eval/{match[1]}/num_examples") if match else ()
        value, low, high, count = [metrics.get(key, math.nan) for key in keys] or [math.nan] * 4
        if match and math.isfinite(value + low + high + count):
            task, score = match.groups()
            found.append(Evaluated(task=task, name=score, value=value, low=low, high=high, num_examples=int(count)))
    return sorted(found, key=lambda score: (score.task, score.name != "accuracy", score.name))


def _scores(card: Card) -> Iterator[str]:
    yield "## Scores"
    found = scores(card.after)
    if not found:
        yield (
            f"The run did not evaluate at step {card.step}. Measure it: `rlvr eval {card.name} --task "
            f"{card.config.task.name}`."
        )
        return
    before = {(score.task, score.name): score for score in scores(card.before)} if card.step else {}
    yield (
        f"Measured by the run at step {card.step}, on held-out examples, with the task's own metric, which no reward "
        "setting can move. Greedy answers unless the name says sampled, pass@k or maj@k."
    )
    lines = ["| task | score | before RL | after | 95 % interval | examples |", "|---|---|---|---|---|---|"]
    for score in found:
        first = before.get((score.task, score.name))
        start = f"{first.value:.1%}" if first else ""
        interval = f"{score.low:.1%} to {score.high:.1%}"
        count = "" if score.name.startswith("accuracy_") else str(score.num_examples)  # a tag has its own number
        cells = (score.task, score_name(score.name), start, f"{score.value:.1%}", interval, count)
        lines.append(f"| {' | '.join(map(escaped, cells))} |")
    yield "\n".join(lines)


def _head(card: Card) -> Iterator[str]:
    config = card.config
    yield f"# {escaped(card.title)}"
    what = {
        "whole": f"A causal language model of {card.num_parameters:,} weights",
        "merged": f"A causal language model of {card.num_parameters:,} weights with a LoRA adapter merged into it",
        "adapter": f"A LoRA adapter of {card.num_parameters:,} weights",
    }[card.kind]
    origin = f" for {escaped(card.base_model)}" if card.base_model and card.kind == "adapter" else ""
    start = f", starting from {escaped(card.base_model)}" if card.base_model and card.kind != "adapter" else ""
    steps = f"{card.step} step{'s' * (card.step != 1)} of {config.algorithm.name}"
    how = f"as reinforcement learning on `{config.task.name}` started from it"
    if card.step:
        how = f"trained on `{config.task.name}` by reinforcement learning from verifiable rewards ({steps}){start}"
    part = "" if card.is_final or not card.step else " It is a checkpoint: the run was not at its end."
    yield f"{what}{origin}, {how}, with rlvr {__version__}.{part}"
    if card.license is None:
        yield (
            "No license was chosen for these weights yet. What the base model and the data allow holds in any case; "
            "then add `license:` to the block at the top of this file."
        )


def _use(card: Card) -> Iterator[str]:
    yield "## Use"
    yield f"```python\n{snippet(card)}\n```"
    if card.config.task.num_turns > 1:
        yield (
            "It was trained with tools: what it writes first is a call, and its answer comes after the reply. "
            f"`rlvr predict {card.name} --task {card.config.task.name}` plays whole episodes."
        )


def snippet(card: Card) -> str:
    """Python that loads the model with transformers alone and completes one prompt."""
    new_tokens = card.config.rollout.max_completion_tokens
    kind, imports = "AutoModelForCausalLM", "from transformers import AutoModelForCausalLM, AutoTokenizer"
    if card.kind == "adapter":
        kind = "AutoPeftModelForCausalLM"
        imports = "from peft import AutoPeftModelForCausalLM\nfrom transformers import AutoTokenizer"
    if card.messages:
        shown = json.dumps(list(card.messages), indent=4, ensure_ascii=False)
        prompt = (
            f"messages = {shown}\n"
            "inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True, "
            'return_tensors="pt")'
        )
    else:
        text = json.dumps(card.prompt or "a whole prompt", ensure_ascii=False)
        prompt = f'inputs = tokenizer({text}, add_special_tokens=False, return_tensors="pt")'
    name = json.dumps(card.name, ensure_ascii=False)
    return f"""{imports}

tokenizer = AutoTokenizer.from_pretrained({name})
model = {kind}.from_pretrained({name})
{prompt}
output = model.generate(**inputs, max_new_tokens={new_tokens}, do_sample=False)
print(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))"""


def _training(card: Card) -> Iterator[str]:
    """A table of the main settings by their keys, without those that are off."""
    values = dict(leaf_values(dumped(card.config)))
    off = ("model.lora",) if not card.config.model.adapted else ()
    off += ("warm_start",) if not (card.config.model.from_scratch and card.config.warm_start.enabled) else ()
    keys = [key for key in SHOWN if not key.startswith(off)]
    keys += [key for key in values if key.count(".") == 1 and key.startswith("task.") and key != "task.name"]
    parts = {f"reward.parts.{n}": f"{part.name} x {part.weight:g}" for n, part in card.config.reward.parts.items()}
    rows = {"rlvr": __version__} | {key: values.get(key) for key in keys} | parts
    shown = {key: _shown(value) for key, value in rows.items() if value is not False and value not in (None, {}, [])}
    lines = [f"| {escaped(k)} | {escaped(v)} |" for k, v in shown.items() if 0 < len(v) <= MAX_SETTING_CHARS]
    yield "\n".join(["## Training\n", "| setting | value |", "|---|---|", *lines])
    yield "All settings are in `training_config.yaml`."


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _repeat(card: Card) -> Iterator[str]:
    command = "rlvr train --config-dir . --config-name training_config"
    yield f"## Repeat it\n\nIn this folder, with rlvr installed:\n\n```bash\n{command}\n```"
    if card.missing:
        names = ", ".join(f"`{escaped(name)}`" for name in card.missing)
        yield f"First fill in what lay on the machine of the run: {names}."


def _samples(card: Card) -> Iterator[str]:
    if not card.samples:
        return
    yield "## What it wrote in training"
    for sample in card.samples:
        reward = "no reward" if sample.reward is None else f"reward {sample.reward:g}"
        text = "\n".join(f"{label:<11}{visible(part, MAX_CHARS).strip()}" for label, part in sample.texts)
        yield f"Sampled at step {sample.step}, {reward}:"
        yield fenced(text)


def fenced(text: str) -> str:
    """A code block that the text cannot close: its fence is longer than any run of backticks in it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def escaped(text: str) -> str:
    """One line of text without Markdown or HTML markup."""
    line = " ".join(visible(text, MAX_CHARS).split())
    return re.sub(r"([\\`*_{}\[\]()#+!|~-])", r"\\\1", line.replace("&", "&amp;").replace("<", "&lt;"))
