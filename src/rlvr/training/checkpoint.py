"""Checkpoints that are complete or absent, never half, and that prove what they hold.

    checkpoints/step_000050/
        manifest.json         format version, step, size and SHA-256 of every other file
        state.json            counters, cursors, scalars
        tensors.safetensors   optimizer moments, random states, whatever else is a tensor
        model/                the policy in Hub format
        shards/               where the weights are sharded: their rows and those of their moments (scale/shards.py)

A checkpoint is written into a hidden sibling folder, pushed to the disk, and renamed. Only safetensors and JSON:
loading one never runs code. Any number of processes, with sharded weights or whole ones, goes on from it.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from rlvr.core.world import ALONE, World
from rlvr.errors import UserError
from rlvr.scale.sharding import is_sharded
from rlvr.scale.shards import INDEX, Held, Shards, shard_name, write_index, write_rows
from rlvr.tracking.files import sync_file, sync_folder, writing

FORMAT, OLDER = 2, 1  # versions of the format; the older one has no `shards/`
MANIFEST, STATE, TENSORS, MODEL, SHARDS = "manifest.json", "state.json", "tensors.safetensors", "model", "shards"


Entry = dict[str, Any]  # what the manifest says of a file: `{"size": 1234, "sha256": "..."}`


@dataclass(frozen=True, kw_only=True)
class Contents:
    save_model: Callable[[Path], None]  # fills the folder it is given
    tensors: Mapping[str, Tensor]  # of sharded ones each rank writes its rows, of the others the first rank all
    state: Mapping[str, Any]  # as JSON


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A checkpoint read back and verified; `model_path` is a Hub-format folder."""

    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]
    model_path: Path
    shards: Shards


def save_checkpoint(folder: Path, step: int, contents: Contents, world: World = ALONE) -> Path:
    """Write `folder/step_000050` and return it. Every rank calls this with the same names; the first one says at the
    end that the checkpoint is complete.

    UserError: no space, or not writable; earlier checkpoints are untouched and nothing half is left.
    """
    final = folder / f"step_{step:06d}"
    sharded = {name: tensor for name, tensor in contents.tensors.items() if is_sharded(tensor)}
    temporary = Path(world.first(str(temporary_folder(final))))
    try:
        known = _write_shards(temporary / SHARDS, sharded, world) if sharded else {}
        with writing(final):
            if world.is_first:
                (temporary / MODEL).mkdir(parents=True)
            contents.save_model(temporary / MODEL)
            if world.is_first:
                # copies, not on a GPU: safetensors refuses tensors that share memory, and wants them contiguous
                whole = {name: tensor for name, tensor in contents.tensors.items() if name not in sharded}
                whole = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in whole.items()}
                save_file(whole, temporary / TENSORS)
                state = json.dumps(contents.state, indent=1, allow_nan=False)
                (temporary / STATE).write_text(state + "\n", encoding="utf-8")
                (temporary / MANIFEST).write_text(_manifest(temporary, step, known), encoding="utf-8")
                replace_folder(temporary, final)
    finally:
        if world.is_first:
            shutil.rmtree(temporary, ignore_errors=True)
    return final


def _write_shards(folder: Path, sharded: Mapping[str, Tensor], world: World) -> dict[str, Entry]:
    """All ranks' files and their index; what the manifest says of the files, which each rank found out about its own.

    All ranks fail, or none does: the first one must not tidy up while another one writes.
    """
    own = folder / shard_name(world.rank)

    def write() -> tuple[Held, Entry]:
        with writing(own):
            folder.mkdir(parents=True, exist_ok=True)
            held = write_rows(own, sharded)
            sync_file(own)  # here: another machine's file cannot be pushed to the disk by the first rank
            return held, _entry(own)

    written = world.attempt(write)
    if world.is_first:
        with writing(folder / INDEX):
            write_index(folder / INDEX, sharded, [held for held, _ in written])
    return {f"{SHARDS}/{shard_name(rank)}": entry for rank, (_, entry) in enumerate(written)}


def _manifest(folder: Path, step: int, known: Mapping[str, Entry]) -> str:
    paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    files = {name: known.get(name) or _entry(path) for name, path in paths.items()}
    return json.dumps({"format": FORMAT, "step": step, "files": files}, indent=1) + "\n"


