"""Text answers, compared after SQuAD's normalization: lower case, no punctuation, no a/an/the.

The official scorers of MuSiQue and HotpotQA are in `rlvr.rewards.official`. Some rules prevent exploits by the policy:

- a number without letters only equals the same number, in any spelling (`rlvr.rewards.numbers`): SQuAD deletes minus
  signs and points, which turns -1 into 1 and 3.5 into 35;
- a comma between items without a space separates them as one with a space, in `A,B` and `[8.124,12.852]`; one between
  groups of three digits does not, but in brackets;
- other texts keep these marks next to a digit, and `#` and `+` after a letter: C# is not C, 1-2 not 12;
- an answer that normalizes to nothing (`the`, `?!`) is only right if it is the gold itself, not because a gold also
  normalizes to nothing;
- typographic quotes are quotes, an accent is one in either encoding, and characters that are not seen are none;
- the answers yes and no share no words with other answers, as in HotpotQA: a sentence with a `yes` scores 0.
"""

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from rlvr.errors import UserError
from rlvr.registry import register
from rlvr.rewards.base import INVALID, Grade, Part
from rlvr.rewards.metrics import NO_ANSWER, Metric
from rlvr.rewards.numbers import Number, as_written, parse_answer, same_answer
from rlvr.rewards.official.text import NO_PUNCTUATION, normalize_answer, overlap
from rlvr.settings import setting
from rlvr.types import Attempt, Example, GradedAnswer

CLOSED = (["yes"], ["no"], ["noanswer"])
_MARKS = re.compile(r"(?<![A-Za-z])[-.](?=\.?[0-9])|(?<=[0-9])[/:](?=[0-9])|(?<=[\w+])[#+]")
_SEPARATOR = re.compile(r"[,;](?!(?<=[0-9],)[0-9]{3}(?![0-9]))")  # not the comma of 12,345
_SEPARATOR_IN_BRACKETS = re.compile(r"[,;]")
_BRACKETS = re.compile(r"\s*\\?[\[({].*[\])}]\s*")
_QUOTES = str.maketrans("\u2018\u2019\u201a\u201c\u201d\u201e\u00ab\u00bb", '\'\'\'"""""')
_PRIVATE = 0xE000  # private use area: normalization deletes no character there
_SHOWN = {_PRIVATE + ord(mark): mark for mark in "-./:#+"}


def golds_of(example: Example) -> tuple[str, ...]:
    """The answer and the strings in metadata `aliases`; UserError if they are no list of texts."""
    aliases = example.metadata.get("aliases", ())
    if not isinstance(aliases, list | tuple) or not all(isinstance(alias, str) for alias in aliases):
        raise UserError(f"aliases of example {example.id!r} are {aliases!r:.80}: give a list of texts in its metadata.")
    return (example.answer, *aliases)


@lru_cache(maxsize=2048)  # a group of completions has one gold
def normalize(text: str) -> str:
    """The number, or the normalized words, with articles if nothing else remains, or the text itself."""
    number = _number(text)
    if number is not None:
        return str(number)
    if not text.isascii():
        text = unicodedata.normalize("NFC", as_written(text)).translate(_QUOTES)
    if "," in text or ";" in text:
        items = (_SEPARATOR_IN_BRACKETS if _BRACKETS.fullmatch(text) else _SEPARATOR).split(text)
        if len(items) > 1 and all(listed := [_list_item(item.strip(" \\[](){}")) for item in items]):
            return " ".join(listed)
        text = " ".join(items)
    marked = _MARKS.sub(lambda mark: chr(_PRIVATE + ord(mark[0])), text)
    words = normalize_answer(marked) or " ".join(marked.lower().translate(NO_PUNCTUATION).split())  # option `(A)`
    return words.translate(_SHOWN) or text.strip().lower()


def is_match(text: str, golds: Sequence[str]) -> bool:
    """Whether the text matches a gold."""
    return any(_em(text, gold) for gold in golds)


@register("reward", "text")
class TextMatch(Part):
    """Exact match or F1 of the normalized words with the best of the golds; no answer is invalid, 0."""

    in_process = True
    reads_answer = True

    metric: Literal["em", "f1"] = setting("f1", "em: all words equal; f1: harmonic mean of precision and recall")

    def grade(self, attempt: Attempt) -> Grade:
        text = attempt.answer
        if text is None:
            return INVALID
        golds = golds_of(attempt.example)
        if self.metric == "em":
            return Grade(value=float(is_match(text, golds)))
        return Grade(value=max(_f1(text, gold) for gold in golds))


def _list_item(text: str) -> str:
    """A number or a single letter, which is no article in a list; empty for anything else."""
    number = _number(text)
    return str(number) if number else text.lower() if len(text) == 1 and text.isalpha() else ""


def _number(text: str) -> Number | None:
    """The number of a text without letters; `18 eggs` is text, as eggs are not dogs."""
    if any(character.isalpha() for character in text):
        return None
    found = parse_answer(text)
    return found if isinstance(found, Number) else None


def _em(text: str, gold: str) -> bool:
    number, gold_number = _number(text), _number(gold)
    if number is not None and gold_number is not None:
        return same_answer(number, gold_number)
    return normalize(text) == normalize(gold)


def _f1(text: str, gold: str) -> float:
    if _number(text) is not None and _number(gold) is not None:
        return float(_em(text, gold))
    words, gold_words = normalize(text).split(), normalize(gold).split()
    if words != gold_words and (words in CLOSED or gold_words in CLOSED):
        return 0.0
    return overlap(words, gold_words).f1


@register("metric", "text")
class TextMetric(Metric):
    """Exact match of the normalized text with the answer or one of metadata `aliases`. Votes: the normalized text."""

    async def grade(self, attempt: Attempt) -> GradedAnswer:
        text = attempt.answer
        if text is None:
            return NO_ANSWER
        return GradedAnswer(answer=normalize(text), correct=is_match(text, golds_of(attempt.example)))


@register("metric", "exact")
class ExactMetric(Metric):
    """Right if the answer equals the gold, except for surrounding whitespace."""

    async def grade(self, attempt: Attempt) -> GradedAnswer:
        text = attempt.answer
        return NO_ANSWER if text is None else GradedAnswer(answer=text, correct=text == attempt.example.answer.strip())
