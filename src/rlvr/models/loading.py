"""Pretrained models and the critic."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from rlvr.errors import UserError


def load_pretrained(
    name_or_path: str, *, trust_remote_code: bool = False
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A causal LM and its tokenizer from a folder or the Hub, in eval mode.

    The weights are float32 whatever they were saved in: near 0.02 bf16 numbers lie 1.2e-4 apart, so that an update of
    1e-6 would be rounded away.

    Raises UserError if the folder lacks a model or a tokenizer, or the Hub cannot be reached.
    """
    folder = Path(name_or_path)
    if folder.is_dir():
        _check_folder(folder)
    try:
        model = AutoModelForCausalLM.from_pretrained(
            name_or_path, dtype=torch.float32, trust_remote_code=trust_remote_code
        )
        tokenizer = AutoTokenizer.from_pretrained(name_or_path, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"the model {name_or_path!r} cannot be loaded ({reason}): name a model folder or a Hub id"
        ) from error
    except Exception as error:  # safetensors raises its own kinds for damaged files
        raise UserError(f"the model {name_or_path!r} cannot be loaded: its files are damaged ({error})") from error
    for parameter in model.parameters():
        # out of the mapped file into aligned memory: where a matrix begins decides the last bit of a product, and a
        # resumed process must not differ from the one that made these weights
        parameter.data = parameter.data.clone()
    return model.eval(), tokenizer


def _check_folder(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise UserError(f"the folder {str(folder)!r} holds no model (no config.json): name a folder in Hub format")
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise UserError(
            f"the model folder {str(folder)!r} has no tokenizer (no tokenizer.json): "
            "copy the tokenizer files of the base model into it"
        )


def value_head(hidden_size: int) -> nn.Linear:
    """The critic: one linear output on the policy's trunk, zero at the start so that first values are 0."""
    head = nn.Linear(hidden_size, 1)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head
