"""A tiny Llama that writes tool calls by chance, so that whole episodes run with the real engine and chat.

It is a table of bigrams in the weights of a transformers model: the embedding of a token is a unit vector, the head
reads off what follows it, and one random attention layer makes every logit depend a little on everything before it.
It calls tools that exist and one that does not, with good and bad arguments, writes broken calls, answers, and words
letter by letter, whose text encodes to other ids.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from rlvr.chat.rendering import Chat
from rlvr.models.scratch import build_bpe_tokenizer
from tests.unit.chat.tokenizers import END, START

OPEN, CLOSE = "<tool_call>", "</tool_call>"
CALLS = {
    "search": '{"name": "search", "arguments": {"query": "',
    "read": '{"name": "read", "arguments": {"doc_id": "',
    "number": '{"name": "search", "arguments": {"query": 3, "top_n": "',
    "nothing": '{"name": "nothing", "arguments": {"query": "',
    "complete": '{"name": "complete", "arguments": {"answer": "',
}
SHARES = {"search": 0.3, "read": 0.3, "number": 0.1, "nothing": 0.1, "complete": 0.1}
WORDS = ("alpha", "beta", "gamma", "delta")
QUOTE, BRACE = '"}}', '"}'
MARKERS = (START, END, OPEN, CLOSE, *CALLS.values(), *WORDS, QUOTE, BRACE)
TEMPLATE = (  # names are enough: schemas letter by letter would fill the context
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t.function.name }} {% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
    '<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}{{ "}" }}</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTEXT_TOKENS = 1024


def walker_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, chat markers, and the pieces of calls as tokens of their own."""
    tokenizer = build_bpe_tokenizer([], 256 + 2 + len(MARKERS), MARKERS)
    tokenizer.eos_token = END
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def walker_chat() -> Chat:
    """Hermes: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""
    return Chat(walker_tokenizer(), tool_format="hermes")


def walker_model(tokenizer: PreTrainedTokenizerFast, *, noise: float = 0.05) -> LlamaForCausalLM:
    """The table as a model."""
    size = 8 * math.ceil(len(tokenizer) / 8)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=size,
            hidden_size=size,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=CONTEXT_TOKENS,
            eos_token_id=tokenizer.convert_tokens_to_ids(END),
            tie_word_embeddings=False,
        )
    )
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(size))
        model.lm_head.weight.copy_(_table(tokenizer, size).T / math.sqrt(size))  # the norm multiplies by sqrt(size)
        layer = model.model.layers[0]
        for weight in (layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight):
            weight.copy_(torch.randn_like(weight) * noise / math.sqrt(size))
    return model.eval()


def _table(tokenizer: PreTrainedTokenizerFast, size: int) -> torch.Tensor:
    """Logits `[token, next token]`: log of the shares below, -12 elsewhere."""
    words = dict.fromkeys(WORDS, 0.2)
    after: dict[str, Mapping[str, float]] = {
        "\u010a": {OPEN: 0.8, "beta": 0.1, "b": 0.1},  # a line end: the last token of the header of a turn
        OPEN: {CALLS[name]: share for name, share in SHARES.items()} | {"alpha": 0.1},
        QUOTE: {CLOSE: 1.0},
        BRACE: {CLOSE: 0.8, END: 0.2},
        CLOSE: {END: 0.7, OPEN: 0.2, "alpha": 0.1},
    }
    after |= {call: words | {"b": 0.2} for call in CALLS.values()}
    after |= {word: {QUOTE: 0.8, BRACE: 0.05, END: 0.05, "gamma": 0.1} for word in (*WORDS, "a")}
    after |= {"b": {"e": 1.0}, "e": {"t": 1.0}, "t": {"a": 1.0}}  # "beta" is one token, if it is encoded
    table = torch.full((size, size), -12.0)
    table[:, tokenizer.convert_tokens_to_ids(END)] = -1.0  # any other token ends the turn
    for token, shares in after.items():
        row = tokenizer.convert_tokens_to_ids(token)
        table[row] = -12.0
        for following, share in shares.items():
            table[row, tokenizer.convert_tokens_to_ids(following)] = math.log(share)
    return table
