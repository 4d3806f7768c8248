"""Tasks: where problems come from."""

from typing import Annotated, Literal

from pydantic import Field

from rlvr.config.schema.base import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Section, Share
from rlvr.config.schema.prompts import Prompt
from rlvr.config.schema.rewards import RewardConfig

Scalar = bool | int | float | str
Settings = dict[str, Scalar | tuple[Scalar, ...] | None]
ImportPath = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")]
Name = Annotated[str, Field(min_length=1)]
HeldOutShare = Annotated[float, Field(gt=0, lt=1)]
Metric = Literal["numeric", "math", "text", "exact"]


class RpnTask(Section):
    """Reverse Polish arithmetic, generated: `<boe> 4 0 1 + + = 4 1 + = 5 <eoe>`."""

    name: Literal["rpn"]
    operators: Annotated[tuple[Literal["+", "-", "*"], ...], Field(min_length=1)] = Field(
        description="operators to draw from, uniformly"
    )
    operand_range: tuple[int, int] = Field(description="smallest and largest operand, both included")
    modulus: Annotated[int, Field(ge=2, le=10_000)] | None = Field(
        description="all arithmetic modulo this; null: plain integers"
    )
    max_abs_value: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        description="plain integers only: bound on the absolute value of every intermediate result"
    )
    shape: Literal["chain", "tree"] = Field(
        description="chain: the left operand is always the running result; tree: uniform over all expression shapes"
    )
    complexity_range: tuple[PositiveInt, PositiveInt] = Field(description="fewest and most operators in an expression")
    complexity_weights: tuple[PositiveFloat, ...] | None = Field(
        description="training weights of each number of operators in complexity_range; null: uniform"
    )
    eval_complexity_weights: tuple[PositiveFloat, ...] | None = Field(
        description="the same for held-out examples; null: uniform"
    )
    held_out_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        description="share of all expressions, chosen by hash, that is never trained on"
    )
    max_prompt_tokens: PositiveInt = Field(description="longest prompt; complexity_range must fit into it")


class Limits(Section):
    """What every data task can leave out."""

    max_train_examples: PositiveInt | None = Field(description="train on the first so many only; null: all")
    max_prompt_tokens: PositiveInt | None = Field(
        description="examples whose prompt has more tokens are left out, and counted; null: whatever the context holds"
    )


class Splits(Limits):
    """A data set with splits, on the Hub or in a local folder."""

    path: Name = Field(
        description="Hub id, or a folder with <split>.jsonl, .json or either with .gz; `RLVR_DATA/<task>` if it exists"
    )
    subset: Name | None = Field(description="configuration of a Hub data set; null: its only one")
    train_split: Name = Field(description="split to train on; several are joined with +")


class Columns(Section):
    """Which fields of a row are what."""

    question_field: Name = Field(description="field with the question")
    answer_field: Name = Field(description="field with the gold answer: text, a number, or a list of accepted texts")
    id_field: Name | None = Field(description="field with the row's id, each once; null: a hash of the question")


class Judged(Section):
    """How held-out answers are judged."""

    metric: Metric = Field(
        description="numeric: equal numbers; math: equivalent expressions; text: equal after normalization; exact: "
        "equal characters"
    )


class Gsm8kTask(Splits):
    """GSM8K, arXiv:2110.14168: grade-school word problems with whole numbers as answers."""

    name: Literal["gsm8k"]
    eval_split: Name = Field(description="held-out split")
    solution_lines: PositiveInt | None = Field(
        description="demonstrations and few-shot examples show only the last so many lines of a solution; null: all"
    )


class FinqaTask(Splits):
    """FinQA, arXiv:2109.00122: questions on a page of a financial report, text and table."""

    name: Literal["finqa"]
    eval_split: Name = Field(description="held-out split")
    answer: Literal["number", "program"] = Field(
        description="what to answer with: a number or yes/no, or a program of the data set's own language"
    )


