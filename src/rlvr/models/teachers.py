"""Frozen models that score the policy's tokens."""

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedTokenizerBase

from rlvr.errors import UserError
from rlvr.models.hub import locate
from rlvr.models.loading import base_of, from_pretrained, load_for_inference, load_tokenizer
from rlvr.models.policy import HubPolicy
from rlvr.models.settings import PretrainedModel


def load_teacher(name: str, student: HubPolicy, dtype: torch.dtype) -> HubPolicy:
    """The model of a folder or Hub id, on the student's device, without gradients. UserError if it is missing, or if
    its tokens are not the student's."""
    check_teacher(name, student.tokenizer)
    teacher = load_for_inference(name, device=student.model.device, dtype=dtype)
    teacher.model.requires_grad_(False)
    return teacher


def check_teacher(name: str, student: PreTrainedTokenizerBase) -> None:
    """UserError unless each token of the student has the same id in the teacher, whose logprobs are read by id, and its
    model knows all of them. Reads no weights."""
    teacher_ids, ids = load_tokenizer(PretrainedModel(name_or_path=name)).get_vocab(), student.get_vocab()
    moved = sorted((token for token, number in ids.items() if teacher_ids.get(token) != number), key=ids.__getitem__)
    if moved:
        first, have = moved[0], "has another id" if len(moved) == 1 else "have other ids"
        raise UserError(
            f"the tokens of the teacher {name!r} are not the policy's: {len(moved):,} of {len(ids):,} tokens {have}, "
            f"first {first!r} ({ids[first]}, and {teacher_ids.get(first, 'missing')} in the teacher); choose a teacher "
            "with the policy's tokenizer."
        )
    size, largest = int(_configuration(name).get_text_config().vocab_size), max(ids.values())
    if size <= largest:
        raise UserError(
            f"the teacher {name!r} knows {size:,} token ids and the policy's go up to {largest:,}: choose a teacher "
            "with the policy's vocabulary."
        )


def teacher_bytes(name: str, dtype: torch.dtype) -> int:
    """Of the weights of a model folder, adapter folder or Hub id; reads only its configuration."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(_configuration(name))
    return sum(parameter.numel() for parameter in model.parameters()) * dtype.itemsize


def _configuration(name: str) -> PreTrainedConfig:
    settings, located = PretrainedModel(name_or_path=name), locate(name)
    if (adapter := located.adapter_folder()) is not None:
        settings = settings.model_copy(update={"name_or_path": base_of(adapter)})
        located = locate(settings.name_or_path)
    return from_pretrained(AutoConfig, settings, located)
