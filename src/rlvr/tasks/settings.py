"""The settings interface of tasks: fields, default prompt and reward, opening."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from rlvr import registry
from rlvr.data.conversations import read_demonstration
from rlvr.data.readers import Split, split_names
from rlvr.data.rows import ENDINGS, Row
from rlvr.errors import ConfigError
from rlvr.rewards.settings import RewardSettings
from rlvr.run_view import RunView
from rlvr.seeding import EVAL_SEED
from rlvr.settings import Component, PositiveFloat, PositiveInt, Settings, Text, chosen, setting
from rlvr.tasks.prompts import Prompt

if TYPE_CHECKING:
    from rlvr.data.problems import Problem
    from rlvr.rewards.metrics import Metric
    from rlvr.tasks.base import Task, TaskContext
    from rlvr.tasks.loading import Data, ParsedRows
    from rlvr.tasks.tool_play import ToolEnvironments

SUBSETS = "not has_split_files  # a repository with several configurations"
TRAINED = "a task that is trained on"
HeldOutShare = Annotated[float, Field(gt=0, lt=1)]


class TaskSettings(Component, ABC):
    """A source of problems.

    The class variables describe the task to a run; `prompt` and `reward` are the choices implied by `task=...`. A
    reward is a name (`rlvr train --help-config reward`), or its parts.
    """

    group: ClassVar[str] = "task"
    prompt: ClassVar[str] = "plain"
    reward: ClassVar[str | Mapping[str, Any]] = "text"
    hub_id: ClassVar[str] = ""  # Hub id of its data
    is_generated: ClassVar[bool] = False  # its examples are free of rights, and can be published
    writes_prompts: ClassVar[bool] = False  # prompt.* has no effect
    scores_itself: ClassVar[bool] = False  # reward.parts is empty
    has_tools: ClassVar[bool] = False
    has_documents: ClassVar[bool] = False  # supports reward parts for retrieval and citations
    has_decompositions: ClassVar[bool] = False  # its questions may come with sub-questions and their answers
    rereads: ClassVar[bool] = False  # the state of an episode is `research.evidence.Readable`
    brings_verifier: ClassVar[bool] = False  # each example has its own verifier
    has_tests: ClassVar[bool] = False  # its examples are programs' problems, with tests
    shows_calls: ClassVar[bool] = True  # supports few-shot examples
    stop_words: ClassVar[tuple[str, ...]] = ()  # words that end a completion, besides the tokenizer's end token
    made_of_words: ClassVar[bool] = False  # prompts and completions use a small vocabulary, for model=scratch
    answer_kind: ClassVar[str] = "text"  # or number, or program

    @classmethod
    def recognize(cls, given: Mapping[str, Any]) -> Mapping[str, str | None]:
        """What data of another layout calls for, from the settings given: own settings by name, `prompt`, `reward`."""
        return {}

    @property
    def metric_uses_sandbox(self) -> bool:
        """Whether held-out answers are graded in a killable process."""
        return False

    @property
    def longest_prompt(self) -> int | None:
        """The limit on a prompt's tokens, if the task has one."""
        return getattr(self, "max_prompt_tokens", None)

    @property
    def retriever_reads(self) -> Container[str]:
        """Names of the fields of `task.retrieval` that its retriever uses."""
        return ()

    @property
    def origin(self) -> str:
        """A short description of the examples' source."""
        return "generated"

    @property
    def prompt_fields(self) -> tuple[str, ...]:
        """Placeholders of prompt.user besides `{question}`."""
        return ()

    @property
    def num_turns(self) -> int:
        """Maximum number of completions per episode."""
        return 1

    @property
    def bundles(self) -> Mapping[str, TaskBundle]:
        """The parts of a mix; else empty."""
        return {}

    @abstractmethod
    def open(self, context: TaskContext) -> Task:
        """The task with its data. ConfigError or UserError for missing, damaged or unsuitable data."""

    def check_run(self, run: RunView) -> None:
        words, model = self.made_of_words, run.model
        if model.tokens_are_words and not words:
            raise ConfigError(
                f"task={self.name}: model=scratch has a tokenizer of the task's words, and this task has none; choose "
                "model=hf model.name_or_path=..., or model=scratch_bpe."
            )
        if words and model.from_scratch and not model.tokens_are_words:
            raise ConfigError(
                f"model={model.name}: task={self.name} is made of words, one token each; choose model=scratch."
            )
        if run.prompt.answer_in == "complete" and not self.has_documents:
            raise ConfigError(
                f"prompt.answer_in=complete: task={self.name} has no tool complete; choose another prompt, e.g. "
                f"prompt={self.prompt}."
            )
        if self.scores_itself == bool(run.reward.parts):
            said = "scores its episodes by itself; leave out reward=..." if self.scores_itself else "needs parts"
            raise ConfigError(f"reward: task={self.name} {said}.")
        if self.writes_prompts and not run.prompt.is_plain:
            raise ConfigError(
                f"prompt: task={self.name} writes its prompts by itself, so these settings would have no effect; leave "
                "prompt=plain."
            )


