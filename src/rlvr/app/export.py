"""`rlvr export`: the model of a run as a folder for others, with a card that says what it is and how good."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr import __version__
from rlvr.app.inference import run_of
from rlvr.app.model_card import Card, Sample, write_card
from rlvr.app.run_folder import RunFolder, read_config
from rlvr.config import Config
from rlvr.config.compose import read_values, to_run_yaml
from rlvr.errors import ConfigError, UserError
from rlvr.models import export as files
from rlvr.models.export import Dtype
from rlvr.models.settings import PretrainedModel
from rlvr.settings import dumped
from rlvr.tasks.prompting import DOCUMENTS, Prompter, resolve_markers
from rlvr.tracking.files import writing
from rlvr.tracking.jsonl import read_metrics
from rlvr.tracking.rollouts import EpisodeRecord, read_rollouts, rollouts_path
from rlvr.training.checkpoint import list_checkpoints, replace_folder, temporary_folder, verify

MARK, SETTINGS = "rlvr_export.json", "training_config.yaml"
FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Source:
    """The weights of a run that are exported."""

    root: Path  # the run
    weights: Path  # a folder in Hub format, with a whole model or an adapter
    step: int  # how many updates they have seen
    is_final: bool


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the user asks for beside the run."""

    merge: bool = False
    dtype: Dtype | None = None
    base_model: str | None = None
    license: str | None = None
    num_samples: int | None = None
    name: str  # of the model, as the card and its snippets load it: a folder or a repository
    title: str  # of the card


@dataclass(frozen=True, kw_only=True)
class Export:
    """What lies in the folder."""

    source: Source
    kind: str  # whole, adapter or merged
    config: Config
    files: Mapping[str, int]  # name -> bytes
    local_base: str | None  # of an adapter: the folder of the model it is for, which others do not have


# ------------------------------------------------------------------------------------------------------------ which one


def find_source(run: str) -> Source:
    """The weights that `runs/x`, `runs/x/final`, `runs/x/warm_start` or a checkpoint's folder stands for.

    Of a run without `final/` it is the newest checkpoint. Raises UserError if there is no run, or nothing saved in it.
    """
    path = Path(run)
    root = run_of(path)
    if root is None:
        what = "is no run folder, and in none" if path.exists() else "does not exist"
        raise UserError(f"{run} {what}: name a run folder or one of its checkpoints, e.g. runs/latest.")
    folder = RunFolder(root=root)
    if (path.absolute() == root and folder.final.is_dir()) or path.absolute() == folder.final:
        if not folder.final.is_dir():
            raise UserError(f"{run} does not exist yet: let the run go on, or export its checkpoint.")
        return Source(root=root, weights=folder.final, step=_last_step(folder), is_final=True)
    if path.absolute() == folder.warm_start:
        return Source(root=root, weights=folder.warm_start, step=0, is_final=False)
    if path.absolute() == root:
        checkpoints = list_checkpoints(folder.checkpoints)
        if not checkpoints:
            raise UserError(f"{run} has neither final/ nor a checkpoint yet: let the run go on.")
        path = checkpoints[max(checkpoints)]
    path = path.parent if path.name == "model" else path
    return Source(root=root, weights=path / "model", step=verify(path), is_final=False)


def _last_step(folder: RunFolder) -> int:
    rows = _metrics(folder)
    return int(rows[-1]["step"]) if rows else read_config(folder).trainer.max_steps


def _metrics(folder: RunFolder) -> list[dict[str, float]]:
    return read_metrics(folder.metrics) if folder.metrics.is_file() else []


# ----------------------------------------------------------------------------------------------------------- the folder


