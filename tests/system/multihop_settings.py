"""Settings of musique, hotpotqa and wiki2, of the rewards that go with them, and of how tools are called.

No model takes part: a setting shows in the questions, in what the tools say to a scripted model, in what a service is
asked for, or in the reward. `test_multihop_settings.py` runs the table. In it `DATA/` is the task's fixtures, `OTHER/`
more data, `SERVICE/` a server, `MADE/` an empty folder.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rlvr import registry
from rlvr.config import Config
from rlvr.errors import UserError
from rlvr.models.policy import HubPolicy
from rlvr.retrieval.base import Document
from rlvr.retrieval.retriever import Retriever
from rlvr.run.tasks import make_chat
from rlvr.tasks.dataset import DatasetTask
from rlvr.types import Example, Message
from tests.system.test_data_settings import DataCase
from tests.system.test_data_settings import case as make
from tests.unit.chat.tokenizers import byte_tokenizer
from tests.unit.engines.tiny import tiny_model
from tests.unit.retrieval.test_services import Server
from tests.unit.tasks.multihop_episodes import answer, call, play, said

NAMES = ("musique", "hotpotqa", "wiki2")


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A configuration, its task, and the world around it."""

    config: Config
    task: DatasetTask
    server: Server
    folder: Path

    def example(self, hops: int = 2) -> Example:
        """The first held-out question of so many hops."""
        return next(each for each in self.task.eval_examples(100) if each.metadata["hops"] == hops)


Look = Callable[[Stage], Any]


# ------------------------------------------------------------------------------------------------ what can be seen


def stream(stage: Stage) -> list[str]:
    """The first examples of the training stream."""
    return [stage.task.train_example(index).id for index in range(8)]


def said_first(stage: Stage) -> list[object]:
    """What a supervised start of a pretrained model shows."""
    return [list(one.turns) for one in stage.task.demonstrations(2)]


def num_different(stage: Stage) -> int:
    return len(set(stream(stage)))


def held_out(stage: Stage) -> list[str]:
    return [example.id for example in stage.task.eval_examples(100)]


def train_documents(stage: Stage) -> int:
    """How many documents the first training question has."""
    return len(stage.task.train_example(0).metadata["documents"])


def eval_documents(stage: Stage) -> int:
    return len(stage.example().metadata["documents"])


def tool_names(stage: Stage) -> list[str]:
    return [tool["function"]["name"] for tool in stage.task.env(stage.example()).tools]


def heard(query: str, num_turns: int = 1, **arguments: Any) -> Look:
    """What a search for it finds, or why the run would end; so many times."""

    def look(stage: Stage) -> list[str]:
        search = said(call("retrieve_documents", query=query, **arguments))
        try:
            _, _, replies = play(stage.task, stage.example(), *[search] * num_turns)
        except UserError as error:
            return [str(error)]
        return [reply.content for reply in replies]

    return look


EVERYTHING = "designed born lies governed town place"


def num_found(**arguments: Any) -> Look:
    """How many documents a search brings that all of them fit."""
    return lambda stage: heard(EVERYTHING, **arguments)(stage)[0].count("Document ID: ")


def asked(what: Callable[[str, dict[str, str], dict[str, Any]], Any]) -> Look:
    """Something of the path, the headers and the body of each request that a search makes."""

    def look(stage: Stage) -> list[Any]:
        heard("town")(stage)
        return [what(*request) for request in stage.server.asked]

    return look


PATH = asked(lambda path, headers, body: path)
KEY = asked(lambda path, headers, body: headers.get("Authorization"))
MODEL = asked(lambda path, headers, body: body.get("model"))
LONGEST = asked(lambda path, headers, body: max(map(len, body["documents"])))


def made(stage: Stage) -> list[str]:
    """Folders that opening the task has made."""
    return sorted(path.name for path in stage.folder.iterdir())


def answered(stage: Stage, message: Message) -> list[str]:
    """What the environment says to a turn."""

    async def run() -> list[str]:
        env = stage.task.env(stage.example())
        await env.start()
        return [reply.content for reply in (await env.step(message)).messages]

    return asyncio.run(run())


