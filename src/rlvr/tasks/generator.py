"""A task defined by your own Python: a function that yields examples.

    def sums(size: int = 100):
        for a in range(size):
            yield f"What is {a} + {a}?", 2 * a                                        # question, answer
            yield {"question": "...", "answer": "...", "demonstration": "...", "metadata": {...}}

Every call with the same settings must yield the same examples. With `task.vocabulary`, the words of a tokenizer, texts
may also be arrays of token ids with DLPack (NumPy, PyTorch, JAX, on the CPU): id 3 becomes word 3, words are joined by
spaces, and a word-level tokenizer of the vocabulary restores the same ids.
"""

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from itertools import count, islice
from typing import Any

from pydantic import BaseModel, ValidationError

from rlvr import imports
from rlvr.data.problems import Problem, fingerprint
from rlvr.data.rows import DataError, FilledText, Row, with_kind
from rlvr.data.sources import ReplaySource
from rlvr.envs.tools import Tool, make_tool
from rlvr.errors import ConfigError, UserError, suggestion
from rlvr.printable import ascii_text
from rlvr.registry import register
from rlvr.run_view import RunView
from rlvr.settings import ImportPath, PositiveInt, Text, setting
from rlvr.tasks.base import TaskContext
from rlvr.tasks.columns import answers
from rlvr.tasks.loading import Data
from rlvr.tasks.settings import HeldOutShare, MetricName, MetricSettings
from rlvr.tasks.tool_play import ToolEnvironments
from rlvr.types import Example

Scalar = bool | int | float | str
SPECIAL = ("<pad>", "<boe>", "<eoe>")
TOOLS = "has_tools  # a task with tools"
MAX_HELD_OUT = 100_000
"""Most examples of `eval_examples`, which are read at the start."""


