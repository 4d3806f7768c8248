"""Sets of multi-hop questions: the set syntax of settings, rows, and questions.

    train_sets: bdsaglam/musique,answerable,train[:256];my/folder,,train;more.jsonl.gz

Each set is a Hub id with its configuration and a split; a folder and a split (with or without an empty name between
them); one file; or `made`, see `made_rows`. Each may be sliced.
"""

import json
import random
import re
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import AliasChoices, BaseModel, BeforeValidator, Field

from rlvr.data.documents import Document
from rlvr.data.problems import Problem, fingerprint
from rlvr.data.readers import Split
from rlvr.data.rows import ENDINGS, Cell, FilledText, Row, clean, read_file
from rlvr.errors import ConfigError
from rlvr.printable import ascii_text

MADE = "made"
_SET = re.compile(r"([^,\[\]]+)(?:,([^,\[\]]*))??(?:,([^,\[\]]+))?(?:\[(\d*):(\d*)\])?")
"""`path,name,split[start:stop]`, without the name, or a path alone."""
_REFERENCE = re.compile(r"#(\d{1,2})")


def read_sets(key: str, sets: str, fields: Collection[str]) -> Iterator[Row]:
    """The rows of all sets in order; Hub data sets are read with these columns. `key` is the setting's.

    ConfigError for a set with wrong syntax, or an empty or missing one; DataError for a damaged one.
    """
    for text in sets.split(";"):
        found = _SET.fullmatch(text.strip())
        path, name, split, start, stop = [part and part.strip() for part in found.groups()] if found else [None] * 5
        if path and split:
            rows = Split(path, split, name or None, key).rows(fields)
        elif path == MADE:
            rows = made_rows()
        elif path and path.endswith(ENDINGS):
            rows = list(read_file(Path(path).expanduser()))
        else:
            raise ConfigError(
                f"{key}: {ascii_text(text)!r} names no set; write path,name,split[:256] (or a file), several joined "
                "with ;."
            )
        chosen = rows[int(start or 0) : int(stop) if stop else None]
        if not chosen:
            raise ConfigError(
                f"{key}: {ascii_text(text)!r} is an empty slice of {len(rows):,} rows; write train[:256]."
            )
        yield from chosen


# ------------------------------------------------------------------------------------------------------ the question


def table(*columns: str) -> Any:
    """A field with a table of items with these columns (without any: of texts), or null. Accepts

        [{"title": "A", "sent_id": 0}, ...]      {"title": ["A", ...], "sent_id": [0, ...]}      [["A", 0], ...]

    or JSON text, as in Parquet copies. Other keys of objects and further list items are ignored.
    """

    def read(value: Any) -> Any:
        try:
            value = json.loads(value) if isinstance(value, str) else value
        except (ValueError, RecursionError):
            raise ValueError("must be a list, or a text with JSON") from None
        if isinstance(value, Mapping):
            lists = [value.get(column) for column in columns]
            if not all(isinstance(cells, list) and len(cells) == len(lists[0]) for cells in lists):  # type: ignore[arg-type]
                raise ValueError(f"must have lists {', '.join(columns)} of one length")
            value = list(zip(*lists, strict=True))  # type: ignore[arg-type]
        if not columns or not isinstance(value, list):
            return value
        return [dict(zip(columns, one, strict=False)) if isinstance(one, list | tuple) else one for one in value]

    return BeforeValidator(read)


@dataclass(frozen=True, kw_only=True, slots=True)
class Hop:
    """A step of a decomposed question: `Hop(question="Who directed #1 ?", answer="Ridley Scott", fact="3")`.

    `#1` stands for the answer of the first hop; `fact` is the supported fact (`Question.problem`), None if not known.
    """

    question: str
    answer: str
    fact: str | None = None

    def asked(self, answers: Sequence[str]) -> str:
        """The question with the answers of earlier hops in their places; others stay. `A >> B` is `A B`."""

        def fill(found: re.Match[str]) -> str:
            number = int(found[1])
            return answers[number - 1] if 0 < number <= len(answers) else found[0]

        return " ".join(_REFERENCE.sub(fill, self.question.replace(">>", " ")).split())


class Question(BaseModel):
    answer: Cell | None
    question: FilledText
    id: FilledText = Field(validation_alias=AliasChoices("_id", "id"))

    def problem(self, documents: tuple[Document, ...], hops: int, kind: str | None = None, **about: Any) -> Problem:
        """The problem of a row; its metadata holds the data for an episode.

        `documents` can be searched, in order (with a corpus only the supporting passages); `hops` of them must be
        combined. `kind` is the kind of question. `about`: `support` is {document id: supported fact}, `num_support` the
        number of different facts, `wanted` (with a corpus) {`Library.key` of a passage: supported fact}, `aliases`
        other right answers, and `decomposition` its hops in order, if known.
        """
        return Problem(
            id=self.id,
            key=fingerprint(self.question),
            question=self.question,
            answer=self.answer or "",
            metadata={"aliases": (), "documents": documents, "hops": hops, **about},
            tags=(f"{hops}_hops", *([kind] if kind else [])),
        )


