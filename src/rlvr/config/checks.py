"""Checks across sections: components against the run, sections against each other, values without effect."""

import os
import re
from collections.abc import Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from rlvr.config.config import SECTIONS, Config, walk
from rlvr.config.messages import shown
from rlvr.config.overrides import UserKeys
from rlvr.errors import ConfigError, UserError
from rlvr.imports import user_code
from rlvr.settings import Component, Settings


def checked(config: Config, explicit: UserKeys) -> Config:
    """The configuration with notes. ConfigError for the first contradiction, or for all values without effect."""
    config, notes = _with_headline(config, explicit)
    notes += _check_one(config, "", explicit)
    _check_sections(config)
    places = {"task.parts": config.task.bundles, "evaluation.also": config.evaluation.also}
    for key, bundles in places.items():
        for name, bundle in bundles.items():
            inside = config.with_bundle(bundle, is_trained=key == "task.parts")
            try:
                notes += _check_one(inside, f"{key}.{name}.", explicit)
            except ConfigError as error:
                raise ConfigError(f"{key}.{name}: {error}") from None
    result = config.model_copy()
    result._notes = tuple(dict.fromkeys(notes))
    return result


def _with_headline(config: Config, explicit: UserKeys) -> tuple[Config, list[str]]:
    """Drop a preset's headline metric if its reward part was replaced."""
    name = _part_of(config.evaluation.headline)
    if name in ("accuracy", *config.reward.parts) or "evaluation.headline" in explicit:
        return config, []
    evaluation = config.evaluation.model_copy(update={"headline": "accuracy"})
    note = f"evaluation.headline=accuracy: the reward has no part {name}"
    return config.model_copy(update={"evaluation": evaluation}), [note]


def _part_of(headline: str) -> str:
    return headline.removeprefix("sampled_").removeprefix("part_")


def _check_one(config: Config, prefix: str, explicit: UserKeys) -> Iterator[str]:
    """Check a run with one task, or a task of it; yields notes."""
    sections = ("task", "reward", "prompt") if prefix else SECTIONS
    inside = [item for name in sections for item in walk(getattr(config, name), name)]
    inside = [(path, settings) for path, settings in inside if not path.startswith(("task.parts.", "evaluation.also."))]
    errors = []
    for path, settings in inside:
        for key, value, condition in idle(path, settings, config):
            sentence = f"{key}={shown(value)}: has no effect; it needs {condition}"
            names = [f"{path}.{name}" if name in type(settings).model_fields else name for name in _names(condition)]
            in_file = prefix + key in explicit and not explicit.is_resolved
            if in_file and not explicit.on_line(prefix + key) and any(map(explicit.changed, names)):
                yield sentence
            elif in_file or explicit.on_line(prefix + key):
                errors.append(f"{sentence}.")
    if errors:
        raise ConfigError(" ".join(errors))
    for path, settings in inside:
        if isinstance(settings, Component):
            with user_code(f"{path}: check_run of {settings.name}"):
                settings.check_run(config)
                remarks = [f"{prefix}{path}: {remark}" for remark in settings.remarks(config)]
            yield from remarks


def idle(path: str, settings: Settings, config: Config) -> Iterator[tuple[str, Any, str]]:
    """Key, value and unmet condition of each non-default value without effect."""
    for name, field in type(settings).model_fields.items():
        extra = field.json_schema_extra
        condition = str(extra.get("only_if") or "") if isinstance(extra, Mapping) else ""
        condition = condition or (settings.only_if if isinstance(settings, Component) else "")
        value = getattr(settings, name)
        if (
            condition
            and value != field.get_default(call_default_factory=True)
            and not _holds(condition, f"{path}.{name}", settings, config)
        ):
            yield f"{path}.{name}", value, _with_whole_keys(condition, path, settings)


def _holds(condition: str, key: str, settings: Settings, config: Config) -> bool:
    """Evaluate an `only_if` over sibling fields and the sections of the run."""
    own = type(settings).model_fields
    with user_code(f"{key}: only_if={condition!r} of its class"):
        found: dict[str, Any] = {"run": config}
        for name in _names(condition):
            if name != "run":
                found[name] = getattr(config if name in SECTIONS and name not in own else settings, name)
        return bool(eval(_compiled(condition), {"__builtins__": {}}, found))


_compiled = cache(partial(compile, filename="only_if", mode="eval"))


@cache
def _names(condition: str) -> tuple[str, ...]:
    """The attribute names in a condition: `enabled and model.from_scratch` -> enabled, model."""
    words = re.findall(r"(?<![\w.'\"])([A-Za-z_]\w*)(?![\w]*['\"])", condition.partition("#")[0])
    return tuple(dict.fromkeys(w for w in words if w not in ("and", "or", "not", "is", "in", "None", "True", "False")))


