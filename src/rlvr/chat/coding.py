"""Text to token ids and back, by the Rust tokenizer directly where transformers would not change the result."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from rlvr.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MAX_REMEMBERED = 256


class Coder:
    """Encodes and decodes with the tokenizer, without transformers' Python loop over ids.

    Decoded texts are cached: verifier, metric and tool-call parser decode the same ones.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._backend = _backend(tokenizer)
        self._remembered = lru_cache(maxsize=_MAX_REMEMBERED)(self._decode)

    def encode(self, text: str) -> tuple[int, ...]:
        """The text's ids, without added special tokens. UserError if the tokenizer cannot encode it."""
        try:
            if self._backend is None or self._backend.padding or self._backend.truncation:
                return tuple(self._tokenizer.encode(text, add_special_tokens=False))
            return tuple(self._backend.encode(text, add_special_tokens=False).ids)
        except Exception as error:  # tokenizers raises bare Exceptions, e.g. for unknown words of a word-level one
            name = self._tokenizer.name_or_path
            raise UserError(f"the tokenizer {name!r} cannot encode {text[:200]!r}: use a model made for it.") from error

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids, special tokens included."""
        return self._remembered(tuple(ids))

    def _decode(self, ids: tuple[int, ...]) -> str:
        if self._backend is not None:
            return self._backend.decode(ids, skip_special_tokens=False)
        text = self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text


def _backend(tokenizer: PreTrainedTokenizerBase) -> Any:
    """The Rust tokenizer, if transformers would not change its result."""
    from transformers import PreTrainedTokenizerFast

    kind = type(tokenizer)
    own = ("encode", "_encode_plus", "decode", "_decode")
    if not issubclass(kind, PreTrainedTokenizerFast) or tokenizer.split_special_tokens:
        return None
    if any(getattr(kind, name) is not getattr(PreTrainedTokenizerFast, name) for name in own):
        return None
    tokenizer.encode("", add_special_tokens=False)  # resets padding and truncation from the tokenizer's file
    return tokenizer.backend_tokenizer
