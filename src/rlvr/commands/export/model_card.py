"""The README.md of an exported model (model_card.md.jinja): scores, use, training, reproduction, samples.

The run measured every number at the exported step; without one the card says so. Untrusted text (model output,
settings, names) is escaped or inside code fences it cannot close.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr import __version__
from rlvr.config import Config
from rlvr.evaluation.tables import score_name
from rlvr.settings import dumped, leaf_values
from rlvr.tracking.episodes import indented

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

MAX_CHARS = 2_000  # of one text from a model
MAX_SETTING_CHARS = 100  # a longer value is in training_config.yaml only
SHOWN = (
    *("seed", "task.name", "algorithm.name", "model.dtype", "model.load_in_4bit", "model.load_in_8bit"),
    *("model.hidden_size", "model.num_layers", "model.lora.r", "model.lora.alpha", "model.lora.target_modules"),
    *("warm_start.num_steps", "warm_start.source", "warm_start.num_epochs", "warm_start.learning_rate"),
    *("trainer.max_steps", "trainer.learning_rate", "trainer.schedule", "trainer.warmup_steps"),
    *("trainer.weight_decay", "trainer.max_grad_norm", "trainer.precision", "rollout.prompts_per_step"),
    *("rollout.group_size", "rollout.max_completion_tokens", "rollout.temperature", "rollout.top_p"),
    *("algorithm.clip_low", "algorithm.clip_high", "algorithm.kl_coef", "algorithm.aggregation"),
    *("algorithm.num_epochs", "algorithm.num_minibatches"),
)
"""Settings in the table, besides the task's own."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    step: int
    texts: tuple[tuple[str, str], ...]  # (prompt | completion | reply, text)
    reward: float | None


@dataclass(frozen=True, kw_only=True)
class Card:
    name: str  # folder or repository to load
    title: str
    config: Config
    kind: str  # whole, adapter or merged
    step: int
    is_final: bool
    base_model: str | None  # its Hub id; None: from scratch, or a local folder
    license: str | None
    num_parameters: int
    before: Mapping[str, float]  # metrics at step 0
    after: Mapping[str, float]  # metrics at `step`
    samples: Sequence[Sample]
    prompt: str | None  # full prompt text, for models without a chat template
    messages: Sequence[Mapping[str, str]]  # a prompt for models with one
    missing: Sequence[str]  # settings that refer to the machine of the run


def write_card(card: Card) -> str:
    from jinja2 import Environment, FileSystemLoader

    templates = Environment(loader=FileSystemLoader(Path(__file__).parent), trim_blocks=True, lstrip_blocks=True)
    templates.filters |= {"json": partial(json.dumps, ensure_ascii=False), "line": escaped, "fenced": fenced}
    results = {(one.dataset_name, one.metric_type): one for one in scores(card.after)}
    before = {(one.dataset_name, one.metric_type): one for one in scores(card.before)} if card.step else {}
    template = templates.get_template("model_card.md.jinja")
    return template.render(
        card=card,
        config=card.config,
        version=__version__,
        metadata=_metadata(card, list(results.values())),
        what=_summary(card),
        scores=[_row(one, before.get(key)) for key, one in results.items()],
        settings=_settings(card),
    )


def _metadata(card: Card, results: Sequence[EvalResult]) -> str:
    """The YAML header for the Hub, with each evaluated set's headline score for `model-index`."""
    from huggingface_hub import ModelCardData

    for result in results:
        result.dataset_type = _hub_id(card.config, result.dataset_name) or result.dataset_name
    data = ModelCardData(
        library_name="peft" if card.kind == "adapter" else "transformers",
        pipeline_tag="text-generation",
        license=card.license,
        base_model=card.base_model,
        datasets=[found for name in card.config.trained if (found := _hub_id(card.config, name))] or None,
        tags=["rlvr", "reinforcement-learning", card.config.algorithm.name, card.config.task.name],
        model_name=card.title,
        eval_results=[result for result in results if result.metric_type == "accuracy"] or None,
    )
    return data.to_yaml().strip()


def _hub_id(config: Config, name: str) -> str:
    """Hub id of a task's data; empty for tasks that generate examples."""
    if (bundle := config.bundles.get(name)) is None:
        return ""
    path = getattr(bundle.task, "path", "")
    return bundle.task.hub_id or (path if re.fullmatch(r"[\w.-]+/[\w.-]+", path) and not Path(path).exists() else "")


