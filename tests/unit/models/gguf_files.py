"""GGUF files of a few thousand weights, as llama.cpp's converter would write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from rlvr.models.policy import HubPolicy
from rlvr.models.scratch import build_bpe_tokenizer
from tests.unit.core.tiny import tiny_model

TEXTS = ["What is 3 + 4? It is 7.", "Who has found it? A question of the day."] * 8
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def tiny_llama() -> HubPolicy:
    """Float32, with a byte-level BPE tokenizer."""
    tokenizer = build_bpe_tokenizer(TEXTS, 300, ())
    ids = {"bos_token_id": None, "pad_token_id": 0, "eos_token_id": 1}
    model = tiny_model(vocab_size=len(tokenizer), intermediate_size=64, max_position_embeddings=256, **ids)
    return HubPolicy(model=model, tokenizer=tokenizer)


def write_gguf(path: Path, kind: str = "F32", *, template: str | None = None, **values: Any) -> HubPolicy:
    """Write the tiny Llama with its matrices in `kind`; returns it. `values` replace those of the header (another
    architecture, a wrong count, `split.count`); arrays are further tensors."""
    policy = tiny_llama()
    model, config = policy.model, policy.model.config
    assert isinstance(model, LlamaForCausalLM)
    architecture = values.pop("architecture", "llama")
    writer = gguf.GGUFWriter(path, architecture)
    counts = {
        "block_count": config.num_hidden_layers,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "context_length": config.max_position_embeddings,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "rope.dimension_count": config.head_dim,
        "vocab_size": config.vocab_size,
    }
    for name, value in ({f"{architecture}.{name}": count for name, count in counts.items()} | values).items():
        if isinstance(value, np.ndarray):
            writer.add_tensor(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_uint32(name, value)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", config.rms_norm_eps)
    writer.add_float32(f"{architecture}.rope.freq_base", config.rope_parameters["rope_theta"])
    _add_tokenizer(writer, policy.tokenizer)
    if template is not None:
        writer.add_chat_template(template)
    quantized = gguf.GGMLQuantizationType[kind]
    for name, weight in model.state_dict().items():
        data = _as_llama_cpp(name, weight.numpy(), config)
        numbers = data if data.ndim == 1 else gguf.quants.quantize(data, quantized)
        plain = data.ndim == 1 or kind in ("F32", "F16")
        writer.add_tensor(_name(name), numbers, raw_dtype=None if plain else quantized)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return policy


def _name(name: str) -> str:
    stem = name.removesuffix(".weight")
    layer = stem.removeprefix("model.layers.")
    if layer == stem:
        return f"{NAMES[stem]}.weight"
    number, _, rest = layer.partition(".")
    return f"blk.{number}.{NAMES[rest]}.weight"


def _as_llama_cpp(name: str, weight: np.ndarray, config: Any) -> np.ndarray:
    """Queries and keys have the two halves of a head's rotary pairs side by side there."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    of = next((count for part, count in heads.items() if part in name), None)
    if of is None:
        return weight
    rows = weight.reshape(of, 2, weight.shape[0] // of // 2, *weight.shape[1:])
    return np.ascontiguousarray(rows.swapaxes(1, 2).reshape(weight.shape))


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: Any) -> None:
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<") and len(token) > 1 else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_eos_token_id(1)
    writer.add_pad_token_id(0)


def logits(policy: HubPolicy, text: str) -> torch.Tensor:
    ids = policy.tokenizer(text, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        return policy.model(ids).logits
