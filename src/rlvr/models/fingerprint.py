"""What tells two models apart: a hash of everything that decides what is sampled from them."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlvr.models.policy import Policy

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SAMPLED_NUMBERS = 1024
"""Numbers of each tensor that are hashed in their order."""

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fingerprint(policy: Policy) -> str:
    """16 hexadecimal digits over weights, configuration, tokenizer and chat template, wherever they were loaded from.

    Of each tensor: name, type, shape, the sum of its bits as whole numbers, which a change of any one number moves
    and no order of summing does, and some numbers in their order. A second for a billion of them.
    """
    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(policy.model.named_parameters()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(_content(tensor.detach()))
    for config in (policy.model.config, policy.model.generation_config):
        digest.update(json.dumps(_settings(config), sort_keys=True, default=str).encode())
    digest.update(_tokenizer(policy.tokenizer).encode("utf-8", errors="backslashreplace"))
    return digest.hexdigest()


def _content(tensor: Tensor) -> bytes:
    flat = tensor.contiguous().view(-1)
    bits = flat.view(_INTEGERS[flat.element_size()]).to("cpu")
    step = max(1, len(bits) // SAMPLED_NUMBERS)
    return f"{int(bits.sum(dtype=torch.int64))}".encode() + bits[::step].contiguous().numpy().tobytes()


def _settings(config: Any) -> dict[str, Any]:
    """Without what says where the files lie and who wrote them."""
    values = {} if config is None else config.to_dict()
    return {key: value for key, value in values.items() if key not in ("_name_or_path", "transformers_version")}


def _tokenizer(tokenizer: PreTrainedTokenizerBase) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    words = backend.to_str() if backend is not None else json.dumps(tokenizer.get_vocab(), sort_keys=True)
    return f"{words} {tokenizer.chat_template!r} {tokenizer.special_tokens_map!r}"