class JsonlTask(Limits, Columns, Judged):
    """A file of JSON lines (or a JSON list, either also as .gz) with a question and an answer a row."""

    name: Literal["jsonl"]
    path: Name = Field(description="the file to train on")
    eval_path: Name | None = Field(description="the held-out file; null: eval_share of the rows of path")
    eval_share: HeldOutShare = Field(description="share of the rows, chosen by hash, that is never trained on")


class HubTask(Splits, Columns, Judged):
    """Any data set of the Hub (or a local folder) with a question and an answer a row."""

    name: Literal["hub"]
    eval_split: Name | None = Field(description="held-out split; null: eval_share of the rows of train_split")
    eval_share: HeldOutShare = Field(description="share of the rows, chosen by hash, that is never trained on")


class GeneratorTask(Limits, Judged):
    """Your own Python: a function that yields examples, or arrays of token ids."""

    name: Literal["generator"]
    source: ImportPath = Field(description="module:function; called with settings, it yields examples")
    settings: Settings = Field(description="keyword arguments of the function")
    vocabulary: tuple[Name, ...] | None = Field(
        description="words of the ids in arrays, in order; null: the function yields text"
    )
    eval_share: HeldOutShare = Field(description="share of the examples, chosen by hash, that is never trained on")


class ReasoningGymTask(Limits):
    """One of the 100+ procedural tasks of the reasoning_gym library, with its own verifier."""

    name: Literal["reasoning_gym"]
    dataset: Name = Field(description="name of the task in reasoning_gym, e.g. chain_sum")
    settings: Settings = Field(description="its settings, as in reasoning_gym")


class TwoHopTask(Section):
    """A world of its own for each episode: who works where, and where that is; a tool tells one step at a time."""

    name: Literal["two_hop"]
    num_persons: PositiveInt = Field(description="persons in a world; the question asks where one of them works")
    num_organizations: PositiveInt = Field(description="organizations that they work at")
    num_cities: PositiveInt = Field(description="cities that those are in")
    held_out_share: HeldOutShare = Field(
        description="share of all (person, organization, city) chains, chosen by hash, that is never trained on"
    )
    max_turns: PositiveInt = Field(description="completions of an episode, the answer included")


class Retrieval(Section):
    """How documents are searched."""

    scope: Literal["paragraphs", "corpus"] = Field(
        description="paragraphs: the question's own; corpus: all passages of corpus"
    )
    corpus: Name | None = Field(description="file of passages (title and text), .jsonl or .json, either also .gz")
    index_dir: Name | None = Field(description="where corpus indexes are kept; null: ~/.cache/rlvr, or XDG_CACHE_HOME")
    stem: bool = Field(description="bm25 and hybrid: Snowball stems of English words")
    remove_stop_words: bool = Field(description="bm25 and hybrid: leave out Lucene's English stop words")
    rerank_url: Name | None = Field(description="rerank: address of the service; null: RERANK_API_URL")
    search_url: Name | None = Field(description="search: address of the service; null: WIKI_SEARCH_API_URL")
    api_key_var: Name | None = Field(description="rerank and search: name of the variable with the key; null: no key")
    service_model: Name | None = Field(description="rerank: model that the service is asked for; null: its own choice")
    timeout_s: PositiveFloat = Field(description="rerank and search: a request is given up after so long")
    max_retries: NonNegativeInt = Field(description="rerank and search: requests after the first failed one")
    max_document_chars: PositiveInt = Field(description="rerank: longer documents are cut")


