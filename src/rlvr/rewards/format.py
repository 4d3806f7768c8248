"""Parts that grade the form of a completion. Length and repetition penalties have values in [-1, 0]."""

from typing import Self

from pydantic import model_validator

from rlvr.registry import register
from rlvr.rewards.base import Grade, Part
from rlvr.settings import NonNegativeFloat, PositiveInt, setting, wrong
from rlvr.types import Attempt, StopReason


@register("reward", "format_exact")
class FormatExact(Part):
    """1 if the completion is one reasoning block and one solution block and nothing else; 0 if cut off."""

    grades = "form"
    in_process = True
    needs_markers = True

    def grade(self, attempt: Attempt) -> Grade:
        ended = attempt.stop_reason is StopReason.STOP
        return Grade(value=float(ended and attempt.format.is_exact(attempt.format.form_of(attempt))))


@register("reward", "format_approximate")
class FormatApproximate(Part):
    """A quarter for each of the four markers that occurs exactly once and in order.

    Range [-penalty, 1]; `</s><s></r><r>` earns only the first marker.
    """

    grades = "form"
    in_process = True
    needs_markers = True

    penalty: NonNegativeFloat = setting(1.0, "a quarter of it is subtracted for each missing marker")

    def grade(self, attempt: Attempt) -> Grade:
        text, num_paid, end = attempt.format.form_of(attempt), 0, -1
        for marker in attempt.format.required_markers().in_order:
            start = text.find(marker)
            if start > end and start == text.rfind(marker):
                num_paid, end = num_paid + 1, start
        return Grade(value=(num_paid - self.penalty * (4 - num_paid)) / 4)


@register("reward", "length")
class LengthPenalty(Part):
    """0 up to free_tokens, then linearly down to -1 at max_tokens.

    The soft overlong punishment of DAPO, arXiv:2503.14476, eq. 13, over the sampled tokens of all turns.
    """

    in_process = True
    is_penalty = True

    free_tokens: PositiveInt = setting(description="tokens that cost nothing")
    max_tokens: PositiveInt = setting(description="tokens that cost 1")

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        if self.max_tokens <= self.free_tokens:
            raise wrong("max_tokens", f"is not above free_tokens={self.free_tokens}; raise it")
        return self

    def grade(self, attempt: Attempt) -> Grade:
        over = (attempt.num_tokens - self.free_tokens) / (self.max_tokens - self.free_tokens)
        return Grade(value=0.0 - min(max(over, 0.0), 1.0))


@register("reward", "repetition")
class RepetitionPenalty(Part):
    """Minus the share of word n-grams that repeat an earlier one; 0 for fewer than ngram_size words.

    `a b a b a` has the 2-grams ab ba ab ba: two of four are repeated, -0.5. Words are separated by whitespace.
    """

    in_process = True
    is_penalty = True

    ngram_size: PositiveInt = setting(description="words per n-gram")

    def grade(self, attempt: Attempt) -> Grade:
        words = attempt.text.split()
        num_ngrams = len(words) - self.ngram_size + 1
        if num_ngrams <= 0:
            return Grade(value=0.0)
        shifted = [words[offset : offset + num_ngrams] for offset in range(self.ngram_size)]
        return Grade(value=len(set(zip(*shifted, strict=True))) / num_ngrams - 1.0)