class LimitSettings(TaskSettings):
    """Limits for every task with data."""

    max_train_examples: PositiveInt | None = setting(
        None, "train on the first examples, this many; null: all", only_if=f"is_trained or prompt.few_shot  # {TRAINED}"
    )
    max_prompt_tokens: PositiveInt | None = setting(
        None, "examples with longer prompts are excluded and counted; null: limited by the context only"
    )


class DataSettings(LimitSettings):
    """A task of question-answer problems."""

    @abstractmethod
    def load(self, context: TaskContext) -> Data:
        """The problems, with notes."""

    @abstractmethod
    def make_metric(self) -> Metric:
        """The metric for held-out answers."""

    def environments(self, context: TaskContext) -> ToolEnvironments | None:
        return None

    def open(self, context: TaskContext) -> Task:
        from rlvr.data.sources import ListSource
        from rlvr.tasks.dataset import DatasetTask
        from rlvr.tasks.loading import Data

        data = self.load(context) if context.reads != "nothing" else Data(source=ListSource([], [], context.seed))
        limits = {"max_prompt_tokens": self.max_prompt_tokens, "environments": self.environments(context)}
        return DatasetTask(context, data=data, metric=self.make_metric(), **limits)


class RowSettings(DataSettings):
    """A task of rows: one setting names the training rows, another (or a share) the held-out ones."""

    train_key: ClassVar[str] = "train_split"
    eval_key: ClassVar[str] = "eval_split"
    demonstration_field: Text | None = setting(
        None,
        "field with a demonstration: the completion as it stands, or chat messages (docs/train.md); null: the data's "
        "own solutions, if it has any",
        only_if="is_trained and warm_start.enabled or prompt.few_shot > 0  # warm_start.enabled or prompt.few_shot > 0",
    )

    @abstractmethod
    def rows(self, key: str) -> Iterable[Row]:
        """The rows named by a setting."""

    @abstractmethod
    def parse(self, row: Row) -> Problem | str:
        """The problem of a row, or the reason to exclude it. DataError for invalid content."""

    def parser(self, key: str, seed: int) -> Callable[[Row], Problem | str]:
        """`parse` for the rows of a setting; `seed` is the seed of their order."""
        return self.parse

    def _read(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """The columns to read, with that of demonstrations; empty: all."""
        return (*columns, self.demonstration_field) if columns and self.demonstration_field else columns

    def has_field(self, key: str, field: str) -> bool:
        """Whether any row of a setting has the field."""
        return any(field in row for row in self.rows(key))

    def _shown(self, key: str, parse: Callable[[Row], Problem | str]) -> Callable[[Row], Problem | str]:
        """`parse` with the demonstrations of training rows. DataError if no row has their field."""
        field = self.demonstration_field
        if field is None or key != self.train_key:
            return parse
        is_known = cache(lambda: self.has_field(key, field))

        def parsed(row: Row) -> Problem | str:
            problem = parse(row)
            if field not in row and not is_known():
                row.get(field, "task.demonstration_field")
            said = read_demonstration(row, field)
            if isinstance(problem, str) or said is None:
                return problem
            return replace(problem, **{"demonstration" if isinstance(said, str) else "conversation": said})

        return parsed

    def load(self, context: TaskContext, **order: Any) -> Data:
        """`order` belongs to `ListSource`."""
        from rlvr.tasks.golds import GoldReader
        from rlvr.tasks.loading import by_hash, make_data, parse_rows

        golds = GoldReader(context.reward, self.make_metric(), context.sandbox)

        def part(key: str, seed: int) -> ParsedRows | None:
            if getattr(self, key) is None:
                return None
            return parse_rows(self.rows(key), self._shown(key, self.parser(key, seed)), golds)

        needs_train = context.reads == "all" or getattr(self, self.eval_key) is None
        train = part(self.train_key, context.seed) if needs_train else None
        held_out = part(self.eval_key, EVAL_SEED)
        if held_out is None:
            assert train is not None
            train, held_out = by_hash(train, getattr(self, "eval_share"), self.origin)  # noqa: B009
        return make_data(
            (train if context.reads == "all" else None, held_out),
            where=self.origin,
            max_train=self.max_train_examples,
            golds=golds,
            seed=context.seed,
            **order,
        )


# Fields with different defaults per task.
DataPath = Annotated[
    str,
    setting(
        description="Hub id, or a folder with <split>.jsonl, .json, .csv (each also .gz) or .parquet; "
        "`RLVR_DATA/<task>` if it exists",
        min_length=1,
    ),
]
Subset = Annotated[
    Text | None,
    setting(
        description="configuration of a Hub data set; null: its only one",
        only_if=SUBSETS,
    ),
]
MetricName = Annotated[
    str,
    setting(
        description="metric of held-out answers: numeric: equal numbers; math: equivalent expressions; text: "
        "equal after normalization; exact: equal characters; or your own module:Class",
        min_length=1,
    ),
]


class SplitSettings(RowSettings):
    """A data set with splits, on the Hub or in a local folder."""

    columns: ClassVar[tuple[str, ...]] = ()  # required columns; empty: all
    path: DataPath
    subset: Subset = None
    train_split: Text = setting("train", "training split; join several with +")

    @property
    def has_split_files(self) -> bool:
        """Whether `path` is a folder with a file per split, not a repository with several configurations."""
        folder, first = Path(self.path).expanduser(), self.train_split.partition("+")[0]
        return any((folder / f"{first}{ending}").is_file() for ending in ENDINGS)

    @property
    def origin(self) -> str:
        return self.path

    def rows(self, key: str) -> Iterator[Row]:
        for split in split_names(f"task.{key}", getattr(self, key)):
            for number, row in enumerate(Split(self.path, split, self.subset).rows(self._read(self.columns)), start=1):
                yield replace(row, name=f"{split}/{number}")


class MetricSettings(DataSettings):
    metric: MetricName = "numeric"

    @property
    def metric_uses_sandbox(self) -> bool:
        return type(self.make_metric()).uses_sandbox

    def make_metric(self) -> Metric:
        return registry.find("metric", str(self.metric))()

    def check_run(self, run: RunView) -> None:
        super().check_run(run)
        registry.find("metric", str(self.metric))  # a user class may have given it another type


class TaskBundle(Settings):
    task: Annotated[TaskSettings, chosen("task")]
    reward: RewardSettings
    prompt: Annotated[Prompt, chosen("prompt")]


class MixPart(TaskBundle):
    weight: PositiveFloat = setting(1.0, "share of examples, relative to the other tasks")


def data_folder(name: str, otherwise: str, split: str | None = None) -> str:
    """The folder `name` in RLVR_DATA if it exists, else the Hub's data set.

    `data_folder("musique", "bdsaglam/musique,answerable,validation", "dev")`: or `FOLDER,dev`, with its split name.
    """
    folder = Path(os.environ.get("RLVR_DATA", "")) / name
    if "RLVR_DATA" not in os.environ or not folder.is_dir():
        return otherwise
    return str(folder) if split is None else f"{folder},{split}"
