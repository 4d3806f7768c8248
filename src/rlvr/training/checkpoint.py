"""Atomic, verified checkpoints.

    checkpoints/step_000050/
        manifest.json         format version, step, size and SHA-256 of every other file
        state.json            counters, cursors, scalars
        tensors.safetensors   optimizer moments, random states, other tensors; from a GPU in several files
        model/                the policy in Hub format
        shards/               for sharded weights: their rows and those of their moments (scale/shards.py)

A checkpoint is written into a hidden sibling folder, synced to the disk, and renamed. It holds only safetensors and
JSON, so loading runs no code. Any number of processes, with sharded or whole weights, can resume from it.
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

from torch import Tensor

from rlvr.core.world import ALONE, World
from rlvr.errors import UserError
from rlvr.records.files import sync_file, sync_folder, writing
from rlvr.scale.sharding import is_sharded
from rlvr.scale.shards import INDEX, Held, Shards, shard_name, write_index, write_rows
from rlvr.scale.tensors import SavedTensors, files_of, write_tensors

FORMAT, OLDER = 3, (1, 2)  # versions of the format; the first has no `shards/`, both have all tensors in one file
MANIFEST, STATE, TENSORS, MODEL, SHARDS = "manifest.json", "state.json", "tensors.safetensors", "model", "shards"


Entry = dict[str, Any]  # manifest entry of a file: `{"size": 1234, "sha256": "..."}`


@dataclass(frozen=True, kw_only=True)
class Contents:
    save_model: Callable[[Path], None]  # fills the given folder
    tensors: Mapping[str, Tensor]  # each rank writes its rows of sharded ones, rank 0 all others
    state: Mapping[str, Any]  # as JSON


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A verified checkpoint; its tensors are read when asked for. `model_path` is a Hub-format folder."""

    step: int
    tensors: SavedTensors
    state: dict[str, Any]
    model_path: Path
    shards: Shards


def save_checkpoint(folder: Path, step: int, contents: Contents, world: World = ALONE) -> Path:
    """Write `folder/step_000050` and return it. Collective, with the same names on every rank; rank 0 finally marks the
    checkpoint as complete.

    UserError without space or permission; earlier checkpoints stay intact and no partial one is left.
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
                whole = {name: tensor for name, tensor in contents.tensors.items() if name not in sharded}
                write_tensors(temporary / TENSORS, whole)
                state = json.dumps(contents.state, indent=1, allow_nan=False)
                (temporary / STATE).write_text(state + "\n", encoding="utf-8")
                (temporary / MANIFEST).write_text(_manifest(temporary, step, known), encoding="utf-8")
                replace_folder(temporary, final)
    finally:
        if world.is_first:
            shutil.rmtree(temporary, ignore_errors=True)
    return final


def _write_shards(folder: Path, sharded: Mapping[str, Tensor], world: World) -> dict[str, Entry]:
    """Write all ranks' files and their index; returns the manifest entries, computed by each rank.

    All ranks fail together: rank 0 must not clean up while another one writes.
    """
    shard = folder / shard_name(world.rank)

    def write() -> tuple[Held, Entry]:
        with writing(shard):
            folder.mkdir(parents=True, exist_ok=True)
            held = write_rows(shard, sharded)
            sync_file(shard)  # rank 0 cannot sync the files of another machine
            return held, _entry(shard)

    written = world.gather_results(write)
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
    """Sync everything in `temporary` to the disk, then rename it to `final`, which may exist.

    A non-empty folder cannot be replaced by a rename, so the old one is first renamed to a hidden name, from which
    `clean_leftovers` restores it after a kill.
    """
    usual = temporary.stat().st_mode & 0o666  # a new folder's mode under the umask
    for path in sorted(temporary.rglob("*")):
        if path.is_file():
            path.chmod(usual)  # safetensors creates private files
        (sync_folder if path.is_dir() else sync_file)(path)
    sync_folder(temporary)
    aside = final.with_name(f".{final.name}.old-{os.getpid()}")
    if final.exists():
        final.rename(aside)
    temporary.rename(final)
    sync_folder(final.parent)
    shutil.rmtree(aside, ignore_errors=True)


def clean_leftovers(folder: Path) -> None:
    """Remove unfinished saves and deletions of a killed process; restore a folder that was being replaced."""
    if not folder.is_dir():
        return
    with writing(folder):
        for path in sorted(folder.iterdir()):
            found = re.fullmatch(r"\.(.+)\.(tmp|old)-\d+", path.name)
            if found and found[2] == "old" and not (folder / found[1]).exists():
                path.rename(folder / found[1])
            elif found:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


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
                # rename first, so that a kill during the deletion leaves no partial checkpoint
                doomed = temporary_folder(checkpoints[step])
                checkpoints[step].rename(doomed)
                shutil.rmtree(doomed)


def load_checkpoint(path: Path, world: World = ALONE) -> Checkpoint:
    """Verify a checkpoint against its manifest and read it; each rank verifies a share of the files. UserError for a
    missing or changed file."""
    step = verify(path, world)
    return Checkpoint(
        step=step,
        tensors=SavedTensors(files_of(path / TENSORS)),
        state=json.loads((path / STATE).read_text(encoding="utf-8")),
        model_path=path / MODEL,
        shards=Shards(path / SHARDS if (path / SHARDS).is_dir() else None),
    )


def verify(path: Path, world: World = ALONE) -> int:
    """Compare every file of a checkpoint with its manifest; returns the step. Errors as in `load_checkpoint`."""
    if not path.is_dir():
        raise UserError(f"there is no checkpoint {path}.")
    manifest: dict[str, Any] = {}
    files: dict[str, Any] = {}
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] not in (*OLDER, FORMAT):
            raise UserError(
                f"checkpoint {path} has format {manifest['format']!r}, this version of rlvr reads formats {OLDER[0]} "
                f"to {FORMAT}: use the version that wrote it."
            )
        if path.name == f"step_{manifest['step']:06d}" and {STATE, TENSORS} <= manifest["files"].keys():
            files = manifest["files"]
    is_sound = world.gather_shares([_is_sound(path / name, entry) for name, entry in world.share(list(files.items()))])
    damaged = next((name for name, sound in zip(files, is_sound, strict=True) if not sound), None)
    if damaged is not None or not files:
        raise UserError(
            f"checkpoint {path} is damaged: {damaged or MANIFEST} is missing or was changed; delete that folder, and "
            "the run goes on from an earlier one, or starts again."
        )
    return manifest["step"]


def _is_sound(file: Path, entry: Entry) -> bool:
    return file.is_file() and _entry(file) == entry
