"""Why the files of a model folder cannot be read: in place of what libraries say of them, which names no file."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import safe_open

AGAIN = "copy it again, as its download or copy may have stopped"


def damage(folder: Path) -> str | None:
    """The first fault of the folder's files, with a remedy; None if none is known."""
    return next(_faults(folder), None) if folder.is_dir() else None


def _faults(folder: Path) -> Iterator[str]:
    read = dict[str, Any]()
    for file in sorted(folder.glob("*.json")):
        try:
            read[file.name] = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            yield f"{file.name} is no valid JSON ({error}): correct it, or {AGAIN}"
    index = read.get("model.safetensors.index.json")
    listed = sorted(set(index["weight_map"].values())) if isinstance(index, dict) and "weight_map" in index else []
    if missing := [name for name in listed if not (folder / name).is_file()]:
        yield f"{len(missing)} of {len(listed)} files of its weights are missing, first {missing[0]}: download them"
    for file in sorted(folder.glob("*.safetensors")):
        yield from _of_weights(file)
    yield from _of_config(read.get("config.json"))
    if (folder / "tokenizer.json").is_file():
        yield from _of_tokenizer(folder / "tokenizer.json")


def _of_weights(file: Path) -> Iterator[str]:
    try:
        with safe_open(file, "pt") as opened:
            names = list(opened.keys())
            empty = [name for name in names if 0 in opened.get_slice(name).get_shape()]
    except Exception as error:  # safetensors has its own
        yield f"{file.name} is incomplete or damaged ({error}): {AGAIN}"
        return
    if empty:
        yield (
            f"{len(empty)} of {len(names)} tensors in {file.name} are empty, first {empty[0]}: each process of a "
            "sharded run (ZeRO-3, FSDP) saved its own part; gather the weights before they are saved"
        )


def _of_config(config: Any) -> Iterator[str]:
    if not isinstance(config, dict):
        return
    text = config.get("text_config")  # the language model of one that also sees or hears
    sizes = [one for one in (config, text if isinstance(text, dict) else {}) if "vocab_size" in one]
    padding, size = config.get("pad_token_id"), sizes[0]["vocab_size"] if sizes else None
    if isinstance(padding, int) and isinstance(size, int) and padding >= size:
        yield (
            f"config.json has pad_token_id={padding}, beyond its vocabulary of {size} tokens: take a token that it "
            "has, such as the end token, or resize the model's embedding and save it again"
        )


def _of_tokenizer(file: Path) -> Iterator[str]:
    import tokenizers

    try:
        tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises bare ones
        yield (
            f"tokenizer.json cannot be read by tokenizers {tokenizers.__version__} ({error}): a newer version wrote "
            "it, or it is damaged; copy that of the base model"
        )
