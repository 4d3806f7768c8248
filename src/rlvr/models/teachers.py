"""Frozen models that score the policy's tokens."""

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerBase

from rlvr.errors import UserError
from rlvr.models.hub import locate
from rlvr.models.loading import base_of, from_pretrained, load_for_inference
from rlvr.models.policy import HubPolicy
from rlvr.models.settings import PretrainedModel


def load_teacher(name: str, student: HubPolicy, dtype: torch.dtype) -> HubPolicy:
    """The model of a folder or Hub id, on the student's device, without gradients. UserError if it is missing, or if
    its tokens are not the student's."""
    teacher = load_for_inference(name, device=student.model.device, dtype=dtype)
    check_tokens(name, student.tokenizer, teacher.tokenizer)
    size, largest = int(teacher.model.config.get_text_config().vocab_size), max(student.tokenizer.get_vocab().values())
    if size <= largest:
        raise UserError(
            f"the teacher {name!r} knows {size:,} token ids and the policy's go up to {largest:,}: choose a teacher "
            "with the policy's vocabulary."
        )
    teacher.model.requires_grad_(False)
    return teacher


def check_tokens(name: str, student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase) -> None:
    """UserError unless each token of the student has the same id in the teacher: its logprobs are read by id."""
    own, other = student.get_vocab(), teacher.get_vocab()
    moved = sorted((token for token, number in own.items() if other.get(token) != number), key=own.__getitem__)
    if moved:
        first = moved[0]
        there = f"is {other[first]} there" if first in other else "is missing there"
        raise UserError(
            f"the teacher's ids are not the student's: {first!r} is {own[first]} here and {there}, one of "
            f"{len(moved):,} of {len(own):,} tokens; choose a teacher with the policy's tokenizer instead of {name!r}."
        )


def teacher_bytes(name: str, dtype: torch.dtype) -> int:
    """Of the weights of a model folder, adapter folder or Hub id; reads only its configuration."""
    settings = PretrainedModel(name_or_path=name)
    located = locate(name)
    if (adapter := located.adapter_folder()) is not None:
        settings = settings.model_copy(update={"name_or_path": base_of(adapter)})
        located = locate(settings.name_or_path)
    config = from_pretrained(AutoConfig, settings, located)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters()) * dtype.itemsize
