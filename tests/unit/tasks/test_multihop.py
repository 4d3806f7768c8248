"""Episodes of multi-hop tasks: the tools, what they leave behind, how they end, what bad calls do."""

import asyncio
import math
from dataclasses import replace
from typing import Any

import pytest

from rlvr.chat.formats import FORMATS, read_message
from rlvr.errors import UserError
from rlvr.reasoning import THINK
from rlvr.retrieval.base import Document, NoAnswerError, RetrievalError
from rlvr.retrieval.retriever import Retriever
from rlvr.tasks.dataset import DatasetTask
from rlvr.tasks.multihop import MAX_LISTED, render, titles
from rlvr.types import Example, StopReason, ToolCall
from tests.unit.tasks.data_tasks import real_data
from tests.unit.tasks.multihop_episodes import FOLDERS, answer, call, corpus, episode, make_qa, play, said, solve


@pytest.fixture(scope="module")
def task() -> DatasetTask:
    return make_qa(max_top_n=3, top_n=1)


@pytest.fixture(scope="module")
def example(task: DatasetTask) -> Example:
    return task.eval_examples(1)[0]


def heard(task: DatasetTask, *calls: ToolCall) -> str:
    """What the tools say to one turn of calls."""
    _, _, messages = play(task, task.eval_examples(1)[0], said(*calls), said(answer("?")))
    return "\n---\n".join(message.content for message in messages)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "scope", "num"),
    [
        ("musique", "paragraphs", 147 + 100),
        ("hotpotqa", "paragraphs", 275 + 200),
        ("wiki2", "paragraphs", 459 + 500),
        ("musique", "corpus", 147),
        ("hotpotqa", "corpus", 377),
        ("wiki2", "corpus", 459),
    ],
)
def test_pitfall_28_golden_retrieval_gets_full_marks(name: str, scope: str, num: int, tmp_path: Any) -> None:
    """On every question of the real data."""
    folder = real_data(FOLDERS[name])
    retrieval = {"scope": scope}
    if scope == "corpus":
        retrieval |= {"corpus": str(folder / "corpus.jsonl.gz"), "index_dir": str(tmp_path)}
    task = make_qa(name, folder, retriever="golden", retrieval=retrieval)
    examples = task.eval_examples(10_000)
    if scope == "paragraphs":
        assert task.sizes is not None
        examples += [task.train_example(index) for index in range(task.sizes[0])]
    assert len({example.id for example in examples}) == len(examples) == num

    async def run() -> list[str]:
        bad = []
        for example in examples:
            score, grade, _ = await episode(task, example, solve(example))
            paid = {key: value for key, value in score.parts.items() if key != "combined"}
            found = (score.diagnostics[f"{scope}_recall"], score.diagnostics["answer_em"])
            if not grade.correct or set(paid.values()) != {1.0} or found != (1.0, 1.0) or score.status != "scored":
                bad.append(f"{example.id}: {score}")
        return bad

    assert asyncio.run(run()) == []


@pytest.mark.parametrize("name", ["musique", "hotpotqa", "wiki2"])
def test_every_gold_and_alias_passes_its_own_verifier(name: str) -> None:
    task = make_qa(name)
    for example in task.eval_examples(100):
        for gold in (example.answer, *example.metadata["aliases"]):
            score, grade, _ = play(task, example, said(answer(gold)))
            assert (grade.correct, score.parts["em"], score.parts["f1"]) == (True, 1.0, 1.0)


def test_documents_are_shown_with_id_title_and_text(task: DatasetTask, example: Example) -> None:
    first, second = example.metadata["documents"][:2]
    assert heard(task, call("get_document", doc_id=first.id)) == (
        f"Document ID: {first.id}\n# {first.title}\n{first.text}"
    )
    found = heard(task, call("retrieve_documents", query=f"{first.text} {second.text}", top_n=3))
    blocks = found.split("\n\n")
    assert len(blocks) == 3
    assert all(block.startswith("Document ID: ") and block.split("\n")[1].startswith("# ") for block in blocks)
    listed = heard(task, call("list_documents"))
    assert listed.splitlines() == [f"{each.id}. {each.title}" for each in example.metadata["documents"]]