def scores(metrics: Mapping[str, float]) -> list[EvalResult]:
    """All finite metrics with an interval, by task: `eval/rpn/accuracy` with `..._low` and `..._high`."""
    from huggingface_hub import EvalResult

    results = []
    for name in metrics:
        match = re.fullmatch(r"eval/([^/]+)/(.+)", name)
        keys = (name, f"{name}_low", f"{name}_high", f"eval/{match[1]}/num_examples") if match else ()
        value, low, high, count = [metrics.get(key, math.nan) for key in keys] or [math.nan] * 4
        if match and math.isfinite(value + low + high + count):
            results.append(
                EvalResult(
                    task_type="text-generation",
                    dataset_type=match[1],
                    dataset_name=match[1],
                    dataset_split="held out",
                    dataset_args={"num_examples": int(count)},
                    metric_type=match[2],
                    metric_name=match[2],
                    metric_value=round(value, 4),
                    metric_args={"low_95": round(low, 4), "high_95": round(high, 4)},
                )
            )
    return sorted(results, key=lambda one: (one.dataset_name, one.metric_type != "accuracy", one.metric_type))


def _row(result: EvalResult, before: EvalResult | None) -> tuple[str, ...]:
    """`("rpn", "accuracy", "12.5%", "50.0%", "40.0% to 60.0%", "100")`"""
    assert result.metric_args is not None
    assert result.dataset_args is not None
    name, interval = result.metric_type, " to ".join(f"{bound:.1%}" for bound in result.metric_args.values())
    count = "" if name.startswith("accuracy_") else str(result.dataset_args["num_examples"])  # tags have other counts
    start = f"{before.metric_value:.1%}" if before else ""
    return result.dataset_name, score_name(name), start, f"{result.metric_value:.1%}", interval, count


def _summary(card: Card) -> str:
    """`A LoRA adapter of 1,234 weights for some/base, trained on ...,`"""
    config, base = card.config, escaped(card.base_model or "")
    what = "LoRA adapter" if card.kind == "adapter" else "causal language model"
    merged = " with a LoRA adapter merged into it" if card.kind == "merged" else ""
    origin = f" for {base}" if base and card.kind == "adapter" else ""
    start = f", starting from {base}" if base and not origin else ""
    how, tuned = f"as reinforcement learning on `{config.task.name}` started from it", ""
    if not config.model.from_scratch and config.warm_start.enabled:
        tuned = "on its own right samples" if config.warm_start.source == "own" else "on demonstrations"
        how = f"trained on `{config.task.name}` {tuned}{start}"
    if card.step:
        steps = f"{card.step} step{'s' * (card.step != 1)} of {config.algorithm.name}"
        both = f"{tuned} and then " if tuned else ""
        how = (
            f"trained on `{config.task.name}` {both}by reinforcement learning from verifiable rewards ({steps}){start}"
        )
    return f"A {what} of {card.num_parameters:,} weights{merged}{origin}, {how},"


def _settings(card: Card) -> dict[str, str]:
    """The main settings by key, without disabled ones."""
    values = dict(leaf_values(dumped(card.config)))
    off = ("model.lora",) if not card.config.model.adapted else ()
    of_others = ("source", "num_epochs", "learning_rate") if card.config.model.from_scratch else ("num_steps",)
    off += tuple(f"warm_start.{key}" for key in of_others) if card.config.warm_start.enabled else ("warm_start",)
    keys = [key for key in SHOWN if not key.startswith(off)]
    keys += [key for key in values if key.count(".") == 1 and key.startswith("task.") and key != "task.name"]
    parts = {f"reward.parts.{n}": f"{part.name} x {part.weight:g}" for n, part in card.config.reward.parts.items()}
    rows = {"rlvr": __version__} | {key: values.get(key) for key in keys} | parts
    shown = {key: _setting(value) for key, value in rows.items() if value is not False and value not in (None, {}, [])}
    return {key: text for key, text in shown.items() if 0 < len(text) <= MAX_SETTING_CHARS}


def _setting(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def fenced(texts: Sequence[tuple[str, str]]) -> str:
    """A code block that the texts cannot close: its fence is longer than any run of backticks in them."""
    text = "\n".join(f"{label:<11}{indented(part, MAX_CHARS).strip()}" for label, part in texts)
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def escaped(text: str) -> str:
    line = " ".join(indented(text, MAX_CHARS).split())
    return re.sub(r"([\\`*_{}\[\]()#+!|~-])", r"\\\1", line.replace("&", "&amp;").replace("<", "&lt;"))
