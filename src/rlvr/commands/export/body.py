"""`rlvr export`: a run's model as a Hub folder with a model card."""

import json
import re
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr import __version__
from rlvr.commands.export.model_card import Card, Sample, write_card
from rlvr.config import Config
from rlvr.config.compose import read_values, to_run_yaml
from rlvr.errors import ConfigError, UserError
from rlvr.models import export as files
from rlvr.models.export import Dtype
from rlvr.models.loading import base_of
from rlvr.places import near
from rlvr.records.files import writing
from rlvr.records.jsonl import read_metrics
from rlvr.records.rollouts import EpisodeRecord, read_rollouts, rollouts_path
from rlvr.run.run_folder import RunFolder, read_config
from rlvr.run.sources import run_of, weights_of
from rlvr.settings import dumped
from rlvr.tasks.prompting import Prompter, resolve_markers
from rlvr.training.checkpoint import replace_folder, temporary_folder, verify

MARK, SETTINGS = "rlvr_export.json", "training_config.yaml"
FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class ExportedRun:
    root: Path  # the run
    config: Config
    weights: Path  # a folder in Hub format, with a whole model or an adapter
    step: int  # number of updates of these weights
    is_final: bool


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    merge: bool = False
    dtype: Dtype | None = None
    base_model: str | None = None
    license: str | None = None
    num_samples: int | None = None
    is_pushed: bool = False
    name: str  # folder or repository that the card's snippets load
    title: str  # of the card


def find_source(run: str) -> ExportedRun:
    """The weights of `runs/x`, `runs/x/final`, `runs/x/warm_start` or a checkpoint folder.

    Without `final/` a run gives its newest checkpoint. Raises UserError if there is no run, or nothing saved in it.
    """
    path = Path(run)
    root = run_of(path)
    if root is None:
        if not path.exists():
            raise UserError(f"there is no folder {run}{near(path)}: name a run folder, or one of its checkpoints.")
        raise UserError(
            f"{run} is in no run folder: name the folder that `rlvr train` made, or one of its checkpoints."
        )
    folder = RunFolder(root=root)
    config = read_config(folder)
    is_model = path.name == "model" and path.absolute() != root
    weights = Path(weights_of(str(path.parent if is_model else path))).absolute()
    if weights == folder.final:
        step = max(_metrics(folder), default=config.trainer.max_steps)
    elif weights == folder.warm_start:
        step = 0
    else:
        checkpoint = weights.parent if weights.name == "model" else weights
        step, weights = verify(checkpoint), checkpoint / "model"
    return ExportedRun(root=root, config=config, weights=weights, step=step, is_final=weights == folder.final)


def _metrics(folder: RunFolder) -> dict[int, dict[str, float]]:
    rows = read_metrics(folder.metrics) if folder.metrics.is_file() else []
    return {int(row["step"]): row for row in rows}


