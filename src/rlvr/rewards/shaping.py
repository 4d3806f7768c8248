"""Parts that cost something: length and repetition. Values are in [-1, 0]."""

from __future__ import annotations

from dataclasses import dataclass

from rlvr.errors import ConfigError
from rlvr.rewards.base import Grade
from rlvr.types import Attempt


@dataclass(frozen=True, kw_only=True)
class LengthPart:
    """0 up to `free_tokens`, then linearly down to -1 at `max_tokens` and beyond (the soft overlong punishment of DAPO,
    arXiv:2503.14476, eq. 13). ConfigError unless 0 <= free_tokens < max_tokens.
    """

    free_tokens: int
    max_tokens: int
    immediate = True

    def __post_init__(self) -> None:
        if not 0 <= self.free_tokens < self.max_tokens:
            raise ConfigError(
                f"free_tokens={self.free_tokens} leaves no room below max_tokens={self.max_tokens}: make it smaller."
            )

    async def grade(self, attempt: Attempt) -> Grade:
        """Tokens are counted as they were sampled, the stop token included."""
        over = (attempt.num_tokens - self.free_tokens) / (self.max_tokens - self.free_tokens)
        return Grade(value=0.0 - min(max(over, 0.0), 1.0))


@dataclass(frozen=True, kw_only=True)
class RepetitionPart:
    """Minus the share of word n-grams that occurred before in the text; 0 for fewer than `ngram_size` words.

    `a b a b a` has the 2-grams ab ba ab ba: two of four occurred before, -0.5. ConfigError unless ngram_size >= 1.
    """

    ngram_size: int
    immediate = True

    def __post_init__(self) -> None:
        if self.ngram_size < 1:
            raise ConfigError(f"ngram_size={self.ngram_size} is not a number of words: give 1 or more.")

    async def grade(self, attempt: Attempt) -> Grade:
        """Words are what whitespace separates."""
        words = attempt.text.split()
        num_ngrams = len(words) - self.ngram_size + 1
        if num_ngrams <= 0:
            return Grade(value=0.0)
        shifted = [words[offset : offset + num_ngrams] for offset in range(self.ngram_size)]
        return Grade(value=len(set(zip(*shifted, strict=True))) / num_ngrams - 1.0)