def with_noise(problem: Problem, rate: float, seed: int) -> Problem:
    """Keep each non-supporting document with probability `rate`, and all supporting ones, in order."""
    if rate >= 1:
        return problem
    rng = random.Random(seed)
    drawn = [(document, rng.random()) for document in problem.metadata["documents"]]
    support = problem.metadata["support"]
    kept = tuple(document for document, number in drawn if document.id in support or number < rate)
    return replace(problem, metadata={**problem.metadata, "documents": kept})


# ------------------------------------------------------------------------------------------------------------ corpus

Match = Literal["title", "title_and_text"]
"""What identifies a supporting passage in a corpus: its title, or its title and text."""


class Library:
    """Passages shared by all questions, by id; titles may repeat. Read once at the start, then read-only.

    For an external service the passages are unknown: `Library(None, ...)`.
    """

    def __init__(self, documents: Sequence[Document] | None, match: Match) -> None:
        self.is_known = documents is not None
        self._documents = documents or ()
        self._match: Match = match
        self._places: dict[str, int] = {}
        self._by_key: dict[int, list[int]] = {}  # by hash, to avoid a second copy of the texts
        for place, document in enumerate(self._documents):
            self._places[document.id] = place
            self._by_key.setdefault(hash(self.key(document)), []).append(place)

    def __len__(self) -> int:
        return len(self._documents)

    def key(self, document: Document) -> Hashable:
        """The part of a passage that identifies it as supporting."""
        title = clean(document.title)
        return title if self._match == "title" else (title, clean(document.text))

    def get(self, name: str) -> Document | None:
        place = self._places.get(name)
        return None if place is None else self._documents[place]

    def matching(self, wanted: Mapping[Hashable, str]) -> tuple[tuple[Document, ...], dict[str, str]] | None:
        """The passages with these keys and, by their ids, the values of `wanted`; None if a key has none.

        `{("Lyon", "Lyon is ..."): "3"}` -> `(Document(id="m17", ...),)` and `{"m17": "3"}`.
        """
        documents: dict[str, Document] = {}
        support: dict[str, str] = {}
        for key, name in wanted.items():
            for place in self._by_key.get(hash(key), ()):
                document = self._documents[place]
                if self.key(document) == key:
                    documents[document.id], support[document.id] = document, name
        is_whole = not self.is_known or len(set(support.values())) == len(wanted)
        return (tuple(documents.values()), support) if is_whole else None


# ------------------------------------------------------------------------------------------------------- made questions

BUILDINGS = ("bridge", "castle", "harbor", "library", "mill", "school", "theater", "tower")
NUM_NUMBERS = 100


def made_rows() -> list[Row]:
    """800 different two-hop questions, always the same: for multi-hop runs without data.

    question    Where was the builder of tower 17 born?                       answer   town 4
    paragraphs  # tower 17: tower 17 was built by person 40.    # person 40: person 40 was born in town 4.
                and another tower and another person as distractors
    """
    rng = random.Random(MADE)
    asked = [(building, number) for building in BUILDINGS for number in range(NUM_NUMBERS)]
    return [_row(place, *asked[place], rng) for place in rng.sample(range(len(asked)), len(asked))]


def _row(place: int, building: str, number: int, rng: random.Random) -> Row:
    (builder, other_builder), (town, other_town) = (rng.sample(range(NUM_NUMBERS), 2) for _ in range(2))
    other = (number + rng.randrange(1, NUM_NUMBERS)) % NUM_NUMBERS
    paragraphs = [  # supporting ones, in the order of the search
        (f"{building} {number}", f"was built by person {builder}.", True),
        (f"person {builder}", f"was born in town {town}.", True),
    ]
    for noise in (
        (f"{building} {other}", f"was built by person {other_builder}.", False),
        (f"person {other_builder}", f"was born in town {other_town}.", False),
    ):
        paragraphs.insert(rng.randint(0, len(paragraphs)), noise)
    fields = {
        "id": f"{MADE}_{place}",
        "question": f"Where was the builder of {building} {number} born?",
        "answer": f"town {town}",
        "paragraphs": [
            {"idx": idx, "title": title, "paragraph_text": f"{title} {text}", "is_supporting": is_supporting}
            for idx, (title, text, is_supporting) in enumerate(paragraphs)
        ],
    }
    return Row(f"{MADE}, question {place}", fields)
