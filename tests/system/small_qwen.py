"""A small checkpoint of Qwen2's architecture with a BPE tokenizer and a chat template, and questions to train it on."""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from tests.unit.chat.tokenizers import CHATML

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXTS = [f"What is {a} plus {b}? The answer is {a + b}." for a in range(30) for b in range(30)]


def small_model(tokenizer: PreTrainedTokenizerFast, **more: Any) -> Qwen2ForCausalLM:
    """Two layers of width 32 with random weights, always the same ones."""
    width = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = Qwen2Config(vocab_size=len(tokenizer), tie_word_embeddings=True, bos_token_id=None, **width, **more)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Qwen2ForCausalLM(config)


def save_small_qwen(folder: Path, max_position_embeddings: int = 256) -> Path:
    """60,000 random weights, tied embeddings, two end tokens: `<|im_end|>` and, in the generation config, both."""
    bpe = Tokenizer(BPE())
    bpe.pre_tokenizer = ByteLevel(add_prefix_space=False)
    bpe.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=sorted(ByteLevel.alphabet()), show_progress=False
    )
    bpe.train_from_iterator(TEXTS, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = CHATML
    more = {"intermediate_size": 64, "initializer_range": 0.2}
    model = small_model(
        tokenizer, eos_token_id=0, pad_token_id=0, max_position_embeddings=max_position_embeddings, **more
    )
    assert model.generation_config is not None
    model.generation_config.eos_token_id = [2, 0]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_questions(file: Path) -> Path:
    """Sums, as JSON lines."""
    rows = [{"question": f"What is {a} plus {b}?", "answer": str(a + b)} for a in range(1, 12) for b in range(1, 12)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file
