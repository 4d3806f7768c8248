"""Writes a trained model as a folder to publish: whole, as an adapter, or with its adapter merged.

    whole      model.safetensors  config.json  generation_config.json  tokenizer...      as written by the run
    adapter    adapter_model.safetensors  adapter_config.json  tokenizer...              for peft
    merged     like whole: base model in float32 plus adapter, then cast

Copies only safetensors and text files of the Hub format: loading a pickle would run code.
"""

import json
import shutil
from pathlib import Path
from typing import Literal

import torch

from rlvr.errors import UserError
from rlvr.models.adapters import CONFIG as ADAPTER_CONFIG
from rlvr.models.adapters import saved_settings
from rlvr.models.loading import load_for_inference
from rlvr.models.settings import PretrainedModel

Dtype = Literal["float32", "bfloat16", "float16"]

FILES = ("*.safetensors", "*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt")
"""File patterns of a model folder in Hub format."""


def is_adapter(folder: Path) -> bool:
    return (folder / ADAPTER_CONFIG).is_file() and not (folder / "config.json").is_file()


def copy_files(source: Path, target: Path, *, code: bool = False) -> None:
    """Copy the files of a model folder; `code`: also Python files of a custom model. UserError for damaged weights."""
    patterns = (*FILES, "*.py") if code else FILES
    chosen = sorted({path for pattern in patterns for path in source.glob(pattern) if path.is_file()})
    check_weights(source, [path for path in chosen if path.suffix == ".safetensors"])
    for path in chosen:
        shutil.copyfile(path, target / path.name)


def write_loaded(source: Path, settings: PretrainedModel | None, target: Path, *, merge: bool, dtype: Dtype) -> None:
    """Load a model folder and write it with its adapter merged or its weights cast.

    `settings` tell the dtype and quantization of the base in training. The merge is computed in float32, then cast.
    UserError as in `load_for_inference`.
    """
    policy = load_for_inference(str(source), settings)
    if merge:
        policy = policy.merged()
    policy.model.to(getattr(torch, dtype))
    policy.save(target)


def check_weights(folder: Path, files: list[Path]) -> None:
    """UserError unless there are weights and every file's header matches its size."""
    from safetensors import SafetensorError, safe_open

    if not files:
        raise UserError(f"the model folder {str(folder)!r} has no *.safetensors: name a folder with weights")
    for path in files:
        try:
            with safe_open(path, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise UserError(f"{path} is damaged ({error}): copy it again, or name another checkpoint") from error


def num_parameters(folder: Path) -> int:
    from safetensors import safe_open

    total = 0
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            total += sum(torch.Size(file.get_slice(name).get_shape()).numel() for name in file.keys())  # noqa: SIM118
    return total


def name_base_model(folder: Path, name: str) -> None:
    settings = saved_settings(folder) | {"base_model_name_or_path": name}
    (folder / ADAPTER_CONFIG).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
