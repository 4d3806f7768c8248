"""Your own Python as a task: a function that yields examples.

    def sums(size: int = 100):
        for a in range(size):
            yield f"What is {a} + {a}?", 2 * a                                        # question, answer
            yield {"question": "...", "answer": "...", "demonstration": "...", "metadata": {...}}

Every call with the same settings must yield the same. With `task.vocabulary`, the words of a tokenizer, texts may also
be arrays of token ids of anything that speaks DLPack (NumPy, PyTorch, JAX, on the CPU): id 3 becomes word 3, words are
joined by spaces, and a word-level tokenizer made of the vocabulary gives back the same ids.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlvr.errors import ConfigError
from rlvr.rewards.custom import import_function
from rlvr.tasks.columns import answers
from rlvr.tasks.dataset import Data
from rlvr.tasks.problems import Problem, fingerprint
from rlvr.tasks.rows import DataError, Row, ascii_text, shown
from rlvr.tasks.sources import ReplaySource

if TYPE_CHECKING:
    from rlvr.config.schema import GeneratorTask

Functions = Mapping[str, Callable[..., Any]]

FIELDS = ("question", "answer", "demonstration", "metadata")
SPECIAL = ("<pad>", "<boe>", "<eoe>")
ENDS = ("<pad>", "<eoe>")
MAX_IDS = 1_000_000


def load_generator(settings: GeneratorTask, seed: int, functions: Functions | None = None) -> Data:
    """Examples are read as they are needed. `functions` are those that no import could find, by import path.

    Raises:
        ConfigError: there is no such function, it does not take the settings, or the vocabulary cannot be one.
        DataError: it yields nothing, something else than examples, or other examples when it is called again.
    """
    _check_vocabulary(settings.vocabulary)
    function = (functions or {}).get(settings.source) or import_function(settings.source, "task.source")
    examples = _Examples(
        function=function, settings=settings.settings, place=f"task.source={settings.source}", metric=settings.metric,
        vocabulary=settings.vocabulary,
    )  # fmt: skip
    first, again = next(iter(examples), None), next(iter(examples), None)
    if first is None:
        raise DataError(f"{examples.place}: yields no example.")
    if again is None or (again.key, again.answer) != (first.key, first.answer):
        raise DataError(
            f"{examples.place}: called again it begins with another example, so no run could be repeated or resumed; "
            "give its random numbers a fixed seed, and return a new iterator at each call."
        )
    source = ReplaySource(
        lambda: iter(examples), eval_share=settings.eval_share, seed=seed, max_train=settings.max_train_examples
    )
    if not source.held_out(1):
        raise ConfigError(
            f"task.eval_share={settings.eval_share} leaves no held-out example of {settings.source}: raise it."
        )
    source.train(0)
    note = f"examples from {settings.source}, {settings.eval_share:.0%} of them, chosen by hash, held out"
    return Data(source=source, notes=(note,), vocabulary=settings.vocabulary)


@dataclass(frozen=True, kw_only=True)
class _Examples:
    """What a function yields, from the start at each `iter`."""

    function: Callable[..., Any]
    settings: Mapping[str, Any]
    place: str
    metric: str
    vocabulary: tuple[str, ...] | None

    def __iter__(self) -> Iterator[Problem]:
        items = self._call()
        number = 0
        while True:
            number += 1
            place = f"{self.place}, example {number}"
            try:
                item = next(items)
            except StopIteration:
                return
            except Exception as error:  # the user's code
                raise DataError(f"{place}: {type(error).__name__}: {ascii_text(str(error)[:300])}") from error
            yield self._problem(item, place)

    def _call(self) -> Iterator[Any]:
        try:
            inspect.signature(self.function).bind(**self.settings)
        except TypeError as error:
            raise ConfigError(
                f"task.settings={dict(self.settings)}: {self.place} does not take them ({error})."
            ) from None
        try:
            return iter(self.function(**self.settings))
        except Exception as error:  # the user's code
            raise DataError(f"{self.place}: {type(error).__name__}: {ascii_text(str(error)[:300])}") from error

    def _problem(self, item: object, place: str) -> Problem:
        row = Row(place, {name: self._text(value, place, name) for name, value in _fields(item, place).items()})
        question = row.text("question")
        golds = answers(row, "answer", self.metric)
        if not golds:
            raise row.wrong("answer", row.get("answer"), "an answer")
        demonstration = row.text("demonstration") if row.fields.get("demonstration") is not None else None
        if self.vocabulary is not None:
            golds = tuple(_without_end(gold) for gold in golds)
            demonstration = None if demonstration is None else _without_end(demonstration)
            self._check_words(row, question, *golds, demonstration or "")
        metadata = row.fields.get("metadata") or {}
        if not isinstance(metadata, Mapping):
            raise row.wrong("metadata", metadata, "a dict")
        given = metadata.get("aliases", [])
        if not isinstance(given, list | tuple) or not all(isinstance(alias, str) for alias in given):
            raise row.wrong("metadata.aliases", given, "a list of texts")
        key = fingerprint(question)
        aliases = {"aliases": golds[1:]} if golds[1:] else {}
        return Problem(
            id=f"generator/{key.hex()}",
            key=key,
            question=question,
            answer=golds[0],
            demonstration=demonstration,
            metadata={**metadata, **aliases},
        )

    def _text(self, value: Any, place: str, field: str) -> Any:
        """An array of ids as words; anything else as it is."""
        if not hasattr(value, "__dlpack__"):
            return value
        if self.vocabulary is None:
            raise DataError(f"{place}: field {field!r} is an array of token ids: name their words in task.vocabulary.")
        ids = token_ids(value, f"{place}: field {field!r}")
        for token in ids:
            if not 0 <= token < len(self.vocabulary):
                raise DataError(
                    f"{place}: field {field!r} has the id {token}, but task.vocabulary has the words 0 to "
                    f"{len(self.vocabulary) - 1}."
                )
        return " ".join(self.vocabulary[token] for token in ids)

    def _check_words(self, row: Row, *texts: str) -> None:
        for text in texts:
            for word in text.split():
                if word not in (self.vocabulary or ()):
                    raise DataError(f"{row.place}: the word {ascii_text(word[:60])!r} is not in task.vocabulary.")


def token_ids(array: Any, what: str) -> list[int]:
    """The ids in an array with one dimension (or none) of whole numbers, through DLPack."""
    import numpy as np

    try:
        values = np.from_dlpack(array)
    except Exception as error:  # of any array library
        raise DataError(
            f"{what} cannot be read through DLPack ({type(error).__name__}): move it to the CPU."
        ) from error
    if values.ndim > 1 or values.dtype.kind not in "iu":
        raise DataError(
            f"{what} must be an array of whole numbers in one dimension, but is {values.dtype}{list(values.shape)}."
        )
    if values.size > MAX_IDS:
        raise DataError(f"{what} has {values.size:,} ids, above {MAX_IDS:,}.")
    return [int(value) for value in values.reshape(-1)]


def _fields(item: object, place: str) -> Mapping[str, Any]:
    if isinstance(item, Mapping):
        unknown = [name for name in item if name not in FIELDS]
        if unknown:
            raise DataError(f"{place}: has a field {shown(unknown[0])}; the fields are {', '.join(FIELDS)}.")
        return {str(name): value for name, value in item.items()}
    if isinstance(item, Sequence) and not isinstance(item, str) and len(item) in (2, 3):
        return dict(zip(FIELDS, item, strict=False))
    raise DataError(
        f"{place}: must be (question, answer), (question, answer, demonstration) or a dict with these, but is "
        f"{shown(item)}."
    )


def _without_end(text: str) -> str:
    """Without the words that end a completion: they are sampled, and are no part of an answer."""
    words = text.split()
    while words and words[-1] in ENDS:
        words.pop()
    return " ".join(words)


def _check_vocabulary(vocabulary: tuple[str, ...] | None) -> None:
    if vocabulary is None:
        return
    missing = [word for word in SPECIAL if word not in vocabulary]
    if missing:
        raise ConfigError(f"task.vocabulary has no {' and no '.join(missing)}: add {', '.join(SPECIAL)}, each once.")
    if len(set(vocabulary)) != len(vocabulary):
        twice = next(word for word in vocabulary if vocabulary.count(word) > 1)
        raise ConfigError(f"task.vocabulary has {twice!r} twice: name each word once.")
    for word in vocabulary:
        if not word or word.split() != [word]:
            raise ConfigError(f"task.vocabulary: {word!r} is not one word: words have no spaces in them.")
