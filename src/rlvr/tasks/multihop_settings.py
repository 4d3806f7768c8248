"""Settings common to the multi-hop tasks MuSiQue, HotpotQA and 2WikiMultihopQA, and the environments."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from rlvr.data.multihop_sets import Library, Match, read_sets, with_noise
from rlvr.data.problems import Problem
from rlvr.data.rows import Row
from rlvr.envs.tools import Tool, load_tool, make_tool
from rlvr.errors import ConfigError, UserError
from rlvr.retrieval.base import Document
from rlvr.retrieval.corpus import open_corpus
from rlvr.retrieval.retriever import find_retriever, open_retriever
from rlvr.retrieval.settings import RetrievalSettings
from rlvr.rewards.base import Verifier
from rlvr.rewards.completion import ARGUMENTS
from rlvr.rewards.metrics import Metric
from rlvr.rewards.multihop import MultiHopVerifier, Rules, potential
from rlvr.run_view import RunView
from rlvr.seeding import derive_seed
from rlvr.settings import NonNegativeFloat, PositiveFloat, PositiveInt, Share, Text, setting, wrong
from rlvr.tasks.base import Functions, Task, TaskContext
from rlvr.tasks.loading import Data
from rlvr.tasks.multihop import (
    MAX_OUTPUT_CHARS,
    TOOLS,
    Notes,
    OfficialAnswer,
    complete,
    demonstration,
    get_document,
    list_documents,
    render,
    retrieving,
    titles,
)
from rlvr.tasks.prompting import DOCUMENTS, PARAGRAPHS
from rlvr.tasks.settings import TRAINED, RowSettings, data_folder
from rlvr.tasks.tool_play import ToolEnvironments
from rlvr.types import Example

WITH_TOOLS = "has_tools  # a task with tools"
SEARCHES = "'retrieve_documents' in tools"
SEVERAL_HOPS = "several_hops  # several numbers of hops"
OWN_PARAGRAPHS = "retrieval.scope == 'paragraphs'"

# Fields with different defaults per data set.
TrainSets = Annotated[
    str,
    setting(
        description="`path,name,split`, several joined with ;: a Hub id with its configuration, or a folder with "
        "<split>.jsonl[.gz] and no name; a split may be a slice, train[:256]",
        min_length=1,
    ),
]
EvalSets = Annotated[str, setting(description="held-out sets, in the same form", min_length=1)]


class MultiHopSettings(RowSettings):
    """Multi-hop questions, answered by searching, reading and citing with tools."""

    prompt: ClassVar[str] = "musique"
    reward = "musique"
    has_documents: ClassVar[bool] = True
    rereads: ClassVar[bool] = True
    shows_calls: ClassVar[bool] = False
    train_key: ClassVar[str] = "train_sets"
    eval_key: ClassVar[str] = "eval_sets"
    rules: ClassVar[Rules]
    """The official scorer for grading."""
    match: ClassVar[Match]
    fields: ClassVar[tuple[str, ...]]
    """Required columns."""

    train_sets: TrainSets
    eval_sets: EvalSets
    retriever: Text = setting(
        "bm25",
        "how documents are searched (see `rlvr retrieve --help`); semantic and hybrid also with /MODEL; or your "
        "own module:Class",
        only_if=SEARCHES,
    )
    top_n: PositiveInt = setting(
        2,
        "documents per search if the model requests no number",
        only_if=f"{SEARCHES} and not returns_all  # a search by task.retriever that ranks",
    )
    max_top_n: PositiveInt = setting(5, "maximum number of documents per search", only_if=SEARCHES)
    retrieval: RetrievalSettings = RetrievalSettings()
    tools: tuple[Text, ...] = setting(
        TOOLS,
        f"tools: {', '.join(TOOLS)}, or your own module:function; empty: none, for a prompt with {{paragraphs}} and "
        "one completion",
    )
    max_turns: PositiveInt = setting(10, "maximum number of completions per episode", only_if=WITH_TOOLS)
    no_call: Literal["end", "remind"] = setting(
        "end",
        "after a turn without tool calls; end: the episode ends; remind: the model is told to call a tool or complete",
        only_if="'complete' in tools",
    )
    tool_timeout_s: PositiveFloat = setting(120.0, "time limit of a tool call in seconds", only_if=WITH_TOOLS)
    noise_rate: Share = setting(
        1.0, "training: share of the non-supporting documents to keep; 1: all, 0: none", only_if=OWN_PARAGRAPHS
    )
    eval_noise_rate: Share = setting(1.0, "the same for held-out questions", only_if=OWN_PARAGRAPHS)
    hops: tuple[PositiveInt, ...] | None = setting(
        None, "keep only questions with these numbers of hops; null: all", min_length=1
    )
    eval_order: Literal["random", "balanced"] = setting(
        "random",
        "held-out questions: a random sample, or equally many of each number of hops while available",
        only_if=SEVERAL_HOPS,
    )
    curriculum: Literal["none", "hops"] = setting(
        "none", "hops: sort each pass over the data by number of hops", only_if=SEVERAL_HOPS
    )
    progress_coef: NonNegativeFloat = setting(
        0.0,
        "ppo and reinforce_pp: potential-based shaping by the share of supporting documents found; 0: none",
        only_if=f"is_trained and algorithm.returns_per_token  # {TRAINED} and algorithm=ppo or algorithm=reinforce_pp",
    )

    @property
    def has_tools(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return bool(self.tools)

    @property
    def returns_all(self) -> bool:
        """Whether a search returns all results, regardless of the requested number."""
        return find_retriever(self.retriever, self.retrieval).returns_all

    @property
    def retriever_reads(self) -> Container[str]:
        return find_retriever(self.retriever, self.retrieval).uses

    @property
    def several_hops(self) -> bool:
        """Whether the number of hops varies."""
        return self.hops is None or len(self.hops) > 1

    @property
    def num_turns(self) -> int:
        return self.max_turns if self.tools else 1

    @property
    def origin(self) -> str:
        searched = "" if self.retrieval.scope == "paragraphs" else f" over {self.retrieval.corpus or 'a service'}"
        return f"{self.train_sets} and {self.eval_sets}; retriever {self.retriever}{searched}"

    @property
    def prompt_fields(self) -> tuple[str, ...]:
        return (DOCUMENTS, PARAGRAPHS) if self.retrieval.scope == "paragraphs" else ()

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        if len(set(self.tools)) < len(self.tools):
            raise wrong("tools", "names a tool twice; name each once")
        unknown = [name for name in self.tools if name not in TOOLS and ":" not in name]
        if unknown:
            raise wrong("tools", f"there is no tool {unknown[0]}; there are {', '.join(TOOLS)}, and module:function")
        if self.top_n > self.max_top_n:
            raise wrong("top_n", f"is more than task.max_top_n={self.max_top_n}; lower it")
        return self

    def check_run(self, run: RunView) -> None:
        super().check_run(run)
        prompt = run.prompt
        if ("complete" in self.tools) != (prompt.answer_in == "complete"):
            raise ConfigError(
                f"prompt.answer_in={prompt.answer_in}: is complete if and only if task.tools has complete; change one "
                "of them (prompt=musique_tags task.tools=[retrieve_documents,get_document,list_documents] goes without "
                "it, prompt=plain task.tools=[] without any)."
            )
        if prompt.tool_format == "words":
            raise ConfigError(f"prompt.tool_format=words: task={self.name} has tools whose arguments need JSON.")
        shown = [name for name in (f"{{{DOCUMENTS}}}", f"{{{PARAGRAPHS}}}") if name in prompt.user]
        if self.retrieval.scope == "corpus" and shown:
            raise ConfigError(f"prompt.user: {shown[0]} lists the question's own paragraphs, not those of a corpus.")
        find_retriever(self.retriever, self.retrieval).check(self.tool_timeout_s)

    # ---------------------------------------------------------------------------------------------------- the task

    def make_metric(self) -> Metric:
        return OfficialAnswer(rules=self.rules)

    def load(self, context: TaskContext, **order: Any) -> Data:
        difficulty = _hops if self.curriculum == "hops" else None
        return super().load(context, difficulty=difficulty, stratum=_hops if self.eval_order == "balanced" else None)

    def rows(self, key: str) -> Iterator[Row]:
        return read_sets(f"task.{key}", getattr(self, key), self._read(self.fields))

    def parser(self, key: str, seed: int) -> Callable[[Row], Problem | str]:
        """Also excludes other numbers of hops, adds noise, and adds a demonstration if the tools allow it."""
        noise_rate = self.noise_rate if key == self.train_key else self.eval_noise_rate
        is_shown = {"retrieve_documents", "complete"} <= {*self.tools}

        def parse(row: Row) -> Problem | str:
            problem = self.parse(row)
            if isinstance(problem, str):
                return problem
            if self.hops is not None and _hops(problem) not in self.hops:
                return f"have another number of hops than task.hops={list(self.hops)}"
            problem = with_noise(problem, noise_rate, derive_seed(seed, "noise", problem.id))
            return replace(problem, turns=demonstration(problem)) if is_shown else problem

        return parse

    def open(self, context: TaskContext) -> Task:
        verifier = MultiHopVerifier(context.verifier, context.prompter.answer_format)
        return super().open(replace(context, reward=verifier))

    def environments(self, context: TaskContext) -> MultiHopEnvs:
        return MultiHopEnvs(self, context.verifier, context.functions)

    @cached_property
    def library(self) -> Library | None:
        """The passages of `retrieval.corpus`; empty for a service without it; None without a corpus."""
        retrieval = self.retrieval
        if retrieval.scope == "paragraphs":
            return None
        documents = None if retrieval.corpus is None else open_corpus(retrieval.corpus, retrieval.index_dir).documents
        return Library(documents, self.match)


def make_tools(settings: MultiHopSettings, functions: Functions) -> list[Tool]:
    """The tools of the settings, in order; `module:function` is a user's tool."""
    timeout_s = settings.tool_timeout_s
    # the oracle may return all: the first two of four documents would hide the others
    retrieve = retrieving(settings.max_top_n if settings.returns_all else settings.top_n, settings.max_top_n)
    made = {
        "retrieve_documents": make_tool(retrieve, timeout_s=timeout_s, max_output_chars=MAX_OUTPUT_CHARS),
        "get_document": make_tool(get_document, timeout_s=timeout_s, inline=True, max_output_chars=MAX_OUTPUT_CHARS),
        "list_documents": make_tool(list_documents, timeout_s=timeout_s, inline=True),
        "complete": make_tool(complete, timeout_s=timeout_s, inline=True, final=True),
    }
    # the model is told that all of these are required, in this order, although less is accepted
    parameters = made["complete"].schema["function"]["parameters"]
    for name in ARGUMENTS:
        parameters["properties"][name] = parameters["properties"].pop(name)
        parameters["properties"][name].pop("default", None)
    parameters["required"] = list(ARGUMENTS)
    for name in set(settings.tools) - {*made}:
        function = functions.get(name)
        made[name] = (
            load_tool(name, timeout_s=timeout_s) if function is None else make_tool(function, timeout_s=timeout_s)
        )
    return [made[name] for name in settings.tools]