WORDS = {  # conditions that are more than keys
    "uses_sandbox or task.metric_uses_sandbox": "a part or a metric that runs in a separate process",
    "not task.writes_prompts": "a task that does not write its prompts itself",
    "task.shows_calls": "a task whose examples can be shown",
    "model.from_scratch": "a model made from scratch",
    "run.is_trained or prompt.few_shot": "a task that is trained on",
    "run.is_trained": "a task that is trained on",
    "algorithm.returns_per_token": "algorithm=ppo or algorithm=reinforce_pp",
    "not has_split_files": "a repository with several configurations",
    "several_hops": "several numbers of hops",
    "uses_markers": "a prompt with markers",
    "keeps_model": "a tracker with log_model=true",
    "task.has_tools": "a task with tools",
    "has_tools": "a task with tools",
    "name in tracker.report_to": "its name in tracker.report_to",
}


def in_words(condition: str) -> str:
    """A condition as text, with values as in YAML; a comment in the condition replaces it."""
    if "#" in condition:
        return condition.partition("#")[2].strip()
    for code, words in WORDS.items():
        condition = condition.replace(code, words)
    return condition.replace(" is not None", " not null").replace(" is None", "=null").replace("'", "")


def _with_whole_keys(condition: str, path: str, settings: Settings) -> str:
    for name in _names(condition):
        if name in type(settings).model_fields:
            condition = re.sub(rf"(?<![\w.'])({name})(?![\w'])", rf"{path}.\1", condition)
    return in_words(condition)


def check_resumes(c: Config) -> None:
    """ConfigError if a single run should resume but there is none; a sweep's `run_dir` is the folder of its runs."""
    if c.resume and not (Path(str(c.run_dir)) / "config.yaml").is_file():
        raise ConfigError(
            f"run_dir={c.run_dir}: holds no run to resume (no config.yaml); remove resume=true to start one."
        )


NEWBORN = (".lock", ".config.yaml.tmp-")  # all there is when a run is killed before it began


def check_place(run_dir: str | None, *, resume: bool) -> None:
    """Refuse a folder that a run cannot have: a file is in the way or another run has it (ConfigError), or it cannot be
    written (UserError)."""
    root = Path("runs" if run_dir is None else run_dir)
    above = next((path for path in (root, *root.absolute().parents) if path.exists()), root)
    if not above.is_dir():
        raise ConfigError(f"run_dir={root}: {above} is a file; choose another run_dir.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise UserError(f"Cannot write {root}: permission denied; choose another run_dir.")
    others = root.is_dir() and any(not path.name.startswith(NEWBORN) for path in root.iterdir())
    if run_dir is not None and not resume and others:
        raise ConfigError(
            f"run_dir={root} exists and is not empty: add resume=true to go on with it, or choose another run_dir."
        )


def _check_sections(c: Config) -> None:
    """ConfigError for contradicting sections."""
    headline, warm = c.evaluation.headline, c.warm_start
    if (name := _part_of(headline)) != "accuracy" and name not in c.reward.parts:
        raise ConfigError(
            f"evaluation.headline={headline}: the reward has no such part; choose accuracy, or part_<name> or "
            "sampled_part_<name> of a part of the reward."
        )
    if headline.startswith("sampled_") and c.evaluation.samples_per_example == 0:
        raise ConfigError(
            f"evaluation.headline={headline}: nothing is sampled with evaluation.samples_per_example=0; raise it."
        )
    if twice := set(c.trained) & set(c.evaluation.also):
        raise ConfigError(
            f"evaluation.also: names a task that this run evaluates anyway, {(name := min(twice))}; leave it out, or "
            f"give it another name: {{other: {{task: {name}}}}}."
        )
    if c.resume and c.run_dir is None:
        raise ConfigError("resume=true: needs the folder of the run to go on with; add run_dir=FOLDER.")
    if c.model.from_scratch and warm.enabled and warm.final_phase_steps > warm.num_steps:
        raise ConfigError(
            f"warm_start.final_phase_steps={warm.final_phase_steps}: is more than warm_start.num_steps="
            f"{warm.num_steps}; lower it."
        )
    if len({bundle.prompt.tool_format for bundle in c.trained.values() if bundle.task.has_tools}) > 1:
        raise ConfigError(
            "prompt.tool_format: the parts of task=mix have their tools called in more than one way, and a model "
            "writes one of them; give all the same, e.g. task.parts={musique: {set: ['prompt.tool_format=hermes']}}."
        )