def test_pitfall_28_what_an_episode_finds_is_no_other_s(tmp_path: Any) -> None:
    """Documents of the corpus that support the answer are noted where they are read, not in the question's own."""
    task = make_qa(retriever="golden", retrieval=corpus(index_dir=str(tmp_path)))
    example = task.eval_examples(1)[0]
    before = dict(example.metadata["support"])
    first, second = (task.environments.notes(example) for _ in range(2))  # type: ignore[attr-defined]
    play(task, example, *solve(example))
    assert dict(example.metadata["support"]) == before
    first.support["another"] = "fact"
    assert "another" not in second.support


def test_the_tools_count_towards_the_length_of_a_prompt() -> None:
    """Each of the 3 schemas or more is a token, and so is the prompt."""
    task = make_qa()
    num = len(task.environments.tools)
    task.limit_prompts(lambda messages, tools=(): 1 + len(tools), 1 + num)
    with pytest.raises(UserError, match=f"have more than {num} tokens"):
        task.limit_prompts(lambda messages, tools=(): 1 + len(tools), num)


def test_pitfall_28_top_n_is_bounded_and_has_a_default(task: DatasetTask) -> None:
    query = f"{task.eval_examples(1)[0].messages[-1].content} town people place"
    for asked, shown in (({}, 1), ({"top_n": 2}, 2), ({"top_n": 10**30}, 3), ({"top_n": -5}, 1)):
        found = heard(task, call("retrieve_documents", query=query, **asked))
        assert found.count("Document ID") == shown


def test_the_tools_have_exact_schemas() -> None:
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in make_qa().environments.tools}
    kinds = {name: {key: value["type"] for key, value in it["properties"].items()} for name, it in schemas.items()}
    assert kinds == {
        "retrieve_documents": {"query": "string", "top_n": "integer"},
        "get_document": {"doc_id": "string"},
        "list_documents": {},
        "complete": {"reasoning": "string", "final_answer": "string", "cited_doc_ids": "array"},
    }
    assert schemas["complete"]["required"] == ["reasoning", "final_answer", "cited_doc_ids"]
    assert schemas["complete"]["properties"]["cited_doc_ids"]["items"] == {"type": "string"}
    assert schemas["retrieve_documents"]["required"] == ["query"]


def test_pitfall_28_found_documents_count_once_in_order(task: DatasetTask) -> None:
    notes = task.environments.notes(task.eval_examples(1)[0])
    tools = {tool.name: tool for tool in task.environments.toolbox}

    async def run() -> None:
        for doc_id in ("2", "0", "2", "77"):
            await tools["get_document"].call({"doc_id": doc_id}, notes)
        await tools["list_documents"].call({}, notes)

    asyncio.run(run())
    assert list(notes.retrieved) == ["2", "0"]


def test_documents_can_be_read_anew(task: DatasetTask, example: Example) -> None:
    notes = task.environments.notes(example)
    first, second = example.metadata["documents"][:2]
    asked = example.messages[-1].content
    prompt = notes.reading((second.id, first.id))
    assert prompt is not None
    assert prompt[:-1] == example.messages[:-1]
    assert prompt[-1].content == f"{asked}\n\n{render(second)}\n\n{render(first)}"
    assert notes.reading(()) == example.messages
    assert notes.reading((first.id, "no such document")) is None