class MultiHopEnvs(ToolEnvironments):
    def __init__(self, settings: MultiHopSettings, verifier: Verifier, functions: Functions) -> None:
        super().__init__(
            make_tools(settings, functions),
            verifier,
            state=self.notes,
            max_turns=settings.num_turns,
            potential=potential(settings.progress_coef) if settings.progress_coef > 0 else None,
            reminds=settings.no_call == "remind",
        )
        self.settings, self._library = settings, settings.library
        self._retriever = open_retriever(settings.retriever, settings.retrieval)

    def fields(self, problem: Problem) -> Mapping[str, str]:
        """`{documents}` of the prompt: ids and titles; `{paragraphs}`: their texts, too."""
        documents = problem.metadata.get("documents", ())
        return {DOCUMENTS: titles(documents), PARAGRAPHS: "\n\n".join(map(render, documents)) or "none"}

    def notes(self, example: Example) -> Notes:
        """The state of a new episode. UserError for a user's question without paragraphs to search."""
        about = example.metadata
        if "documents" not in about and self._library is None:
            raise UserError(
                f"{self.settings.name}: a question of your own has no paragraphs to search: add --set "
                "task.retrieval.scope=corpus --set task.retrieval.corpus=FILE, a corpus that the data set goes with."
            )
        documents: tuple[Document, ...] = about.get("documents", ())
        support = dict(about.get("support", {}))
        return Notes(
            support=support,
            num_support=about.get("num_support", 1),
            hops=about.get("hops", 0),
            decomposition=about.get("decomposition", ()),
            rules=self.settings.rules,
            scope=self.settings.retrieval.scope,
            documents={} if self._library is not None else {document.id: document for document in documents},
            library=self._library,
            wanted=about.get("wanted", {}),
            search=self._retriever.over(documents, tuple(support)),
            question=example.messages,
        )


def _hops(problem: Problem) -> int:
    return problem.metadata["hops"]


def sets(folder: str, hub: str, split: str, here: str) -> Any:
    """A field with a set in the data folder if it exists, else on the Hub."""
    return Field(default_factory=lambda: data_folder(folder, f"{hub},{split}", here))
