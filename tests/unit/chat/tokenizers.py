"""Small tokenizers for the tests: bytes with chat markers, and words."""

import re
from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteFallback, Fuse, Strip
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.decoders import Replace as ReplaceDecoder
from tokenizers.decoders import Sequence as SequenceDecoder
from tokenizers.models import BPE
from tokenizers.normalizers import Prepend, Replace
from tokenizers.normalizers import Sequence as SequenceNormalizer
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from rlvr.chat.rendering import Chat
from rlvr.types import Message, ToolSchema

START, END, TEXT_END, BOS = "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|bos|>"

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


SEARCH: ToolSchema = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Finds texts.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}


def user(content: str) -> Message:
    return Message(role="user", content=content)


def answer(content: str = "found", number: int = 0) -> Message:
    """The answer to call `number` of `search`."""
    return Message(role="tool", content=content, name="search", call_id=f"call_{number}")


def ended(chat: Chat, text: str, end: str = END) -> tuple[int, ...]:
    """The ids of a completion."""
    return (*encode(chat._tokenizer, text), chat._tokenizer.convert_tokens_to_ids(end))


def byte_tokenizer(
    *, template: str | None = CHATML, eos: str = END, bos: str = BOS, adds_bos: bool = False
) -> PreTrainedTokenizerFast:
    """One token per byte, plus the markers; `adds_bos` puts `<|bos|>` before every text, as Llama's does."""
    alphabet = sorted(ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in (START, END, TEXT_END, BOS)])
    if adds_bos:
        added = (BOS, tokenizer.token_to_id(BOS))
        tokenizer.post_processor = TemplateProcessing(single=f"{BOS} $A", special_tokens=[added])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos, bos_token=bos, pad_token=TEXT_END)
    fast.chat_template = template
    return fast


def fallback_tokenizer(*, strips: bool = True, words: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """As Llama 2's (`strips`: a first space is taken away) or Gemma's: pieces with `▁`, and bytes for the rest."""
    signs = ["▁", *"abcdehlot.é", *words]
    vocabulary = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *signs]
    model = BPE(
        vocab={piece: number for number, piece in enumerate(vocabulary)},
        merges=[],
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = SequenceNormalizer([Prepend("▁"), Replace(" ", "▁")]) if strips else Replace(" ", "▁")
    steps = [ReplaceDecoder("▁", " "), ByteFallback(), Fuse(), *([Strip(" ", 1, 0)] if strips else [])]
    tokenizer.decoder = SequenceDecoder(steps)
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in ("<s>", "</s>", "<unk>")])
    bos = ("<s>", tokenizer.token_to_id("<s>"))
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[bos])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="</s>"
    )


_SPECIAL = re.compile(
    r"<\|?[a-zA-Z_▁]+\|>|<\|[a-z_]+>|<｜[^<>]+?｜>|</s>|<s>|<end_of_utterance>|<(?:start|end)_of_turn>|\[gMASK\]|<sop>"
    r"|\[/?[A-Z_]+\]"
)
"""What chat templates mark turns with; tokenizers have a special token for each."""


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[int, ...]:
    """The ids of a text and no others."""
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def template_tokenizer(template: str, merges: Sequence[tuple[str, str]] = ()) -> PreTrainedTokenizerFast:
    """Byte-level BPE with the special tokens of a chat template, as the tokenizer that it is made for has them."""
    symbols = [*sorted(ByteLevel.alphabet()), *(left + right for left, right in merges)]
    tokenizer = Tokenizer(BPE(vocab={symbol: index for index, symbol in enumerate(symbols)}, merges=list(merges)))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    words = [BOS, TEXT_END, *sorted(set(_SPECIAL.findall(template)))]
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in words])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=TEXT_END, bos_token=BOS, pad_token=TEXT_END)
    fast.chat_template = template
    return fast
