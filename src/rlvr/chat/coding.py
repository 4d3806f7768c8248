"""Text to token ids and back, by the Rust tokenizer directly where transformers would not change the result."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from rlvr.chat.spelling import ByteStream, TextStream, WindowStream, spelling_of
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
        self._spelling = spelling_of(self._backend)
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

    def stream(self) -> TextStream:
        """The text of tokens that are to come; together it is `decode` of all."""
        return WindowStream(self.decode) if self._spelling is None else ByteStream(self._spelling)

    def spell(self, token: int, previous: int | None) -> bytes:
        """The bytes that a token adds to the text behind `previous`, or as the first one."""
        if self._spelling is not None:
            return self._spelling(token, previous)
        before = () if previous is None else (previous,)
        text, known = self.decode((*before, token)), self.decode(before)
        return (text[len(known) :] if text.startswith(known) else self.decode((token,))).encode("utf-8", "replace")

    def _decode(self, ids: tuple[int, ...]) -> str:
        if self._spelling is not None and self._spelling.splits_text:
            previous = (None, *ids[:-1])
            return b"".join(map(self._spelling, ids, previous)).decode("utf-8", "replace")
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
