"""Checks across sections: components against the run, sections against each other, values without effect."""

import os
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any

from rlvr.conditions import Condition, condition
from rlvr.config.config import SECTIONS, Config, walk
from rlvr.config.overrides import UserKeys
from rlvr.errors import ConfigError, UserError
from rlvr.imports import user_code
from rlvr.run_view import RunView
from rlvr.settings import Component, Settings, only_if, plain
from rlvr.usual import Unusual, unusual


def checked(config: Config, explicit: UserKeys) -> Config:
    """The configuration with notes. ConfigError for the first contradiction, or for all values without effect."""
    config, notes = _with_headline(_with_group_size(config, explicit), explicit)
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
    result.note([*notes, *map(str, unusual_settings(config))])
    return result


def unusual_settings(config: Config) -> list[Unusual]:
    return list(unusual(plain(config), {name: type(getattr(config, name)) for name in SECTIONS}))


def _with_headline(config: Config, explicit: UserKeys) -> tuple[Config, list[str]]:
    """Drop a preset's headline metric if its reward part was replaced."""
    name = _part_of(config.evaluation.headline)
    if name in ("accuracy", *config.reward.parts) or "evaluation.headline" in explicit:
        return config, []
    evaluation = config.evaluation.model_copy(update={"headline": "accuracy"})
    note = f"evaluation.headline=accuracy: the reward has no part {name}"
    return config.model_copy(update={"evaluation": evaluation}), [note]


def _with_group_size(config: Config, explicit: UserKeys) -> Config:
    """The algorithm's own default of rollout.group_size."""
    size = config.algorithm.default_group_size
    if size is None or "rollout.group_size" in explicit:
        return config
    return config.model_copy(update={"rollout": config.rollout.model_copy(update={"group_size": size})})


def _part_of(headline: str) -> str:
    return headline.removeprefix("sampled_").removeprefix("part_")


def _check_one(config: Config, prefix: str, explicit: UserKeys) -> Iterator[str]:
    """Check a run with one task, or a task of it; yields notes."""
    sections = ("task", "reward", "prompt") if prefix else SECTIONS
    inside = [item for name in sections for item in walk(getattr(config, name), name)]
    inside = [(path, settings) for path, settings in inside if not path.startswith(("task.parts.", "evaluation.also."))]
    errors = []
    for path, settings in inside:
        own = type(settings)
        for key, value, unmet in idle(path, settings, config):
            written = explicit.written(prefix + key, value).removeprefix(prefix)
            sentence = f"{written}: has no effect; it needs {unmet.words(path)}"
            names = [f"{path}.{name}" if name in own.model_fields else name for name in unmet.names]
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
                if settings.check_run(config) is not None:
                    raise TypeError("it must return nothing, and be no coroutine")
            with user_code(f"{path}: remarks of {settings.name}"):
                remarks = settings.remarks(config)
                if isinstance(remarks, str):
                    raise TypeError("it must return a list of sentences, or yield them")
                remarks = [f"{prefix}{path}: {remark}" for remark in remarks]
            yield from remarks


def idle(path: str, settings: Settings, run: RunView) -> Iterator[tuple[str, Any, Condition]]:
    """Key, value and unmet condition of each non-default value without effect."""
    for name, field in type(settings).model_fields.items():
        text, value = only_if(type(settings), name), getattr(settings, name)
        if not text or value == field.get_default(call_default_factory=True):
            continue
        with user_code(f"{path}.{name}: only_if={text!r} of its class"):
            holds = condition(text).holds(settings, run)
        if not holds:
            yield f"{path}.{name}", value, condition(text)


def check_resumes(c: Config) -> None:
    """ConfigError if a single run should resume but there is none; a sweep's `run_dir` is the folder of its runs."""
    if c.resume and not (Path(str(c.run_dir)) / "config.yaml").is_file():
        raise ConfigError(
            f"run_dir={c.run_dir}: holds no run to resume (no config.yaml); remove resume=true to start one."
        )


NEWBORN = (".lock", ".config.yaml.tmp-")  # all there is, and config.yaml, when a run ends before it made anything


def check_place(run_dir: str | None, *, resume: bool) -> None:
    """Refuse a folder that a run cannot have: a file is in the way or another run has it (ConfigError), or it cannot be
    written (UserError)."""
    root = Path("runs" if run_dir is None else run_dir)
    above = next((path for path in (root, *root.absolute().parents) if path.exists()), root)
    if not above.is_dir():
        raise ConfigError(f"run_dir={root}: {above} is a file; choose another run_dir.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise UserError(f"Cannot write {root}: permission denied; choose another run_dir.")
    found = {path.name for path in root.iterdir()} if root.is_dir() else set[str]()
    others = {name for name in found if not name.startswith(NEWBORN)}
    ours = {"config.yaml", "warm_start.jsonl"} if ".lock" in found else set[str]()  # without it a user's own file
    if run_dir is not None and not resume and others - ours:
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
    if c.model.from_scratch and warm.enabled and warm.final_phase_steps > (warm.num_steps or inf):
        raise ConfigError(
            f"warm_start.final_phase_steps={warm.final_phase_steps}: is more than warm_start.num_steps="
            f"{warm.num_steps}; lower it."
        )
    if len({bundle.prompt.tool_format for bundle in c.trained.values() if bundle.task.has_tools}) > 1:
        raise ConfigError(
            "prompt.tool_format: the parts of task=mix have their tools called in more than one way, and a model "
            "writes one of them; give all the same, e.g. task.parts={musique: {set: ['prompt.tool_format=hermes']}}."
        )
