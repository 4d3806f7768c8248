"""What safetensors cannot write from where it lies is copied, a file at a time, and everything comes back."""

from pathlib import Path

import pytest
import torch

from rlvr.scale import tensors as module
from rlvr.scale.tensors import SavedTensors, files_of, write_tensors

BASE = torch.arange(12.0).view(3, 4)
TENSORS = {
    "plain": BASE,
    "its memory": BASE[1:],
    "with gaps": torch.arange(12.0).view(4, 3).T,
    "scalar": torch.tensor(7),
    "empty": torch.zeros(0),
    "half": torch.randn(5).bfloat16(),
    "more gaps": torch.arange(6).view(2, 3).T,
}


@pytest.mark.parametrize(("room", "num_files"), [(1 << 26, 2), (100, 3), (1, 4)])
def test_what_is_copied_goes_into_files_of_bounded_size(
    room: int, num_files: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FILE_BYTES", room)
    written = write_tensors(tmp_path / "a.safetensors", TENSORS)
    write_tensors(tmp_path / "ab.safetensors", TENSORS)
    assert written == files_of(tmp_path / "a.safetensors")
    assert len(written) == num_files
    assert set(SavedTensors(written[:1])) == {"plain", "scalar", "empty", "half"}
    saved = SavedTensors(written)
    assert saved.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert (saved[name].dtype, saved.shape(name)) == (tensor.dtype, tuple(tensor.shape))
        assert torch.equal(saved[name], tensor)
    assert torch.equal(saved.rows("with gaps", 1, 3), TENSORS["with gaps"][1:3])
    assert saved.rows("plain", 1, 2).untyped_storage().nbytes() == 16


def test_nothing_is_a_file_too(tmp_path: Path) -> None:
    assert write_tensors(tmp_path / "a.safetensors", {}) == [tmp_path / "a.safetensors"]
    assert dict(SavedTensors(files_of(tmp_path / "a.safetensors"))) == {}
