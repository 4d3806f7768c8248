import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BloomConfig, BloomForCausalLM

from rlvr.errors import UserError
from rlvr.models.loading import load_for_inference
from tests.unit.core.tiny import tiny_policy


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_policy(attention_dropout=0.5).save(tmp_path / "model")
    return tmp_path / "model"


def test_pitfall_33_loaded_weights_are_float32(folder: Path) -> None:
    half = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    half.save_pretrained(folder)
    policy = load_for_inference(str(folder))
    assert {parameter.dtype for parameter in policy.model.parameters()} == {torch.float32}
    assert len(policy.tokenizer) == policy.model.config.vocab_size


def test_pitfall_34_a_loaded_model_is_in_eval_mode(folder: Path) -> None:
    model = load_for_inference(str(folder)).model
    assert not any(module.training for module in model.modules())


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [
        ("config.json", "holds no model .no config.json.: name a folder in Hub format"),
        ("tokenizer*", "has no tokenizer .no tokenizer.json.: copy that"),
        ("*.safetensors", "cannot be loaded"),
    ],
)
def test_a_missing_file_is_a_sentence(pattern: str, sentence: str, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "bare", ignore=shutil.ignore_patterns(pattern))
    with pytest.raises(UserError, match=sentence):
        load_for_inference(str(tmp_path / "bare"))


def test_a_pointer_of_git_lfs_is_called_one(folder: Path) -> None:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9\n")
    with pytest.raises(UserError, match=r"model\.safetensors is a Git LFS pointer, no weights: run `git lfs pull`"):
        load_for_inference(str(folder))


def test_what_the_files_lack_is_reported(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if "mlp" in name)
    save_file({key: weight for key, weight in weights.items() if key != name}, folder / "model.safetensors")
    assert set(load_for_inference(str(folder)).load_report["missing_keys"]) == {name}


def test_a_model_without_sdpa_is_loaded_with_eager_attention(folder: Path) -> None:
    policy = load_for_inference(str(folder))
    config = BloomConfig(vocab_size=len(policy.tokenizer), hidden_size=8, n_layer=1, n_head=2)
    BloomForCausalLM(config).save_pretrained(folder)
    with pytest.warns(UserWarning, match="attn_implementation=sdpa: .* no such attention: eager is used"):
        model = load_for_inference(str(folder)).model
    assert model.config._attn_implementation == "eager"
