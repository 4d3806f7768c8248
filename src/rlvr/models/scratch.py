"""Models from scratch: a Llama-architecture model and a word-level or byte-level BPE tokenizer."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import ByteLevel, WhitespaceSplit
from tokenizers.trainers import BpeTrainer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from rlvr.errors import ConfigError
from rlvr.models.devices import move
from rlvr.models.policy import HubPolicy
from rlvr.models.settings import ModelContext, ScratchModel
from rlvr.seeding import derive_seed

PAD, BOS, EOS = "<pad>", "<boe>", "<eoe>"
BPE_EOS = "<eos>"
MIN_PAIR_COUNT = 2  # rarer pairs are not merged: their tokens would hardly be trained


def build_tokenizer(vocabulary: Sequence[str]) -> PreTrainedTokenizerFast:
    """One token per word, ids in the order of `vocabulary`, which contains `<pad>`, `<boe>` and `<eoe>`.

    `"<boe> 3 4 + ="` has five tokens. Encoding adds none; decoding joins words with single spaces and keeps special
    tokens by default, so that text and ids round-trip.
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


def build_bpe_tokenizer(texts: Iterable[str], vocabulary_size: int, markers: Sequence[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE trained on `texts`, deterministic: any text can be encoded and round-trips exactly.

    `<pad>` is id 0, `<eos>` id 1; the markers come last, one token each, and take no part in merges. Has at most
    `vocabulary_size` tokens, fewer if the texts have no more pairs. `decode(skip_special_tokens=True)` keeps the
    markers: they are part of an answer. ConfigError if the vocabulary cannot hold the 256 bytes, `<pad>`, `<eos>` and
    the markers.
    """
    smallest = 256 + 2 + len(markers)
    if vocabulary_size < smallest:
        raise ConfigError(f"model.vocabulary_size={vocabulary_size} is too small: {smallest} is the least.")
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=vocabulary_size - len(markers),
        min_frequency=MIN_PAIR_COUNT,
        special_tokens=[PAD, BPE_EOS],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    marker = re.compile("|".join(map(re.escape, markers)) or r"\Z")
    tokenizer.train_from_iterator((piece for text in texts for piece in marker.split(text)), trainer)
    tokenizer.add_tokens([AddedToken(marker, normalized=False) for marker in markers])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=BPE_EOS, clean_up_tokenization_spaces=False
    )


def new_policy(settings: ScratchModel, tokenizer: PreTrainedTokenizerFast, context: ModelContext) -> HubPolicy:
    """`build_model` on the device, with its tokenizer."""
    model = build_model(settings, tokenizer, context.seed).eval()
    move(model, context.device)
    return HubPolicy(model=model, tokenizer=tokenizer)


def build_model(settings: ScratchModel, tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """Random float32 weights on the CPU, a function of settings, vocabulary and seed; keeps the global random state."""
    ids: dict[str, Any] = {f"{role}_token_id": getattr(tokenizer, f"{role}_token_id") for role in ("pad", "bos", "eos")}
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden_size,
        intermediate_size=settings.intermediate_size,
        num_hidden_layers=settings.num_layers,
        num_attention_heads=settings.num_heads,
        num_key_value_heads=settings.num_heads,
        head_dim=settings.head_dim,
        max_position_embeddings=settings.max_context_tokens,
        initializer_range=settings.init_std,
        rope_parameters={"rope_type": "default", "rope_theta": settings.rope_theta},
        tie_word_embeddings=settings.ties,
        dtype="float32",
        **ids,
    )
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(derive_seed(seed, "model"))  # torch.manual_seed would also reseed GPUs
        model = LlamaForCausalLM(config)
        if settings.embedding_std is not None:
            torch.nn.init.normal_(model.model.embed_tokens.weight, std=settings.embedding_std)
        return model