def test_pitfall_07_episodes_of_one_example_share_nothing(task: DatasetTask, example: Example) -> None:
    supporting = tuple(example.metadata["support"])
    fetch = said(*(call("get_document", doc_id=name) for name in supporting))

    async def run() -> tuple[float, float]:
        reader, guesser = await asyncio.gather(
            episode(task, example, [fetch, said(answer("?"))]), episode(task, example, [said(answer("?"))])
        )
        return reader[0].parts["recall"], guesser[0].parts["recall"]

    assert asyncio.run(run()) == (1.0, 0.0)


@pytest.mark.parametrize("turn", [0, 1, 2])
def test_pitfall_28_complete_answers_in_any_turn(task: DatasetTask, example: Example, turn: int) -> None:
    turns = [said(call("list_documents")) for _ in range(3)]
    turns[turn] = said(call("list_documents"), answer(example.answer, tuple(example.metadata["support"])))
    score, grade, _ = play(task, example, *turns)
    assert grade.correct
    assert score.parts["em"] == score.parts["citation"] == 1.0
    assert score.diagnostics["turns"] == turn + 1


def test_pitfall_14_only_complete_in_a_whole_turn_answers(task: DatasetTask, example: Example) -> None:
    score, grade, _ = play(task, example, said(text=example.answer))
    assert (grade.answer, score.status, score.parts["em"], score.parts["format"]) == (None, "invalid", 0.0, 0.0)
    score, grade, _ = play(task, example, said(answer(example.answer), stop_reason=StopReason.LENGTH))
    assert (score.status, grade.correct, score.trace) == ("invalid", False, ())


@pytest.mark.parametrize(
    ("made", "answered", "form"),
    [
        (answer(1984, ("0",)), "1984", 2 / 3),
        (answer(2.50, ("0",)), "2.5", 2 / 3),
        (answer("Oslo", [0, 2]), "Oslo", 2 / 3),
        (answer("Oslo", "0"), "Oslo", 2 / 3),
        (answer("Oslo", 3), "Oslo", 2 / 3),
        (answer("Oslo", '["0", "2"]'), "Oslo", 2 / 3),
        (call("complete", final_answer="Oslo"), "Oslo", 1 / 3),
        (answer("Oslo", ("0",), reasoning=7), "Oslo", 2 / 3),
    ],
)
def test_pitfall_28_wrong_argument_types_cost_format_only(
    task: DatasetTask, example: Example, made: ToolCall, answered: str, form: float
) -> None:
    score, grade, messages = play(task, replace(example, answer=answered), said(made))
    assert grade.correct
    assert messages == []  # the episode ended
    assert score.parts["format"] == pytest.approx(form)


@pytest.mark.parametrize(
    "made",
    [
        answer(None),
        answer(["Oslo"]),
        answer(math.nan),
        answer("Oslo", [["0"]]),
        answer("Oslo", reasoning=None),
        call("complete", reasoning="so", cited_doc_ids=["0"]),
        call("complete", final_answer="Oslo", confidence=1),
        call("complete"),
        ToolCall(id="c", name="complete", arguments={}, problem="the arguments are no JSON object"),
    ],
    ids=str,
)
def test_unreadable_calls_are_answered_and_not_final(task: DatasetTask, example: Example, made: ToolCall) -> None:
    score, grade, (message,) = play(task, example, said(made), said(answer(example.answer)))
    assert message.content.startswith("Error: ")
    assert (grade.correct, score.diagnostics["tool_errors"]) == (True, 1)
    left, unanswered, _ = play(task, example, said(made))
    assert (left.status, unanswered.answer) == ("invalid", None)


def test_pitfall_28_cited_ids_are_whole_and_unknown_ones_cost(task: DatasetTask, example: Example) -> None:
    right = tuple(example.metadata["support"])
    score, _, _ = play(task, example, said(answer("x", (*right, "99", "none", *right))))
    assert score.diagnostics["citation_precision"] == len(right) / (len(right) + 2)
    assert score.diagnostics["citation_recall"] == 1.0
    example = replace(example, metadata={**example.metadata, "support": {"1": "1", "2": "2"}, "num_support": 2})
    for cited, share in (("12", 0.0), (["12"], 0.0), ([12], 0.0), (12, 0.0), ("1, 2", 1.0)):
        score, _, _ = play(task, example, said(answer("x", cited)))
        assert score.parts["citation"] == share


