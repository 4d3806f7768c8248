"""A real model whose every word is known: each token has one successor, and attention adds nothing."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.unit.chat.tokenizers import END, byte_tokenizer

CALL = '<tool_call>\n{"name": "look", "arguments": {"place": "caf\u00e9", "deep": true}}\n</tool_call>'
CONTEXT_TOKENS = 8192
SPOKEN = "abc\u00e9\u20acd"
"""What follows `<` in the chain: letters, then characters of two and three bytes."""


def save_chain(folder: Path, call: str = CALL) -> Path:
    """A prompt that ends with a line break, as every chat does, is answered with `call` and the end; one that ends with
    `<` with SPOKEN and the end; whatever else follows is the end."""
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken(call, special=False, normalized=False)])
    tokenizer.model_max_length = CONTEXT_TOKENS
    steps = [("\n", call), (call, END), *_pairs(tokenizer, "<" + SPOKEN)]
    successors = {_only(tokenizer, one): _only(tokenizer, other) for one, other in steps if len(one) > 0}
    return save_successors(folder, tokenizer, successors, _only(tokenizer, END))


def save_successors(
    folder: Path, tokenizer: PreTrainedTokenizerFast, successors: Mapping[int, int], end: Any, *, scale: float = 2.0
) -> Path:
    """A model that goes on from a token with its successor, else with the end; with scale 0 from any with anything."""
    size = len(tokenizer)
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=size + size % 2,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=None,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.fill_(1.0 if "norm" in name else 0.0)
        model.model.embed_tokens.weight.copy_(torch.eye(size, config.hidden_size))
        for token in range(size):
            model.lm_head.weight[successors.get(token, end), token] = scale
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _pairs(tokenizer: PreTrainedTokenizerFast, text: str) -> list[tuple[str, str]]:
    symbols = tokenizer.convert_ids_to_tokens(tokenizer.encode(text, add_special_tokens=False))
    return list(zip(symbols, [*symbols[1:], END], strict=True))


def _only(tokenizer: PreTrainedTokenizerFast, word: str) -> int:
    """The id of a symbol of the vocabulary, or of a text that is one token."""
    known = tokenizer.get_vocab().get(word)
    if known is not None:
        return known
    (token,) = tokenizer.encode(word, add_special_tokens=False)
    return token
