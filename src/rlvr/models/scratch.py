"""The model made from scratch: a Llama-architecture transformers model and a word-level tokenizer.

Both are ordinary transformers objects: `save_pretrained` writes a folder that `AutoModelForCausalLM` and
`AutoTokenizer` load without this package.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from rlvr.config.schema import ScratchModel
from rlvr.errors import ConfigError
from rlvr.seeding import derive_seed

PAD, BOS, EOS = "<pad>", "<boe>", "<eoe>"


def build_tokenizer(vocabulary: Sequence[str]) -> PreTrainedTokenizerFast:
    """One token per word, ids in the order of `vocabulary`, which holds `<pad>`, `<boe>` and `<eoe>`.

    `"<boe> 3 4 + ="` has five tokens; encoding adds none, decoding joins words with single spaces and keeps the special
    ones unless told otherwise, so text and ids are a round trip.
    """
    missing = [word for word in (PAD, BOS, EOS) if word not in vocabulary]
    if missing or len(set(vocabulary)) != len(vocabulary):
        raise ValueError(f"a vocabulary needs {PAD}, {BOS}, {EOS} and no word twice: {list(vocabulary)}")
    ids = {word: index for index, word in enumerate(vocabulary)}
    tokenizer = Tokenizer(WordLevel(ids))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, bos_token=BOS, eos_token=EOS, clean_up_tokenization_spaces=False
    )


def build_model(settings: ScratchModel, tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """Random weights in float32 on the CPU, a function of (settings, vocabulary, seed).

    Leaves the global random state as it was. ConfigError if the heads do not fit the width.
    """
    check_heads(settings)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden_size,
        intermediate_size=settings.intermediate_size,
        num_hidden_layers=settings.num_layers,
        num_attention_heads=settings.num_heads,
        num_key_value_heads=settings.num_heads,
        max_position_embeddings=settings.max_context_tokens,
        initializer_range=settings.init_std,
        rope_parameters={"rope_type": "default", "rope_theta": settings.rope_theta},
        tie_word_embeddings=False,
        pad_token_id=_id(tokenizer, PAD),
        bos_token_id=_id(tokenizer, BOS),
        eos_token_id=_id(tokenizer, EOS),
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(derive_seed(seed, "model"))  # torch.manual_seed would reseed GPUs too
        return LlamaForCausalLM(config)


def _id(tokenizer: PreTrainedTokenizerFast, word: str) -> int:
    return tokenizer.get_vocab()[word]


def check_heads(settings: ScratchModel) -> None:
    """Rotary embeddings turn pairs of dimensions, so each head has an even number of them."""
    width, heads = settings.hidden_size, settings.num_heads
    if width % (2 * heads):
        raise ConfigError(
            f"model.num_heads={heads} does not divide model.hidden_size={width} into heads of an even size: "
            f"set hidden_size to a multiple of {2 * heads}."
        )
