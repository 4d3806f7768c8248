"""Rules of the multi-hop tasks: what contradicts something, and what retriever, scope or tools leave without effect."""

from collections.abc import Callable

from rlvr.config.rule import Rule
from rlvr.config.schema import (
    CitationPart,
    CombinedPart,
    CompletionPart,
    Config,
    HopsPart,
    MixTask,
    MultiHopAnswerPart,
    MultiHopTask,
    PartsReward,
    Ppo,
    PretrainedModel,
    ReinforcePP,
    RetrievalPart,
    TaskBundle,
)

PARTS = (MultiHopAnswerPart, RetrievalPart, CitationPart, CompletionPart, HopsPart, CombinedPart)
INDEXED = ("bm25", "lexical", "semantic", "hybrid")
LEXICAL = ("bm25", "lexical", "hybrid")
SERVICES = ("rerank", "search")
SHAPED = (Ppo, ReinforcePP)
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 8.0  # between requests, as rlvr.retrieval.services has them


def _multihop(broken: Callable[[Config, MultiHopTask], bool]) -> Callable[[Config], bool]:
    """A condition on a multi-hop task as one on configurations; no other task breaks it."""
    return lambda c: isinstance(c.task, MultiHopTask) and broken(c, c.task)


def _kind(task: MultiHopTask) -> str:
    """`semantic` of `semantic/MODEL`."""
    return task.retriever.partition("/")[0]


def patience_s(task: MultiHopTask) -> float:
    """The longest that a service's client tries before it gives up and ends the run."""
    retrieval = task.retrieval
    pauses = [min(FIRST_PAUSE_S * 2**number, LONGEST_PAUSE_S) for number in range(retrieval.max_retries)]
    return retrieval.timeout_s * (retrieval.max_retries + 1) + sum(pauses)


def _other_parts(c: Config) -> bool:
    """Parts that read an episode's notes, where episodes keep none."""
    parts = c.reward.parts.values() if isinstance(c.reward, PartsReward) else ()
    return not isinstance(c.task, MultiHopTask | MixTask) and any(isinstance(part, PARTS) for part in parts)


def _shapes_nothing(c: Config) -> bool:
    """The run's algorithm gives all tokens of an episode one advantage."""
    tasks: list[object] = [c.task]
    if isinstance(c.task, MixTask):
        tasks = [part.task for part in c.task.parts.values()]
    shaped = any(isinstance(task, MultiHopTask) and task.progress_coef > 0 for task in tasks)
    return shaped and not isinstance(c.algorithm, SHAPED)


def _shaped_beside(c: Config) -> str | None:
    """A task that is only evaluated, and shaped."""
    bundles: dict[str, TaskBundle] = c.evaluation.also
    found = (name for name, each in bundles.items() if isinstance(each.task, MultiHopTask) and each.task.progress_coef)
    return next(found, None)