class Scripted(Retriever):
    """A knowledge base that nobody has a copy of: finds the same for every query, fails, or never answers."""

    is_local = False
    _finds: Any = None

    async def search(self, query: str, documents: Any, top_n: int) -> Any:
        if isinstance(self._finds, Exception):
            raise self._finds
        if self._finds is None:
            await asyncio.Event().wait()
        return self._finds[:top_n]


def with_retriever(finds: Any, **changes: Any) -> Any:
    task: Any = make_qa(**changes)
    task.environments._retriever = Scripted()
    task.environments._retriever._finds = finds
    return task


NO_ANSWER = NoAnswerError("the service at http://secret does not answer.")


@pytest.mark.parametrize(
    ("finds", "said_of_it", "counted"),
    [
        (None, "timed out after 0.05 s", "tool_timeouts"),
        (NO_ANSWER, "the search service does not answer; try again", "tool_errors"),
    ],
    ids=["hangs", "does not answer"],
)
def test_a_search_without_an_answer_is_told_and_counted(finds: Any, said_of_it: str, counted: str) -> None:
    task = with_retriever(finds, tool_timeout_s=0.05)
    example = task.eval_examples(1)[0]
    search = said(call("retrieve_documents", query="town"))
    score, grade, messages = play(task, example, search, said(answer(example.answer)))
    assert said_of_it in messages[0].content
    assert (grade.correct, score.diagnostics[counted]) == (True, 1)


@pytest.mark.parametrize(
    ("error", "said_of_it"),
    [(RetrievalError("the service is down: start it."), "start it"), (KeyError("no index"), "KeyError")],
)
def test_pitfall_26_a_failing_search_ends_the_run(error: Exception, said_of_it: str) -> None:
    task = with_retriever(error)
    with pytest.raises(RetrievalError, match=said_of_it):
        play(task, task.eval_examples(1)[0], said(call("retrieve_documents", query="town")))


def test_in_a_corpus_documents_have_the_ids_of_the_corpus(tmp_path: Any) -> None:
    task = make_qa(retrieval=corpus(index_dir=str(tmp_path)), max_top_n=9)
    example = task.eval_examples(1)[0]
    ids = set(example.metadata["support"])
    assert all(name.startswith("m") for name in ids)
    assert len(ids) == example.metadata["hops"]
    fetch = said(*(call("get_document", doc_id=name) for name in sorted(ids)))
    listing = said(call("list_documents"))
    _, _, messages = play(task, example, listing, fetch, listing, said(answer("x")))
    assert messages[0].content.startswith("There are ")
    assert messages[0].content.endswith("Found so far:\nnone")
    assert len(messages[-1].content.splitlines()) == 1 + len(ids)


def test_pitfall_28_the_oracle_gives_all_that_supports() -> None:
    task = make_qa(retriever="golden", top_n=1)
    example = max(task.eval_examples(100), key=lambda each: len(each.metadata["support"]))
    num = len(example.metadata["support"])
    assert num > 1
    for asked, found in (({}, num), ({"top_n": 1}, 1)):
        score, _, _ = play(task, example, said(call("retrieve_documents", query="x", **asked)), said(answer("x")))
        assert score.diagnostics["paragraphs_recall"] == pytest.approx(found / num)


