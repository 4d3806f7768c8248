"""A teacher reads the policy's token ids, so it must have them."""

from pathlib import Path

import pytest
import torch

from rlvr.errors import UserError
from rlvr.models.policy import HubPolicy
from rlvr.models.scratch import build_tokenizer
from rlvr.models.teachers import load_teacher, teacher_bytes
from tests.unit.core.tiny import SIZES, VOCABULARY, plain_logprobs, tiny_batch, tiny_model, tiny_policy


def saved(folder: Path, words: tuple[str, ...], **changes: object) -> str:
    HubPolicy(model=tiny_model(**changes), tokenizer=build_tokenizer(words)).save(folder)
    return str(folder)


def test_a_teacher_is_frozen_and_the_folder_s_model(tmp_path: Path) -> None:
    student, name = tiny_policy("qwen3"), saved(tmp_path, VOCABULARY)
    teacher = load_teacher(name, student, torch.float32)
    batch = tiny_batch(student)
    assert torch.equal(plain_logprobs(teacher, batch), plain_logprobs(tiny_policy(), batch))
    assert not any(p.requires_grad for p in teacher.model.parameters())
    assert load_teacher(name, student, torch.bfloat16).dtype == torch.bfloat16


def test_more_tokens_than_the_student_s_do_no_harm(tmp_path: Path) -> None:
    words = (*VOCABULARY, "<more>")
    load_teacher(saved(tmp_path, words, vocab_size=len(words)), tiny_policy(), torch.float32)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            (*VOCABULARY[:4], "5", "6", *(w for w in VOCABULARY[4:] if w not in "56")),
            "8 of 17 tokens have other ids, first '+' (4, and 6 in the teacher)",
        ),
        (VOCABULARY[:-1], "1 of 17 tokens has another id, first '11' (16, and missing in the teacher)"),
    ],
)
def test_another_tokenizer_is_named_with_its_first_token(words: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    name = saved(tmp_path, words)
    (tmp_path / "model.safetensors").unlink()  # it is told before weights are read
    with pytest.raises(UserError) as refused:
        load_teacher(name, tiny_policy(), torch.float32)
    assert f"are not the policy's: {sentence}; choose a teacher" in str(refused.value)


@pytest.mark.parametrize("size", [15, 16])
def test_a_model_of_fewer_ids_than_its_tokenizer_is_refused(size: int, tmp_path: Path) -> None:
    name = saved(tmp_path, VOCABULARY, vocab_size=size)
    with pytest.raises(UserError, match=f"knows {size} token ids and the policy's go up to 16"):
        load_teacher(name, tiny_policy(), torch.float32)


def test_its_size_is_known_before_it_is_loaded(tmp_path: Path) -> None:
    name = saved(tmp_path, VOCABULARY)
    loaded = load_teacher(name, tiny_policy(), torch.float32)
    size = sum(p.nbytes for p in loaded.model.parameters())
    assert teacher_bytes(name, torch.float32) == size > 4 * SIZES["vocab_size"]
    assert teacher_bytes(name, torch.bfloat16) == size // 2
    (tmp_path / "model.safetensors").unlink()
    assert teacher_bytes(name, torch.float32) == size
