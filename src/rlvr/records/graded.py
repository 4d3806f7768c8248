"""Records of graded episodes, one JSON line each: written by `eval`, `predict` and `benchmark`, read by `analyze` and
`report`. docs/evaluation.md describes every field.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated

from pydantic import BeforeValidator, Field, TypeAdapter

from rlvr.errors import UserError
from rlvr.printable import printable
from rlvr.records.files import write_atomically, writing
from rlvr.records.jsonl import from_line, to_line
from rlvr.records.rollouts import TextTurn
from rlvr.types import StopReason, TraceStep

Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""JSON has no NaN and no infinity: both are written as null, and null is read as NaN."""

Count = Annotated[int, Field(ge=0, lt=2**53)]
"""A count: a bounded non-negative integer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Origin of a record: `Origin(model="runs/latest/final", task="rpn", split="test")`.

    `settings` is a short hash of everything that affects prompts, samples and grades, including the weights: records
    with equal settings, example and sample are the same measurement. `conditions` is a hash of what must be equal to
    compare two models. `retriever` is None without search.
    """

    model: str = ""
    task: str = ""
    split: str = "test"
    retriever: str | None = None
    settings: str = ""
    conditions: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class GradedTurn(TextTurn):
    """A turn of an evaluation; `token_ids` and `logprobs` are empty if an endpoint does not send them."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[Number, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationRecord(Origin):
    """One graded episode. `sample_index` 0 is the greedy one, 1..k are sampled. `failure`: why it could not be graded.

    `EvaluationRecord(model="runs/latest/final", task="rpn", split="test", retriever=None, settings="3f2a...",
    example_id="3 4 +", sample_index=0, prompt="<boe> 3 4 + =", turns=(GradedTurn(completion="7 <eoe>"),),
    expected="7", answer="7", correct=True, reward=1.0, stop_reason=StopReason.STOP, num_prompt_tokens=5,
    num_completion_tokens=2, tags=("1_operators",), parts={"correct": 1.0}, diagnostics={})`
    """

    example_id: str
    sample_index: Count
    prompt: str
    turns: tuple[GradedTurn, ...]
    expected: str
    answer: str | None
    correct: bool
    reward: Number  # NaN if the verifier failed; null in the file
    stop_reason: StopReason
    num_prompt_tokens: Count = 0  # of all turns' prompts, earlier turns counted once
    num_completion_tokens: Count
    tags: tuple[str, ...]
    parts: Mapping[str, Number]
    diagnostics: Mapping[str, Number | str]
    failure: str | None = None
    trace: tuple[TraceStep, ...] = ()
    time_s: float = 0.0  # from the first prompt to the grade, with concurrent episodes; the only time-dependent field

    @property
    def completions(self) -> tuple[str, ...]:
        return tuple(turn.completion for turn in self.turns)

    @property
    def key(self) -> tuple[str, str, int]:
        return self.settings, self.example_id, self.sample_index


SCHEMA = TypeAdapter(EvaluationRecord)


def read_records(
    path: Path, *, name: str | None = None, tokens: bool = True
) -> tuple[list[EvaluationRecord], list[str]]:
    """The records of a file, and a sentence for each invalid line, which is skipped.

    The sentences call the file `name`, by default its path. Of records of the same measurement the last one counts; a
    model under two names counts as two. `tokens=False` drops `token_ids` and `logprobs`. UserError: the file is missing
    or unreadable.
    """
    name = str(path) if name is None else name
    records: dict[tuple[object, ...], EvaluationRecord] = {}
    problems: list[str] = []
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                try:
                    record = from_line(SCHEMA, line)
                except ValueError as error:
                    text = " ".join(str(error).split())[:300]
                    what = printable(text, keep="")
                    if line.strip():
                        problems.append(f"{name}, line {number}, is damaged ({what}): it is left out")
                    continue
                if not tokens:
                    turns = tuple(replace(turn, token_ids=(), logprobs=()) for turn in record.turns)
                    record = replace(record, turns=turns)
                records[record.model, record.task, record.split, record.retriever, *record.key] = record
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error.strerror or error}.") from error
    return list(records.values()), problems


def check_writable(path: str) -> None:
    target = Path(path)
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists() and not target.is_file():
            raise UserError(f"Cannot write {path}: it is no ordinary file; choose another --output.")
        with TemporaryFile(dir=target.parent):
            pass


def write_jsonl(path: str, records: Iterable[EvaluationRecord]) -> None:
    """Write a file of JSON lines atomically. UserError: no space, or not writable."""
    target = Path(path).resolve()  # replace the target of a link, not the link
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, b"".join(map(to_line, records)))