MULTIHOP_RULES = (
    Rule(
        _multihop(lambda c, t: not isinstance(c.model, PretrainedModel)),
        "task={c.task.name}: models made from scratch cannot call its tools; choose model=hf model.name_or_path=..., "
        "or task=two_hop to see tools learnt from scratch.",
    ),
    Rule(
        _other_parts,
        "reward: parts of the types answer, retrieval, citation, completion, hops and combined score the tasks "
        "musique, hotpotqa and wiki2, not task={c.task.name}; use text.",
    ),
    Rule(
        _multihop(lambda c, t: len(set(t.tools)) < len(t.tools) or not t.tools),
        "task.tools: must name at least one tool, and none twice.",
    ),
    Rule(
        _multihop(lambda c, t: ("complete" in t.tools) != (c.prompt.answer_in == "complete")),
        "prompt.answer_in={c.prompt.answer_in}: is complete if and only if task.tools has complete; change one of them "
        "(prompt=musique_tags task.tools=[retrieve_documents,get_document,list_documents] goes without it).",
    ),
    Rule(
        lambda c: not isinstance(c.task, MultiHopTask | MixTask) and c.prompt.answer_in == "complete",
        "prompt.answer_in=complete: task={c.task.name} has no tool complete; choose the prompt of the task.",
    ),
    Rule(
        _multihop(lambda c, t: c.prompt.few_shot > 0),
        "prompt.few_shot={c.prompt.few_shot}: task={c.task.name} has tools, and its examples cannot be shown without "
        "their calls; set it to 0.",
    ),
    Rule(
        _multihop(lambda c, t: c.prompt.tool_format == "words"),
        "prompt.tool_format=words: task={c.task.name} has tools whose arguments are texts and lists, which need JSON; "
        "choose auto, hermes or llama.",
    ),
    Rule(
        _multihop(lambda c, t: t.retrieval.scope == "corpus" and "{documents}" in c.prompt.user),
        "prompt.user: {{documents}} lists the question's own paragraphs, and task.retrieval.scope=corpus has none; "
        "leave it out.",
    ),
    Rule(
        _multihop(lambda c, t: t.top_n > t.max_top_n),
        "task.top_n={c.task.top_n}: is more than task.max_top_n={c.task.max_top_n}; lower it.",
    ),
    Rule(
        _multihop(lambda c, t: t.hops is not None and (not t.hops or len(set(t.hops)) < len(t.hops))),
        "task.hops: must name at least one number of hops, and none twice; null keeps all.",
    ),
    Rule(
        _multihop(lambda c, t: t.hops is not None and len(t.hops) == 1),
        "with one number of hops in task.hops",
        idle=("task.eval_order", "task.curriculum"),
    ),
    Rule(
        _multihop(lambda c, t: t.retrieval.scope == "corpus" and t.retrieval.corpus is None and _kind(t) != "search"),
        "task.retrieval.scope=corpus: needs a file of passages with task.retriever={c.task.retriever}; set "
        "task.retrieval.corpus.",
    ),
    Rule(
        _multihop(lambda c, t: t.retrieval.scope == "corpus" and _kind(t) == "rerank"),
        "task.retriever=rerank: orders the question's own paragraphs, and cannot search a corpus; choose another "
        "retriever or task.retrieval.scope=paragraphs.",
    ),
    Rule(
        _multihop(lambda c, t: t.retrieval.scope == "paragraphs" and _kind(t) == "search"),
        "task.retriever=search: the service has documents of its own; set task.retrieval.scope=corpus.",
    ),
    Rule(
        _multihop(lambda c, t: _kind(t) in SERVICES and t.tool_timeout_s <= patience_s(t)),
        "task.tool_timeout_s={c.task.tool_timeout_s:g}: a service that is down must end the run, and its client tries "
        "for longer than that (task.retrieval.timeout_s={c.task.retrieval.timeout_s:g}, "
        "max_retries={c.task.retrieval.max_retries}); raise it, or lower one of these.",
    ),
    Rule(
        _multihop(lambda c, t: _kind(t) == "golden"),
        "with task.retriever=golden, which gives all supporting documents, at most task.max_top_n",
        idle=("task.top_n",),
    ),
    Rule(
        _multihop(lambda c, t: _kind(t) not in LEXICAL),
        "with task.retriever={c.task.retriever}, which has no words to stem or to leave out",
        idle=("task.retrieval.stem", "task.retrieval.remove_stop_words"),
    ),
    Rule(
        _multihop(lambda c, t: _kind(t) != "rerank"),
        "with task.retriever={c.task.retriever}; set task.retriever=rerank",
        idle=("task.retrieval.rerank_url", "task.retrieval.service_model", "task.retrieval.max_document_chars"),
    ),
    Rule(
        _multihop(lambda c, t: _kind(t) != "search"),
        "with task.retriever={c.task.retriever}; set task.retriever=search",
        idle=("task.retrieval.search_url",),
    ),
    Rule(
        _multihop(lambda c, t: _kind(t) not in SERVICES),
        "with task.retriever={c.task.retriever}, which is no service",
        idle=("task.retrieval.api_key_var", "task.retrieval.timeout_s", "task.retrieval.max_retries"),
    ),
    Rule(
        _multihop(lambda c, t: t.retrieval.scope == "paragraphs"),
        "with task.retrieval.scope=paragraphs; set task.retrieval.scope=corpus",
        idle=("task.retrieval.corpus", "task.retrieval.index_dir"),
    ),
    Rule(
        _multihop(lambda c, t: t.retrieval.corpus is None),
        "without task.retrieval.corpus",
        idle=("task.retrieval.index_dir",),
    ),
    Rule(
        _multihop(lambda c, t: t.retrieval.scope == "corpus"),
        "with task.retrieval.scope=corpus, where the question's own paragraphs are not searched",
        idle=("task.noise_rate", "task.eval_noise_rate"),
    ),
    Rule(
        _multihop(lambda c, t: "retrieve_documents" not in t.tools),
        "where task.tools has no retrieve_documents",
        idle=("task.retriever", "task.top_n", "task.max_top_n"),
    ),
)

PROGRESS_RULES = (
    Rule(
        _shapes_nothing,
        "task.progress_coef: shapes the reward of each turn, and algorithm={c.algorithm.name} gives all tokens of an "
        "episode one advantage; choose algorithm=ppo or algorithm=reinforce_pp, or set it to 0.",
    ),
    Rule(
        lambda c: _shaped_beside(c) is not None,
        "evaluation.also: task.progress_coef has no effect on a task that is only evaluated; leave it out.",
    ),
)