def test_support_from_an_external_service_is_known_once_found() -> None:
    task = with_retriever([], retriever="search", retrieval={"scope": "corpus", "search_url": "http://127.0.0.1:1/"})
    example = task.eval_examples(1)[0]
    (title, text), *_ = list(example.metadata["wanted"])
    supports = Document(id="en:7", title=title, text=text)
    task.environments._retriever._finds = [supports, Document(id="en:8", title=title, text="Something else.")]
    search = said(call("retrieve_documents", query="town", top_n=2))
    fetch = said(call("get_document", doc_id="en:8"))
    score, _, messages = play(task, example, search, fetch, said(answer("x", ("en:7",))))
    assert [(m.role, m.name, m.call_id) for m in messages][1] == ("tool", "get_document", "call_0")
    assert "Something else." in messages[1].content
    assert score.diagnostics["corpus_recall"] == 1 / example.metadata["hops"]
    assert score.diagnostics["corpus_precision"] == 0.5
    assert score.diagnostics["citation_precision"] == 1.0
    steps = [(step.id, step.ok) for step in score.trace if step.kind in ("document", "cite")]
    assert steps == [("en:7", True), ("en:8", False), ("en:8", False), ("en:7", True)]


def test_progress_is_the_potential_of_each_turn() -> None:
    task = make_qa(progress_coef=0.5)
    example = next(each for each in task.eval_examples(100) if each.metadata["hops"] == 2)
    first, second = example.metadata["support"]
    fetch = [said(call("get_document", doc_id=name)) for name in (first, second)]
    score, _, _ = play(task, example, *fetch, said(answer("x")))
    assert score.potentials == (0.0, 0.25, 0.5)
    without, _, _ = play(make_qa(), example, *fetch, said(answer("x")))
    assert without.potentials == ()
    assert without.value == score.value


def test_answers_in_the_text_of_the_last_turn() -> None:
    tools = ("retrieve_documents", "get_document", "list_documents")
    task = make_qa(prompt="musique_tags", tools=tools)
    example = task.eval_examples(1)[0]
    ids = ", ".join(example.metadata["support"])
    text = f"<think>It follows.</think>\n<cite>{ids}</cite>\n<answer>{example.answer}</answer>"
    score, grade, _ = play(task, example, said(call("get_document", doc_id="0")), said(text=text))
    assert grade.correct
    assert score.parts["em"] == score.parts["citation"] == score.parts["format"] == 1.0
    without, _, _ = play(task, example, said(text=f"<think>So.</think><answer>{example.answer}</answer>"))
    assert (without.parts["em"], without.parts["citation"]) == (1.0, 0.0)
    assert without.parts["format"] == pytest.approx(2 / 3)
    none, nothing, _ = play(task, example, said(text=f"I think {example.answer}"))
    assert (none.status, nothing.answer) == ("invalid", None)


@pytest.mark.parametrize("name", ["musique", "hotpotqa", "wiki2"])
def test_without_tools_the_paragraphs_are_in_the_prompt_and_one_completion_answers(name: str) -> None:
    prompt = {"name": "plain", "user": "{paragraphs}\n\n{question}"}
    task = make_qa(name, tools=[], noise_rate=0.0, eval_noise_rate=0.0, prompt=prompt, reward="text")
    for example in task.eval_examples(3):
        documents = example.metadata["documents"]
        assert {document.id for document in documents} == set(example.metadata["support"])
        for document in documents:
            shown = f"Document ID: {document.id}\n# {document.title}\n{document.text}\n\n"
            assert shown in example.messages[-1].content
        score, grade, heard = play(task, example, said(text=example.answer), said(text="never said"))
        assert (score.value, grade.correct, heard) == (1.0, True, [])
        assert "tool_calls" not in score.diagnostics, "none is missing where there are no tools"
        assert not play(task, example, said(text="Nobody knows"))[1].correct
    assert all(solution.turns == (solution.example.answer,) for solution in task.solutions(3))
    tagged = make_qa(name, tools=[], prompt="musique_tags")
    for solution in tagged.solutions(3):
        assert str(solution.turns[-1]).endswith(f"<answer>{solution.example.answer}</answer>")


