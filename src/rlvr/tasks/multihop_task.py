"""From the settings of a multi-hop task to the task: its data, retriever, environments and metric."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr.config import schema
from rlvr.retrieval.base import Retriever
from rlvr.retrieval.corpus import open_corpus
from rlvr.retrieval.factory import make_retriever
from rlvr.rewards.factory import make_verifier
from rlvr.rewards.multihop import MultiHopVerifier
from rlvr.seeding import derive_seed
from rlvr.tasks.dataset import Data, DatasetTask
from rlvr.tasks.multihop import KINDS, MultiHopEnvs, MultiHopJudge, Settings, load_questions, to_problem
from rlvr.tasks.multihop_corpus import Library
from rlvr.tasks.multihop_sets import Question
from rlvr.tasks.problems import Problem
from rlvr.tasks.prompting import DOCUMENTS, Prompter
from rlvr.tasks.rows import ascii_text
from rlvr.tasks.sources import EVAL_SEED
from rlvr.tasks.splits import Part, make_data

if TYPE_CHECKING:
    from rlvr.rewards.pool import VerifierPool


def prompt_fields(settings: schema.TaskConfig) -> tuple[str, ...]:
    """The placeholders of prompt.user that a task fills in beside the question."""
    lists_documents = isinstance(settings, schema.MultiHopTask) and settings.retrieval.scope == "paragraphs"
    return (DOCUMENTS,) if lists_documents else ()


def make_multihop(
    settings: Settings,
    reward: schema.PartsReward,
    prompter: Prompter,
    pool: VerifierPool,
    *,
    name: str,
    seed: int,
    functions: Mapping[str, Callable[..., Any]] | None = None,
    retriever: Retriever | None = None,
) -> DatasetTask:
    """The task, its data loaded and its retriever ready.

    Raises:
        ConfigError: there is no such data, model or corpus, or settings do not go together.
        UserError: the data cannot be had, or is damaged.
    """
    library = open_library(settings)
    form = prompter.answer_format
    return DatasetTask(
        name=name,
        data=load_data(settings, seed, library),
        prompter=prompter,
        verifier=(verifier := MultiHopVerifier(make_verifier(reward, form, pool, functions), form)),
        judge=MultiHopJudge(format=form, rules=KINDS[settings.name].rules),
        seed=seed,
        max_prompt_tokens=settings.max_prompt_tokens,
        environments=MultiHopEnvs(
            settings,
            retriever=retriever or make_retriever(settings.retriever, settings.retrieval),
            verifier=verifier,
            library=library,
        ),
    )


def open_library(settings: Settings) -> Library | None:
    """The passages of `task.retrieval.corpus`; unknown ones of a service without it; None without a corpus."""
    retrieval, match = settings.retrieval, KINDS[settings.name].match
    if retrieval.scope == "paragraphs":
        return None
    if retrieval.corpus is None:
        return Library(None, match)
    index_dir = None if retrieval.index_dir is None else Path(retrieval.index_dir)
    return Library(open_corpus(Path(retrieval.corpus).expanduser(), index_dir).documents, match)


def load_data(settings: Settings, seed: int, library: Library | None) -> Data:
    """Training and held-out questions, what is in both only held out, with noise; notes on all that was left out."""
    train, train_notes = load_questions(settings, "train_sets", library=library)
    held_out, held_out_notes = load_questions(settings, "eval_sets", library=library)
    data = make_data(
        Part(problems=_problems(train, settings.noise_rate, seed)),
        Part(problems=_problems(held_out, settings.eval_noise_rate, EVAL_SEED)),
        where=ascii_text(f"{settings.train_sets} and {settings.eval_sets}"),
        seed=seed,
        max_train=settings.max_train_examples,
        difficulty=_hops if settings.curriculum == "hops" else None,
        stratum=_hops if settings.eval_order == "balanced" else None,
    )
    size, *notes = data.notes
    searched = "the question's own paragraphs" if library is None else (settings.retrieval.corpus or "a service")
    retriever = f"retriever {settings.retriever} over {ascii_text(searched)}"
    left_out = (*notes, *train_notes, *held_out_notes)
    return Data(source=data.source, notes=(size, retriever, *left_out, *_idle(settings, train, held_out)))


def _idle(settings: Settings, train: list[Question], held_out: list[Question]) -> list[str]:
    """Notes on orders by hops where all questions have as many: those of HotpotQA have 2."""
    orders = (
        ("task.curriculum=hops", settings.curriculum == "hops", "training", train),
        ("task.eval_order=balanced", settings.eval_order == "balanced", "held-out", held_out),
    )
    return [
        f"{line} changes nothing: all {kind} questions have {questions[0].hops} hops"
        for line, is_set, kind, questions in orders
        if is_set and len({question.hops for question in questions}) == 1
    ]


def _problems(questions: list[Question], noise_rate: float, seed: int) -> tuple[Problem, ...]:
    return tuple(to_problem(each, noise_rate, derive_seed(seed, "noise", each.id)) for each in questions)


def _hops(problem: Problem) -> float:
    return problem.metadata["hops"]