class MultiHopTask(Limits):
    """Questions over several documents, answered by searching, reading and citing with tools."""

    train_sets: Name = Field(
        description="`path,name,split`, several joined with ;: a Hub id with its configuration, or a folder with "
        "<split>.jsonl[.gz] and no name; a split may be a slice, train[:256]"
    )
    eval_sets: Name = Field(description="the held-out ones, in the same way")
    retriever: Annotated[str, Field(pattern=r"^(bm25|lexical|semantic(/.+)?|hybrid(/.+)?|golden|rerank|search)$")] = (
        Field(
            description="bm25 (or lexical), semantic, hybrid, each of the two also with /MODEL; golden: the supporting "
            "documents, whatever is asked; rerank, search: services"
        )
    )
    top_n: PositiveInt = Field(description="documents of a search where the model does not say how many")
    max_top_n: PositiveInt = Field(description="documents of a search at most, whatever the model asks for")
    retrieval: Retrieval
    tools: tuple[Literal["retrieve_documents", "get_document", "list_documents", "complete"], ...] = Field(
        description="what the model may call"
    )
    max_turns: PositiveInt = Field(description="completions of an episode, the last one included")
    tool_timeout_s: PositiveFloat = Field(description="a call of a tool is given up after so long")
    noise_rate: Share = Field(
        description="training: share of the documents that support nothing that stays; 1: all, 0: none"
    )
    eval_noise_rate: Share = Field(description="the same for held-out questions")
    hops: tuple[PositiveInt, ...] | None = Field(description="keep questions with so many hops only; null: all")
    eval_order: Literal["random", "balanced"] = Field(
        description="held-out questions: a fair sample, or as many of each number of hops as there are, in turn"
    )
    curriculum: Literal["none", "hops"] = Field(description="hops: each pass over the data goes from few hops to many")
    progress_coef: NonNegativeFloat = Field(
        description="ppo and reinforce_pp: potential-based shaping by the share of supporting documents found; 0: none"
    )


class MusiqueTask(MultiHopTask):
    """MuSiQue, arXiv:2108.00573: questions of 2 to 4 hops, 20 paragraphs each."""

    name: Literal["musique"]


class HotpotqaTask(MultiHopTask):
    """HotpotQA, arXiv:1809.09600: questions of 2 hops, 10 paragraphs each."""

    name: Literal["hotpotqa"]


class Wiki2Task(MultiHopTask):
    """2WikiMultihopQA, arXiv:2011.01060: questions of 2 to 4 hops, 10 paragraphs each."""

    name: Literal["wiki2"]


class VerifiersTask(Limits):
    """Any environment of the verifiers library, with its own data, tools and rubric."""

    name: Literal["verifiers"]
    env_id: Name = Field(description="name of an installed environment, e.g. vf-musique")
    env_args: Settings = Field(description="keyword arguments of its load_environment")
    eval_share: HeldOutShare = Field(
        description="share of the rows, by hash, that is never trained on, where it has no evaluation set of its own"
    )
    metric: Name = Field(description="what held-out accuracy is told by: reward, or one of the environment's metrics")
    metric_threshold: float = Field(description="an episode is right where that number is this or more")


SingleTask = Annotated[
    RpnTask
    | Gsm8kTask
    | FinqaTask
    | JsonlTask
    | HubTask
    | GeneratorTask
    | ReasoningGymTask
    | TwoHopTask
    | MusiqueTask
    | HotpotqaTask
    | Wiki2Task
    | VerifiersTask,
    Field(discriminator="name"),
]


class TaskBundle(Section):
    """A task with the reward and the prompt that go with it."""

    task: SingleTask
    reward: RewardConfig
    prompt: Prompt


class MixPart(TaskBundle):
    """One task of a mix."""

    weight: PositiveFloat


class MixTask(Section):
    """Several tasks at once, each with its own reward, prompt and metrics."""

    name: Literal["mix"]
    parts: Annotated[dict[str, MixPart], Field(min_length=1)] = Field(
        description="task: weight, e.g. {gsm8k: 2, finqa: 1}; or task: {weight: 2, set: ['prompt.few_shot=2']}"
    )


TaskConfig = Annotated[
    RpnTask
    | Gsm8kTask
    | FinqaTask
    | JsonlTask
    | HubTask
    | GeneratorTask
    | ReasoningGymTask
    | TwoHopTask
    | MusiqueTask
    | HotpotqaTask
    | Wiki2Task
    | VerifiersTask
    | MixTask,
    Field(discriminator="name"),
]