def test_a_question_of_the_users_own_needs_a_corpus(task: DatasetTask, tmp_path: Any) -> None:
    with pytest.raises(UserError, match=r"set task\.retrieval\.scope=corpus"):
        task.env(task.example("Who was it?"))
    searching = make_qa(retrieval=corpus(index_dir=str(tmp_path)))
    own = searching.example("Which town has people?")
    search = said(call("retrieve_documents", query="town people"))
    score, grade, messages = play(searching, own, search, said(answer("Oslo")))
    assert "Document ID: m" in messages[0].content
    assert (grade.answer, grade.correct) == ("Oslo", False)
    assert score.status == "scored"


@pytest.mark.parametrize("scope", ["paragraphs", "corpus"])
def test_a_demonstration_searches_answers_and_cites(scope: str, tmp_path: Any) -> None:
    task = make_qa(retrieval=corpus(index_dir=str(tmp_path)) if scope == "corpus" else {})
    prompt, *parts = task.demonstration(0, 1.0)
    example = next(e for e in map(task.train_example, range(8)) if prompt.endswith(e.messages[-1].content))
    tools = task.environments.tools
    turns = [read_message(text, THINK, FORMATS["hermes"], tools) for text in parts[::2]]
    score, grade, messages = play(task, example, *(said(*turn.tool_calls) for turn in turns))
    assert "retrieve_documents" in prompt
    assert [message.content for message in messages] == parts[1::2]
    assert len(turns) == 1 + example.metadata["hops"]
    assert grade.correct
    assert score.diagnostics["citation_f1"] == score.diagnostics[f"{scope}_recall"] == 1.0
    assert task.demonstration(0, 0.0) == (prompt, parts[-1])


def test_pitfall_28_an_episode_is_traced_in_order(task: DatasetTask, example: Example) -> None:
    support = example.metadata["support"]
    titles = {document.id: document.title for document in example.metadata["documents"]}
    other = next(name for name in titles if name not in support)
    unread, question = next(iter(support)), " ".join(titles.values())[:200]
    score, _, messages = play(
        task,
        example,
        said(call("retrieve_documents", query=question, top_n=2), call("list_documents")),
        said(call("retrieve_documents", query=" "), *[call("get_document", doc_id=f" {other} ")] * 2),
        said(call("get_document", doc_id="99"), call("complete")),
        said(answer("Atlantis", (unread, other, "99"))),
    )
    found = [line.removeprefix("Document ID: ") for line in messages[0].content.splitlines() if "Document ID" in line]
    shown = {*found, other}  # once, however often it was read
    assert score.diagnostics["paragraphs_precision"] == len(shown & {*support}) / len(shown)
    assert [(step.kind, step.id, step.text, step.ok, step.turn) for step in score.trace] == [
        ("query", None, question, None, 0),
        *(("document", name, titles[name], name in support, 0) for name in found),
        ("query", other, "", None, 1),
        ("document", other, titles[other], False, 1),
        ("query", other, "", None, 1),
        ("document", other, titles[other], False, 1),
        ("query", "99", "", False, 2),
        ("cite", unread, titles[unread], True, 3),
        ("cite", other, titles[other], False, 3),
        ("cite", "99", "", False, 3),
        ("answer", None, "Atlantis", False, 3),
    ]


@pytest.mark.parametrize(
    ("num", "last"),
    [
        (0, ""),
        (MAX_LISTED - 1, None),
        (MAX_LISTED, None),
        (MAX_LISTED + 1, "and 1 more"),
        (MAX_LISTED + 2000, "and 2,000 more"),
    ],
)
def test_titles_are_listed_up_to_a_number(num: int, last: str | None) -> None:
    documents = [Document(id=str(n), title=f"title {n}", text="x") for n in range(num)]
    lines = titles(documents).split("\n")
    shown = min(num, MAX_LISTED)
    assert lines[:shown] == [f"{n}. title {n}" for n in range(shown)]
    assert lines[shown:] == ([] if last is None else [last])
