"""A damaged folder is refused with its file's name; a sound one has nothing to say."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from rlvr.errors import UserError
from rlvr.models.damage import damage
from rlvr.models.loading import load_policy
from rlvr.models.settings import PretrainedModel
from tests.unit.chat.tokenizers import byte_tokenizer
from tests.unit.core.tiny import tiny_policy


def changed(name: str, **fields: Any) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | fields))


def cut_off(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-40])


def never_gathered(folder: Path) -> None:
    save_file({"lm_head.weight": torch.empty(0), "norm.weight": torch.ones(2)}, folder / "model.safetensors")


def lost_shard(folder: Path) -> None:
    weight_map = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors").rename(folder / weight_map["a"])
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def trailing_comma(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text('{"eos_token": "a",}')


def of_a_newer_version(folder: Path) -> None:
    said = json.loads((folder / "tokenizer.json").read_text())
    said["model"]["type"] = "SuperBPE"
    (folder / "tokenizer.json").write_text(json.dumps(said))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_policy().model.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    return tmp_path


def test_a_sound_folder_has_no_fault(folder: Path, tmp_path: Path) -> None:
    assert damage(folder) is None
    assert damage(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (cut_off, "model.safetensors is incomplete or damaged ("),
        (never_gathered, "1 of 2 tensors in model.safetensors are empty, first lm_head.weight: each process"),
        (lost_shard, "1 of 2 files of its weights are missing, first model-00002-of-00002.safetensors"),
        (trailing_comma, "tokenizer_config.json is no valid JSON ("),
        (of_a_newer_version, "tokenizer.json cannot be read by tokenizers "),
        (changed("config.json", pad_token_id=9_999), "config.json has pad_token_id=9999, beyond its vocabulary of "),
    ],
)
def test_a_damaged_file_is_named(change: Callable[[Path], object], says: str, folder: Path) -> None:
    change(folder)
    found = damage(folder)
    assert found is not None
    assert found.startswith(says)
    with pytest.raises(UserError) as refused:
        load_policy(PretrainedModel(name_or_path=str(folder), dtype="float32"), seed=0)
    assert str(refused.value) == f"the model {str(folder)!r} cannot be loaded: {found}"


def test_a_padding_within_the_vocabulary_is_none(folder: Path) -> None:
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    for token in (size - 1, None, -1):
        changed("config.json", pad_token_id=token)(folder)
        assert damage(folder) is None