class ExamplesTask(MetricSettings):
    """Base class of your own tasks: `examples` yields the data.

    Override `examples`, and `tools` for a model with tools: typed functions with docstrings. Their parameter `state`
    gets the episode's result of `state`.
    """

    metric: MetricName = "text"
    eval_share: HeldOutShare = setting(
        0.1,
        "share of the examples, chosen by hash, that is never trained on",
        only_if="splits_by_hash  # a task without held-out examples of its own",
    )
    max_turns: PositiveInt = setting(4, "maximum number of completions per episode, answer included", only_if=TOOLS)
    tool_timeout_s: float = setting(10.0, "time limit of a tool call in seconds", gt=0, only_if=TOOLS)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        cls.has_tools = cls.tools is not ExamplesTask.tools

    @abstractmethod
    def examples(self) -> Iterable[Any]:
        """`(question, answer)`, `(question, answer, demonstration)` or a dict with these and `metadata`; may be
        endless. Every call must yield the same.

        A demonstration is a whole completion, or, with tools, a list of completions: calls as `{"name": ...,
        "arguments": {...}}` and finally a text; replies are computed by running the tools.
        """

    def eval_examples(self) -> Iterable[Any] | None:
        """Held-out examples of their own, e.g. harder ones, as `examples` yields them; they must end.

        A question that is also among `examples` is not trained on. None: a share of `examples`, see `eval_share`.
        """
        return None

    @property
    def splits_by_hash(self) -> bool:
        """Whether a share of `examples` is held out."""
        return type(self).eval_examples is ExamplesTask.eval_examples

    def tools(self) -> Sequence[Callable[..., Any]]:
        """The tools of the model."""
        return ()

    def state(self, example: Example) -> object:
        """A fresh state of an episode, for tools and rewards; the example is the episode's own copy."""
        return dict(example.metadata)

    @property
    def words(self) -> tuple[str, ...] | None:
        """The words of the ids in arrays, in order; None: `examples` yields text."""
        return None

    @property
    def made_of_words(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.words is not None

    @property
    def num_turns(self) -> int:
        return self.max_turns if self.has_tools else 1

    @property
    def origin(self) -> str:
        return self.name

    def toolbox(self) -> list[Tool]:
        """The tools. ConfigError for a function that cannot be one."""
        try:
            return [make_tool(function, timeout_s=self.tool_timeout_s) for function in self.tools()]
        except (UserError, TypeError) as error:  # or `tools` returns no list
            what = "" if isinstance(error, UserError) else "tools: "
            raise ConfigError(f"task={self.name}: {what}{error}") from error

    def check_run(self, run: RunView) -> None:
        super().check_run(run)
        self.toolbox()

    def environments(self, context: TaskContext) -> ToolEnvironments | None:
        if not self.has_tools:
            return None

        def state(example: Example) -> object:
            try:
                return self.state(deepcopy(example))
            except Exception as error:  # the user's code
                said = imports.described(error, own_only=True)
                raise UserError(f"task={self.name}: state of example {example.id}: {said}") from error

        return ToolEnvironments(self.toolbox(), context.verifier, state=state, max_turns=self.max_turns)

    def load(self, context: TaskContext) -> Data:
        """Reads examples on demand. DataError if there are none, or a second call yields others."""
        return _data_of(self, (self.examples, self.eval_examples), f"task={self.name}", context.seed)


Calls = tuple[Callable[[], Iterable[Any]], Callable[[], Iterable[Any] | None]]
"""What yields the examples, and the held-out ones."""


def _data_of(task: ExamplesTask, calls: Calls, place: str, seed: int) -> Data:
    words = task.words
    if words is not None and (
        not set(SPECIAL) <= set(words) or len(set(words)) < len(words) or any(word.split() != [word] for word in words)
    ):
        raise ConfigError(f"task.vocabulary: needs {', '.join(SPECIAL)}, and each word once, without spaces in it.")
    read = _repeatable(partial(_problems_of, task, calls[0], place), place)
    held_out = None if task.splits_by_hash else _held_out(task, calls[1], f"{place}, held out")
    split = {"eval_share": task.eval_share, "seed": seed, "max_train": task.max_train_examples}
    source = ReplaySource(read, held_out, **split)
    if not source.held_out(1):
        raise ConfigError(f"task.eval_share={task.eval_share} leaves no held-out example of {task.origin}: raise it.")
    source.train(0)
    note = f"examples from {task.origin}, {task.eval_share:.0%} of them, chosen by hash, held out"
    if held_out is not None:
        note = f"examples from {task.origin}; {len(held_out):,} held-out ones of their own, never trained on"
    return Data(source=source, notes=(note,), vocabulary=words)


def _repeatable(read: Callable[[], Iterator[Problem]], place: str) -> Callable[[], Iterator[Problem]]:
    """`read` itself. DataError if it yields no example, or another one first when it is called again."""
    first, again = next(read(), None), next(read(), None)
    if first is None:
        raise DataError(f"{place}: yields no example.")
    if again is None or (again.key, again.answer) != (first.key, first.answer):
        raise DataError(
            f"{place}: called again it begins with another example, so no run could be repeated or resumed; give "
            "its random numbers a fixed seed, and return a new iterator at each call."
        )
    return read


def _held_out(task: ExamplesTask, call: Callable[[], Iterable[Any] | None], place: str) -> list[Problem] | None:
    """All held-out examples of the task's own; None if it has none this time."""
    try:
        if call() is None:
            return None
    except Exception as error:  # the user's code
        raise DataError(f"{place}: {ascii_text(imports.described(error, own_only=True))}") from error
    read = _repeatable(partial(_problems_of, task, call, place), place)
    found = list(islice(read(), MAX_HELD_OUT + 1))
    if len(found) > MAX_HELD_OUT:
        raise DataError(f"{place}: yields more than {MAX_HELD_OUT:,} examples; let it end.")
    return found


def _problems_of(task: ExamplesTask, call: Callable[[], Iterable[Any] | None], place: str) -> Iterator[Problem]:
    items, tools = None, {tool.name: tool for tool in task.toolbox()} if task.has_tools else {}
    where = place
    for number in count(1):
        try:
            items = iter(() if (given := call()) is None else given) if items is None else items
            where = f"{place}, example {number}"
            item = next(items)
        except StopIteration:
            return
        except Exception as error:  # the user's code
            raise DataError(f"{where}: {ascii_text(imports.described(error, own_only=True))}") from error
        yield _problem_of(task, item, where, tools)


class _Call(BaseModel):
    name: str
    arguments: dict[str, Any] = {}


class _Item(BaseModel, extra="forbid"):
    question: FilledText
    answer: Any
    demonstration: Any = None
    metadata: dict[Any, Any] | None = None


def _problem_of(task: ExamplesTask, item: Any, place: str, tools: Mapping[str, Tool]) -> Problem:
    if isinstance(item, Sequence) and not isinstance(item, str) and len(item) in (2, 3):
        item = dict(zip(_Item.model_fields, item, strict=False))
    if not isinstance(item, Mapping):
        raise DataError(
            f"{place}: must be (question, answer), (question, answer, demonstration) or a dict with these, but is "
            f"{with_kind(item)}."
        )
    row = Row(place, {name: _in_words(task, value, f"{place}: field {name!r}") for name, value in item.items()})
    given: _Item = row.read(_Item)
    golds, _ = answers(row, "answer", task.metric)
    if not golds:
        raise row.wrong("answer", given.answer, "must be an answer")
    demonstration, turns = given.demonstration, ()
    if isinstance(demonstration, list | tuple):
        demonstration, turns = None, _turns(row, demonstration, tools)
    elif demonstration is not None:
        demonstration = row.read(FilledText, "demonstration")
    if task.words is not None:
        golds = tuple(map(_without_end, golds))
        demonstration = None if demonstration is None else _without_end(demonstration)
        unknown = {*" ".join((given.question, *golds, demonstration or "")).split()} - {*task.words}
        if unknown:
            raise DataError(f"{place}: the word {ascii_text(min(unknown)[:60])!r} is not in task.vocabulary.")
    key = fingerprint(given.question)
    return Problem(
        id=f"generator/{key.hex()}",
        key=key,
        question=given.question,
        answer=golds[0],
        demonstration=demonstration,
        turns=turns,
        metadata={**(given.metadata or {}), **({"aliases": golds[1:]} if golds[1:] else {})},
        row=given.metadata or {},
    )


def _turns(row: Row, demonstration: Sequence[Any], tools: Mapping[str, Tool]) -> tuple[Any, ...]:
    """The completions of a demonstration: valid tool calls, then a text."""
    try:
        calls = [_Call.model_validate(turn) for turn in demonstration[:-1]]
    except ValidationError:
        calls = None
    if not tools or calls is None or not demonstration or not isinstance(demonstration[-1], str):
        raise row.wrong(
            "demonstration", demonstration, "must be calls {'name': ..., 'arguments': {...}} of tools, then a text"
        )
    for call in calls:
        try:
            if call.name not in tools:
                raise ValueError(f"there is no such tool; {suggestion(call.name, [*tools])}")
            tools[call.name].checked(call.arguments)
        except ValueError as error:
            raise DataError(f"{row.place}: the demonstration calls {call.name!r} in a wrong way: {error}") from None
    return tuple(demonstration)


def _in_words(task: ExamplesTask, value: Any, what: str) -> Any:
    """Convert an array of ids with at most one dimension, read through DLPack, to words; other values are unchanged."""
    if not hasattr(value, "__dlpack__"):
        return value
    if task.words is None:
        raise DataError(f"{what} is an array of token ids: name their words in task.vocabulary.")
    import numpy as np

    try:
        ids = np.from_dlpack(value)
    except Exception as error:  # from any array library
        raise DataError(
            f"{what} cannot be read through DLPack ({type(error).__name__}): move it to the CPU."
        ) from error
    size = len(task.words)
    if ids.ndim > 1 or ids.dtype.kind not in "iu" or (ids < 0).any() or (ids >= size).any():
        raise DataError(
            f"{what} must be an array of whole numbers from 0 to {size - 1}, the places in task.vocabulary, in one "
            f"dimension, but is {ids.dtype}{list(ids.shape)}."
        )
    return " ".join(task.words[int(token)] for token in ids.reshape(-1))


def _without_end(text: str) -> str:
    """Remove the words that end a completion: they are sampled, but no part of an answer."""
    return re.sub(r"(\s*<(pad|eoe)>)*$", "", " ".join(text.split()))


@register("task", "generator")
class Generator(ExamplesTask):
    """Your own Python: a function that yields examples, or arrays of token ids."""

    source: ImportPath = setting(description="module:function; called with settings, it yields examples")
    settings: Mapping[str, Scalar | tuple[Scalar, ...] | None] = setting({}, "keyword arguments of the function")
    eval_settings: Mapping[str, Scalar | tuple[Scalar, ...] | None] = setting(
        {},
        "other keyword arguments for held-out examples, e.g. a larger size; empty: a share of the examples is held out",
    )
    vocabulary: tuple[Text, ...] | None = setting(
        None, "words of the ids in arrays, in order; null: the function yields text"
    )

    @property
    def words(self) -> tuple[str, ...] | None:
        return self.vocabulary

    @property
    def origin(self) -> str:
        return self.source

    @property
    def splits_by_hash(self) -> bool:
        return not self.eval_settings

    def examples(self) -> Iterable[Any]:
        return self._imported()(**self.settings)

    def load(self, context: TaskContext) -> Data:
        function = context.functions.get(self.source) or self._imported()
        calls = (partial(function, **self.settings), partial(function, **{**self.settings, **self.eval_settings}))
        return _data_of(self, calls, f"task.source={self.source}", context.seed)

    def check_found(self, key: str) -> None:
        self._imported()

    def _imported(self) -> Callable[..., Any]:
        return imports.imported(f"task.source={self.source}", self.source, "function", callable)
