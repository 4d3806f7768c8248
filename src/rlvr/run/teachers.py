"""The models that a run's algorithm asks beside the policy (`rlvr.algorithms.columns`)."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import torch
from transformers import PreTrainedTokenizerBase

from rlvr.algorithms.columns import START, teachers_of
from rlvr.config import Config
from rlvr.core.packing import Packing
from rlvr.core.trainer import LocalTeacher, RemoteTeacher
from rlvr.models.devices import in_bf16, line_columns
from rlvr.models.hub import locate
from rlvr.models.layout import choose_layout
from rlvr.models.loading import load_tokenizer
from rlvr.models.policy import HubPolicy
from rlvr.models.teachers import check_teacher, load_teacher, teacher_bytes
from rlvr.places import ENDPOINT
from rlvr.progress import progress
from rlvr.run.sources import weights_of


def teachers(
    config: Config, policy: HubPolicy, microbatch_tokens: int, note: Callable[[str], None]
) -> dict[str, LocalTeacher | RemoteTeacher]:
    """The teachers by the names that columns give them; START is the trainer's own."""
    made: dict[str, LocalTeacher | RemoteTeacher] = {}
    for name in _names(config):
        if name.startswith(ENDPOINT):
            from rlvr.engines.prompt_logprobs import open_teacher

            made[name] = open_teacher(name, policy.tokenizer, temperature=config.rollout.temperature)
            continue
        with progress(f"loading the teacher {name}"):
            teacher = load_teacher(weights_of(name), policy, _dtype(config, policy))
            teacher = replace(teacher, prompts=policy.prompts)
        layout, columns = choose_layout(teacher), line_columns(teacher.model)
        packing = Packing(layout=layout, max_tokens=microbatch_tokens, columns=columns, note=note)
        made[name] = LocalTeacher(partial(nullcontext, teacher), packing)
        note(f"teacher: {name}, {teacher.num_weights:,} weights in {str(teacher.dtype).removeprefix('torch.')}")
    return made


def check_teachers(config: Config) -> None:
    """UserError if a folder holds no model, or a server does not answer; before anything is made."""
    for name in _names(config):
        if name.startswith(ENDPOINT):
            from rlvr.engines.openai import open_endpoint

            open_endpoint(name)
        else:
            locate(weights_of(name))


def check_tokens(config: Config, student: PreTrainedTokenizerBase | None = None) -> None:
    """UserError for a teacher with other tokens than the policy's, before weights are read or a warm start is made. A
    pretrained policy's own tokenizer is read; that of one made from scratch is `student`."""
    local = [name for name in _names(config) if not name.startswith(ENDPOINT)]
    if local and config.model.pretrained is not None:
        student = load_tokenizer(config.model.pretrained)
    if student is not None:
        for name in local:
            check_teacher(weights_of(name), student)


def weights(config: Config, policy: HubPolicy) -> int:
    """Bytes of the teachers in this process, which are not loaded yet."""
    local = [name for name in _names(config) if not name.startswith(ENDPOINT)]
    return sum(teacher_bytes(weights_of(name), _dtype(config, policy)) for name in local)


def _names(config: Config) -> list[str]:
    """Each once."""
    named = (teacher.name for teacher in teachers_of(config.algorithm.columns().values()) if teacher.name != START)
    return list(dict.fromkeys(named))


def _dtype(config: Config, policy: HubPolicy) -> torch.dtype:
    """bfloat16 where the trainer's products are rounded to it anyway."""
    return torch.bfloat16 if in_bf16(config.trainer.precision, policy.model) else torch.float32
