"""Text to token ids and back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from rlvr.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MAX_REMEMBERED = 256


class Coder:
    """Encodes and decodes with the tokenizer.

    Decoded texts are cached: verifier, metric and tool-call reader ask for the same ones.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._remembered = lru_cache(maxsize=_MAX_REMEMBERED)(self._decode)

    def encode(self, text: str) -> tuple[int, ...]:
        """The ids of the text, without added special tokens. UserError if the tokenizer has no ids for it."""
        try:
            return tuple(self._tokenizer.encode(text, add_special_tokens=False, verbose=False))
        except Exception as error:  # tokenizers raises bare Exceptions; a word-level one does so for unknown words
            name = self._tokenizer.name_or_path
            raise UserError(f"the tokenizer {name!r} cannot encode {text[:200]!r}: use a model made for it.") from error

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids, special tokens included."""
        return self._remembered(tuple(ids))

    def _decode(self, ids: tuple[int, ...]) -> Any:
        return self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