def export(
    source: Source,
    options: Options,
    target: Path,
    *,
    overwrite: bool = False,
    check: Callable[[Export], None] = lambda made: None,
) -> Export:
    """Write the folder `target`, which is whole or absent at any moment; nothing is left where `check` raises.

    Raises:
        ConfigError: an option has nothing to work on, or `target` holds something else.
        UserError: the weights are damaged, the base model is not there, the disk is full.
    """
    check_target(target, overwrite)
    temporary = temporary_folder(target)
    with writing(target):
        try:
            temporary.mkdir(parents=True)
            made = fill(source, options, temporary)
            check(made)
            replace_folder(temporary, target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return made


def check_target(target: Path, overwrite: bool) -> None:
    """ConfigError unless `target` is free, or an earlier export that may be replaced."""
    if target.is_dir() and not any(target.iterdir()):
        return
    if (target / MARK).is_file():
        if not overwrite:
            raise ConfigError(f"--output {target}: there is an export already; add --overwrite, or choose another one.")
    elif target.exists() or target.is_symlink():
        raise ConfigError(f"--output {target}: there is something else already; choose another folder.")


@contextmanager
def trial(target: Path) -> Iterator[Path]:
    """An empty folder beside `target` that is gone after the block; what was made on the way there, too."""
    temporary = temporary_folder(target)
    existing = next(parent for parent in temporary.parents if parent.exists())
    with writing(target):
        temporary.mkdir(parents=True)
        try:
            yield temporary
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            for parent in temporary.parents:
                if parent == existing or any(parent.iterdir()):
                    break
                parent.rmdir()


def fill(source: Source, options: Options, folder: Path) -> Export:
    """Write weights, tokenizer, settings and card into an empty folder. Errors as in `export`."""
    config = read_config(RunFolder(root=source.root))
    kind = _check(source, config, options)
    settings = config.model if isinstance(config.model, PretrainedModel) else None
    local_base = None
    if options.merge or options.dtype is not None:
        files.write_loaded(source.weights, settings, folder, merge=options.merge, dtype=options.dtype or "float32")
    else:
        files.copy_files(source.weights, folder, code=settings is not None and settings.trust_remote_code)
    base = options.base_model or _base(source, config)
    if kind == "adapter":
        files.name_base_model(folder, base or "")
    if base is not None and _is_local(base):
        local_base, base = base, None
    shared, missing = _portable(config)
    (folder / SETTINGS).write_text(to_run_yaml(shared), encoding="utf-8")
    mark = {"format": FORMAT, "rlvr_version": __version__, "kind": kind, "step": source.step}
    (folder / MARK).write_text(json.dumps(mark) + "\n", encoding="utf-8")
    card = _card(source, options, shared, folder, kind=kind, base=base, missing=missing)
    (folder / "README.md").write_text(write_card(card), encoding="utf-8")
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    return Export(source=source, kind=kind, config=config, files=sizes, local_base=local_base)


def _check(source: Source, config: Config, options: Options) -> str:
    """`whole`, `adapter` or `merged`; ConfigError for an option that would have no effect."""
    if files.is_adapter(source.weights):
        if options.dtype is not None and not options.merge:
            raise ConfigError(f"--dtype {options.dtype}: the adapter stays in float32; add --merge, or leave this out.")
        return "merged" if options.merge else "adapter"
    is_lora = config.model.adapted
    if options.merge:
        why = "its adapter is merged already" if is_lora else "the whole model was trained"
        raise ConfigError(f"--merge: there is nothing to merge in {source.weights}, {why}; leave this out.")
    return "merged" if is_lora else "whole"


def _base(source: Source, config: Config) -> str | None:
    """The model that training started from, None if it was made from scratch."""
    if files.is_adapter(source.weights):
        return files.base_model(source.weights)
    return config.model.name_or_path if isinstance(config.model, PretrainedModel) else None


def _is_local(name: str) -> bool:
    return Path(name).is_absolute() or Path(name).is_dir() or name.startswith(".")


def _portable(config: Config) -> tuple[Config, list[str]]:
    """The settings without this machine's folders, and the keys that are to be filled in.

    `/home/ann/models/x` becomes `FOLDER/x`: the name of a home folder is nobody's business, and is of no use elsewhere.
    """
    missing: list[str] = []

    def clean(value: Any, key: str) -> Any:
        if isinstance(value, dict):
            return {name: clean(item, f"{key}.{name}" if key else name) for name, item in value.items()}
        if isinstance(value, list):
            return [clean(item, key) for item in value]
        if not isinstance(value, str):
            return value
        named = re.sub(r"(?<![^,;])(?:[/~])[^,;\n]*?([^/,;\n]+)/?(?=[,;]|$)", r"FOLDER/\1", value)
        if named != value:
            missing.append(key)
        return named

    return read_values(clean(dumped(config), "")), list(dict.fromkeys(missing))


# ------------------------------------------------------------------------------------------------------------- the card


def _card(
    source: Source,
    options: Options,
    config: Config,
    folder: Path,
    *,
    kind: str,
    base: str | None,
    missing: Sequence[str],
) -> Card:
    rows = {int(row["step"]): row for row in _metrics(RunFolder(root=source.root))}
    is_generated = config.task.is_generated
    episodes = _episodes(source)
    wanted = int(is_generated) if options.num_samples is None else options.num_samples
    has_template = _has_template(folder)
    return Card(
        name=options.name,
        title=options.title,
        config=config,
        kind=kind,
        step=source.step,
        is_final=source.is_final,
        base_model=base,
        license=options.license,
        num_parameters=files.num_parameters(folder),
        before=rows.get(0, {}),
        after=rows.get(source.step, {}),
        samples=[_sample(step, episode) for step, episode in episodes[:wanted]],
        prompt=episodes[0][1].turns[0].prompt if is_generated and episodes else None,
        messages=_messages(config, folder) if has_template else (),
        missing=missing,
    )


def _episodes(source: Source) -> list[tuple[int, EpisodeRecord]]:
    """Episodes of the newest recorded step up to the exported one, the first of each group."""
    steps = range(source.step, 0, -1)
    folder = RunFolder(root=source.root).rollouts
    path, step = next(((path, step) for step in steps if (path := rollouts_path(folder, step)).is_file()), (None, 0))
    if path is None:
        return []
    try:
        return [(step, episode) for episode in read_rollouts(path) if episode.sample_index == 0]
    except UserError:  # an example is a decoration: a damaged file of rollouts is no reason to keep the weights back
        return []


def _sample(step: int, episode: EpisodeRecord) -> Sample:
    texts = [("prompt", episode.turns[0].prompt)]
    for turn in episode.turns:
        texts.append(("completion", turn.completion))
        if turn.reply is not None:
            texts.append(("reply", turn.reply))
    return Sample(step=step, texts=tuple(texts), reward=episode.reward)


def _has_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").is_file():
        return True
    settings = folder / "tokenizer_config.json"
    return settings.is_file() and bool(json.loads(settings.read_text(encoding="utf-8")).get("chat_template"))


def _messages(config: Config, folder: Path) -> list[dict[str, str]]:
    """The prompt of the run around a question of the reader's own."""
    question = "Your question"
    if config.task.bundles or not (folder / "config.json").is_file():
        return [{"role": "user", "content": question}]
    family = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type")
    prompter = Prompter(config.prompt, resolve_markers(config.prompt, config.markers, family), (DOCUMENTS,))
    found = prompter.messages(question, fields={DOCUMENTS: "Its documents"})
    return [{"role": str(message.role), "content": message.content} for message in found]
