"""A hash of everything that determines a model's samples."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlvr.models.policy import HubPolicy

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SAMPLED_NUMBERS = 1024  # numbers of each tensor that are hashed in order
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fingerprint(policy: HubPolicy) -> str:
    """16 hex digits over weights, configuration, tokenizer and chat template, independent of their location.

    For each tensor: name, dtype, shape, the integer sum of its bits (any change alters it, the order of summation does
    not) and some numbers in order. Takes one second per billion numbers.
    """
    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(policy.model.named_parameters()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(_content(tensor.detach()))
    for config in (policy.model.config, policy.model.generation_config):
        values = {} if config is None else config.to_dict()
        kept = {key: values[key] for key in values if key not in ("_name_or_path", "transformers_version")}
        digest.update(json.dumps(kept, sort_keys=True, default=str).encode())
    digest.update(_tokenizer(policy.tokenizer).encode("utf-8", errors="backslashreplace"))
    return digest.hexdigest()


def _content(tensor: Tensor) -> bytes:
    flat = tensor.contiguous().view(-1)
    bits = flat.view(_INTEGERS[flat.element_size()]).to("cpu")
    step = max(1, len(bits) // SAMPLED_NUMBERS)
    return f"{int(bits.sum(dtype=torch.int64))}".encode() + bits[::step].contiguous().numpy().tobytes()


def _tokenizer(tokenizer: PreTrainedTokenizerBase) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    words = backend.to_str() if backend is not None else json.dumps(tokenizer.get_vocab(), sort_keys=True)
    return f"{words} {tokenizer.chat_template!r} {tokenizer.special_tokens_map!r}"