def of_a_slow_search(stage: Stage) -> list[str]:
    """What a search of a corpus says that takes a third of a second."""
    retriever = registry.find("retriever", "bm25")
    search = retriever.search

    def slow(*given: Any) -> Any:
        time.sleep(0.3)
        return search(*given)

    with patch.object(retriever, "search", slow):
        search_call = call("retrieve_documents", query="town")
        return answered(stage, Message(role="assistant", content="", tool_calls=(search_call,)))


def without_a_call(stage: Stage) -> list[str]:
    return answered(stage, Message(role="assistant", content="Let me think."))


def potentials(stage: Stage) -> tuple[float, ...]:
    """What the advantages within an episode are shaped by: before a search and after one that found everything."""
    search = said(call("retrieve_documents", query=EVERYTHING))
    score, _, _ = play(stage.task, stage.example(), search, said(answer("x")))
    return score.potentials


def prompt(stage: Stage) -> str:
    """The first prompt with its tools, as the run's chat layer renders it."""
    policy = HubPolicy(model=tiny_model("llama"), tokenizer=byte_tokenizer())
    chat = make_chat(stage.config, policy, stage.task)
    example = stage.example()
    return chat.decode(chat.encode_prompt(example.messages, stage.task.env(example).tools))


def reward(text: str, *, hops: int = 2) -> Look:
    """What an episode is worth that finds and cites one supporting document and one other, and answers `text`.

    `{gold}` in it is the right answer.
    """

    def look(stage: Stage) -> float:
        example = stage.example(hops)
        support = next(iter(example.metadata["support"]))
        other = next(each.id for each in example.metadata["documents"] if each.id not in example.metadata["support"])
        read = [call("get_document", doc_id=name) for name in (support, other)]
        last = answer(text.replace("{gold}", example.answer), (support, other))
        score, _, _ = play(stage.task, example, said(*read), said(last))
        assert score.status == "scored"
        return score.value

    return look


class OneOf(Retriever):
    """A retriever of one's own with a setting: it always finds the same document."""

    place: int = 0

    def search(self, query: str, documents: Sequence[Document], top_n: int) -> list[Document]:
        return [documents[self.place]]


# ----------------------------------------------------------------------------------------------------- the table

CORPUS = ("task.retrieval.scope=corpus", "task.retrieval.corpus=OTHER/corpus.jsonl", "task.retrieval.index_dir=MADE")
RERANK = ("task.retriever=rerank", "task.retrieval.rerank_url=SERVICE/one", "task.retrieval.max_retries=0")
SEARCH = ("task.retriever=search", "task.retrieval.scope=corpus", "task.retrieval.search_url=SERVICE/one", RERANK[2])
MIXED = ("task.train_sets='OTHER,hops'", "task.eval_sets='OTHER,hops_too'")
LISTED = (
    "prompt.system=null",
    "prompt.user='{question} {documents}'",
    "task.noise_rate=0.5",
    "task.eval_noise_rate=0.5",
)
"""Prompts of 16 to 34 words."""

NO_LIST = "[retrieve_documents,get_document,complete]"
NUMBERS = ("task.eval_sets='DATA,dev;OTHER,numbers'",)
"""Beside the others, a question of 5 hops whose answer is 7."""