def export(
    source: ExportedRun,
    options: ExportOptions,
    target: Path,
    *,
    overwrite: bool,
    dry_run: bool,
    note: Callable[[str], None],
) -> tuple[str, dict[str, int]]:
    """Write the folder `target` atomically; returns the kind of model (whole, adapter or merged) and its files with
    sizes. A dry run writes nothing. UserError for an option without effect, for damaged weights or weights that only
    this machine can load, and for a `target` with other contents.
    """
    is_free = not (target.exists() or target.is_symlink()) or (target.is_dir() and not any(target.iterdir()))
    is_export = (target / MARK).is_file()
    if not is_free and not (is_export and overwrite):
        remedy = "an export already; add --overwrite" if is_export else "something else already: move it away"
        raise ConfigError(f"--output {target}: there is {remedy}, or choose another folder.")
    kind, base = _kind(source, options), options.base_model or _base(source)
    is_local = base is not None and (Path(base).is_absolute() or Path(base).is_dir() or base.startswith("."))
    if kind == "adapter" and is_local:
        problem = f"the adapter is for {base}, a folder of this machine"
        if options.is_pushed:
            raise UserError(f"{problem}, which other machines do not have: add --base-model HUB_ID, or --merge.")
        note(f"{problem}: give its name on the Hub with --base-model, or --merge")
    existing = next(parent for parent in target.absolute().parents if parent.is_dir())
    temporary = existing / temporary_folder(target).name
    with writing(target):
        try:
            temporary.mkdir()
            settings = source.config.model.pretrained
            if options.merge or options.dtype is not None:
                dtype = options.dtype or "float32"
                files.write_loaded(source.weights, settings, temporary, merge=options.merge, dtype=dtype)
            else:
                code = settings is not None and settings.trust_remote_code
                files.copy_files(source.weights, temporary, code=code)
            if kind == "adapter":
                files.name_base_model(temporary, base or "")
            _write_texts(source, options, temporary, kind=kind, base=None if is_local else base)
            sizes = {path.name: path.stat().st_size for path in sorted(temporary.iterdir())}
            if not dry_run:
                target.parent.mkdir(parents=True, exist_ok=True)
                replace_folder(temporary, target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return kind, sizes


def _kind(source: ExportedRun, options: ExportOptions) -> str:
    """`whole`, `adapter` or `merged`; ConfigError for an option without effect."""
    if files.is_adapter(source.weights):
        if options.dtype is not None and not options.merge:
            raise ConfigError(f"--dtype {options.dtype}: the adapter stays in float32; add --merge, or leave this out.")
        return "merged" if options.merge else "adapter"
    if options.merge:
        why = "its adapter is merged already" if source.config.model.adapted else "the whole model was trained"
        raise ConfigError(f"--merge: there is nothing to merge in {source.weights}, {why}; leave this out.")
    return "merged" if source.config.model.adapted else "whole"


def _write_texts(source: ExportedRun, options: ExportOptions, folder: Path, *, kind: str, base: str | None) -> None:
    """Write configuration, marker file and card. `base`: Hub id of the model that training started from."""
    config, missing = _portable(source.config)
    (folder / SETTINGS).write_text(to_run_yaml(config), encoding="utf-8")
    mark = {"format": FORMAT, "rlvr_version": __version__, "kind": kind, "step": source.step}
    (folder / MARK).write_text(json.dumps(mark) + "\n", encoding="utf-8")
    rows = _metrics(RunFolder(root=source.root))
    is_generated = config.task.is_generated
    samples = _samples(source)
    wanted = int(is_generated) if options.num_samples is None else options.num_samples
    card = Card(
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
        samples=samples[:wanted],
        prompt=samples[0].texts[0][1] if is_generated and samples else None,
        messages=_messages(config, folder),
        missing=missing,
    )
    (folder / "README.md").write_text(write_card(card), encoding="utf-8")


def _base(source: ExportedRun) -> str | None:
    if files.is_adapter(source.weights):
        return base_of(source.weights)
    model = source.config.model.pretrained
    return model.name_or_path if model else None


def _portable(config: Config) -> tuple[Config, list[str]]:
    """The configuration without this machine's folders, and the keys to fill in.

    `/home/ann/models/x` becomes `FOLDER/x`: home folders are private, and useless elsewhere.
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


def _samples(source: ExportedRun) -> list[Sample]:
    """Episodes of the newest recorded step up to the exported one, the first of each group."""
    folder = RunFolder(root=source.root).rollouts
    for step in range(source.step, 0, -1):
        path = rollouts_path(folder, step)
        if not path.is_file():
            continue
        with suppress(UserError):  # a damaged rollout file must not block the export
            episodes = [episode for episode in read_rollouts(path) if episode.sample_index == 0]
            return [Sample(step=step, texts=_texts(episode), reward=episode.reward) for episode in episodes]
    return []


def _texts(episode: EpisodeRecord) -> tuple[tuple[str, str], ...]:
    said = [(("completion", turn.completion), ("reply", turn.reply)) for turn in episode.turns]
    prompt = ("prompt", episode.turns[0].prompt)
    return (prompt, *((label, text) for turn in said for label, text in turn if text is not None))


def _messages(config: Config, folder: Path) -> list[dict[str, str]]:
    """The run's prompt with a placeholder question; empty for a model without a chat template."""
    model, tokenizer = (_json(folder / name) for name in ("config.json", "tokenizer_config.json"))
    if not (tokenizer.get("chat_template") or (folder / "chat_template.jinja").is_file()):
        return []
    question = "Your question"
    if config.task.bundles or not model:
        return [{"role": "user", "content": question}]
    markers = resolve_markers(config.prompt, config.markers, model.get("model_type"))
    fields = {name: f"Its {name}" for name in config.task.prompt_fields}
    found = Prompter(config.prompt, markers, [*fields]).messages(question, fields=fields)
    return [{"role": str(message.role), "content": message.content} for message in found]


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def check_repository(name: str) -> None:
    """ConfigError unless `name` is owner/name, as the Hub requires."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    with suppress(HFValidationError):
        validate_repo_id(name)
        if name.count("/") == 1:
            return
    raise ConfigError(f"--push {name}: is no repository; write owner/name, e.g. ann/rpn-grpo.")


def check_token() -> None:
    """UserError without a token or offline; checked before merging."""
    from huggingface_hub import constants, get_token

    if constants.HF_HUB_OFFLINE:
        raise UserError("--push needs the Hub: unset HF_HUB_OFFLINE.")
    if get_token() is None:
        raise UserError("--push needs a token that may write: log in with `hf auth login`, or set HF_TOKEN.")


def push(folder: Path, files: Iterable[str], repository: str, *, public: bool, message: str) -> str:
    """Upload exactly these files of the folder in one commit, creating the repository if needed; returns its address.

    Raises UserError if the Hub cannot be reached or refuses.
    """
    from huggingface_hub import CommitOperationAdd, HfApi, constants

    api = HfApi()
    operations = [CommitOperationAdd(path_in_repo=name, path_or_fileobj=folder / name) for name in files]
    try:
        url = api.create_repo(repository, private=not public, exist_ok=True)
        api.create_commit(str(url.repo_id), operations, commit_message=message)
    except Exception as error:  # network errors have no common base class across client versions
        said = " ".join((getattr(error, "server_message", None) or str(error) or type(error).__name__).split())[:300]
        raise UserError(
            f"the Hub at {constants.ENDPOINT} did not take {repository}: check the network and what your token may "
            f"write; the exported folder is kept ({said.rstrip('.')})."
        ) from error
    return str(url)