def _entry(path: Path) -> Entry:
    with path.open("rb") as file:
        return {"size": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def temporary_folder(final: Path) -> Path:
    return final.with_name(f".{final.name}.tmp-{os.getpid()}")


def replace_folder(temporary: Path, final: Path) -> None:
    """Push everything in `temporary` to the disk, then put it in the place of `final`, which may exist.

    A folder that is not empty cannot be renamed over: the old one steps aside first. A kill between the two renames
    leaves it under its hidden name, from where `clean_leftovers` brings it back.
    """
    usual = temporary.stat().st_mode & 0o666  # what the umask leaves of a new folder's mode
    for path in sorted(temporary.rglob("*")):
        if path.is_file():
            path.chmod(usual)  # safetensors makes its files private
        (sync_folder if path.is_dir() else sync_file)(path)
    sync_folder(temporary)
    aside = final.with_name(f".{final.name}.old-{os.getpid()}")
    if final.exists():
        final.rename(aside)
    temporary.rename(final)
    sync_folder(final.parent)
    shutil.rmtree(aside, ignore_errors=True)


def clean_leftovers(folder: Path) -> None:
    """Remove what a killed process left of unfinished saves and deletions; bring back what only stepped aside."""
    if not folder.is_dir():
        return
    with writing(folder):
        for path in sorted(folder.iterdir()):
            found = re.fullmatch(r"\.(.+)\.(tmp|old)-\d+", path.name)
            if found and found[2] == "old" and not (folder / found[1]).exists():
                path.rename(folder / found[1])
            elif found and path.is_dir():
                shutil.rmtree(path)


def list_checkpoints(folder: Path) -> dict[int, Path]:
    if not folder.is_dir():
        return {}
    found = {path: re.fullmatch(r"step_(\d{6,})", path.name) for path in folder.iterdir() if path.is_dir()}
    steps = {int(match[1]): path for path, match in found.items() if match}
    return dict(sorted(steps.items()))


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint, or None; leftovers of a killed save are cleaned up first."""
    clean_leftovers(folder)
    return next(reversed(list_checkpoints(folder).values()), None)


def prune(folder: Path, keep_last: int, keep: int | None = None) -> None:
    """Delete all but the `keep_last` newest checkpoints and the one of step `keep` (the best)."""
    checkpoints = list_checkpoints(folder)
    for step in list(checkpoints)[:-keep_last]:
        if step != keep:
            with writing(checkpoints[step]):
                # renamed first, so that a kill in the middle of the deletion leaves no half checkpoint
                doomed = temporary_folder(checkpoints[step])
                checkpoints[step].rename(doomed)
                shutil.rmtree(doomed)


def load_checkpoint(path: Path, world: World = ALONE) -> Checkpoint:
    """Verify a checkpoint against its manifest and read it; of several ranks each verifies a share of the files.
    UserError: a file is missing or was changed."""
    step = verify(path, world)
    return Checkpoint(
        step=step,
        tensors=load_file(path / TENSORS),
        state=json.loads((path / STATE).read_text(encoding="utf-8")),
        model_path=path / MODEL,
        shards=Shards(path / SHARDS if (path / SHARDS).is_dir() else None),
    )


def verify(path: Path, world: World = ALONE) -> int:
    """Compare every file of a checkpoint with its manifest; the checkpoint's step. Errors as in `load_checkpoint`."""
    if not path.is_dir():
        raise UserError(f"There is no checkpoint {path}.")
    manifest: dict[str, Any] = {}
    files: dict[str, Any] = {}
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] not in (OLDER, FORMAT):
            raise UserError(
                f"Checkpoint {path} has format {manifest['format']!r}, this version of rlvr reads formats {OLDER} and "
                f"{FORMAT}: use the version that wrote it."
            )
        if path.name == f"step_{manifest['step']:06d}" and {STATE, TENSORS} <= manifest["files"].keys():
            files = manifest["files"]
    is_sound = world.join([_is_sound(path / name, entry) for name, entry in world.share(list(files.items()))])
    damaged = next((name for name, sound in zip(files, is_sound, strict=True) if not sound), None)
    if damaged is not None or not files:
        raise UserError(
            f"Checkpoint {path} is damaged: {damaged or MANIFEST} is missing or was changed; delete that folder, and "
            "the run goes on from an earlier one, or starts again."
        )
    return manifest["step"]


def _is_sound(file: Path, entry: Entry) -> bool:
    return file.is_file() and _entry(file) == entry