def _of_task(name: str) -> list[DataCase]:
    """Every key of a multi-hop task."""

    def case(key: str, a: Any, b: Any, look: Look, *base: str) -> DataCase:
        return make(f"task.{key}", a, b, look, f"task={name}", *base)

    def of_retrieval(key: str, a: Any, b: Any, look: Look, *base: str) -> DataCase:
        return case(f"retrieval.{key}", a, b, look, *base)

    return [
        case("train_sets", "'DATA,train'", "'DATA,train[:3]'", num_different),
        case("eval_sets", "'DATA,dev'", "'DATA,dev[2:5]'", held_out),
        case("retriever", "bm25", "golden", heard("town")),
        case("top_n", 2, 3, num_found()),
        case("max_top_n", 5, 1, num_found(top_n=20), "task.top_n=1"),
        case("tools", "[retrieve_documents,get_document,list_documents,complete]", NO_LIST, tool_names),
        case("max_turns", 10, 2, heard("town", num_turns=2)),
        case("no_call", "end", "remind", without_a_call),
        case("tool_timeout_s", 120.0, 0.1, of_a_slow_search, *CORPUS),
        case("noise_rate", 1.0, 0.0, train_documents),
        case("eval_noise_rate", 1.0, 0.0, eval_documents),
        case("hops", "null", "[2]", num_different, *MIXED),
        case("eval_order", "random", "balanced", held_out, *MIXED),
        case("curriculum", "none", "hops", stream, *MIXED),
        case("progress_coef", 0.0, 0.5, potentials, "algorithm=ppo"),
        case("max_train_examples", "null", 3, num_different),
        case("max_prompt_tokens", "null", 22, held_out, *LISTED),
        case("demonstration_field", "null", "question", said_first, "warm_start.enabled=true"),
        of_retrieval("scope", "corpus", "paragraphs", heard("town"), *CORPUS),
        of_retrieval("corpus", "OTHER/corpus.jsonl", "OTHER/larger.jsonl", heard("zebra"), *CORPUS),
        of_retrieval("index_dir", "MADE/one", "MADE/two", made, *CORPUS),
        of_retrieval("stem", "true", "false", heard("designing")),
        of_retrieval("remove_stop_words", "true", "false", heard("was by")),
        of_retrieval("rerank_url", "SERVICE/one", "SERVICE/two", PATH, *RERANK),
        of_retrieval("search_url", "SERVICE/one", "SERVICE/two", PATH, *SEARCH),
        of_retrieval("api_key_var", "null", "RLVR_TEST_KEY", KEY, *RERANK),
        of_retrieval("api_key_var", "null", "RLVR_TEST_KEY", KEY, *SEARCH),
        of_retrieval("service_model", "null", "large", MODEL, *RERANK),
        of_retrieval("timeout_s", 10.0, 0.1, heard("town"), *RERANK, "task.retrieval.rerank_url=SERVICE/slow"),
        of_retrieval("max_retries", 0, 1, heard("town"), *SEARCH, "task.retrieval.search_url=SERVICE/flaky"),
        of_retrieval("max_document_chars", 8000, 10, LONGEST, *RERANK),
        of_retrieval("own", "{place: 0}", "{place: 1}", heard("town"), f"task.retriever={__name__}:OneOf"),
    ]


def _of_part(kind: str, more: str, *rows: tuple[str, Any, Any, Look], hops: int = 2) -> list[DataCase]:
    """Cases of a part `x` of that type, beside MuSiQue's own; its weight, by a question of `hops`, is among them."""
    line = f"+reward.parts.x={{type: {kind}, weight: 1.0{more}}}"
    found = [("weight", 1.0, 2.0, reward("{gold}", hops=hops)), *rows]
    return [make(f"reward.parts.x.{key}", a, b, look, "task=musique", line, *NUMBERS) for key, a, b, look in found]


HALF, WORDS, FOUR = reward("about {gold}"), reward("seven", hops=5), reward("{gold}", hops=4)
SHARES = (("metric", "recall", "f1", FOUR), ("metric", "precision", "f1", FOUR))
PARTS = [
    *_of_part(
        "answer",
        ", metric: em, hop_weight: none, number_words: true",
        ("metric", "em", "f1", HALF),
        ("hop_weight", "none", "linear", FOUR),
        ("hop_weight", "capped", "linear", FOUR),
        ("number_words", "true", "false", WORDS),
    ),
    *_of_part("retrieval", ", metric: f1", *SHARES),
    *_of_part("citation", ", metric: f1", *SHARES),
    *_of_part("completion", ""),
    *_of_part("hops", ""),
    *_of_part("hop_answers", "", hops=5),  # it has a decomposition
    *_of_part(
        "combined",
        ", formula: spec, number_words: true",
        ("formula", "spec", "later", FOUR),
        ("number_words", "true", "false", WORDS),
    ),
]

PROMPT = [make("prompt.tool_format", "hermes", "llama", prompt, f"task={name}") for name in NAMES]
MULTIHOP_CASES = [*(case for name in NAMES for case in _of_task(name)), *PARTS, *PROMPT]
