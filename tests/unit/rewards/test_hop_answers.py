"""The answers of a decomposed question's hops: what counts as found, and what those get who list everything."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from rlvr.data.multihop_sets import Hop
from rlvr.data.rows import DataError
from rlvr.rewards.multihop import HOP_WORDS
from rlvr.tasks.dataset import DatasetTask
from rlvr.types import TurnText
from tests.unit.data.test_multihop_sets import parsed, save
from tests.unit.tasks.multihop_episodes import answer, call, make_qa, play, said

TITLES = ("Alien", "Ridley Scott", "Prometheus", "James Cameron", "Hans Zimmer", "Rome", "Aliens", "Vangelis")
ROW: dict[str, Any] = {
    "id": "2hop__1",
    "question": "Where was the director of Alien born?",
    "answer": "South Shields",
    "answer_aliases": ["S. Shields"],
    "paragraphs": [
        {"idx": idx, "title": title, "paragraph_text": f"{title} is known for it.", "is_supporting": idx < 2}
        for idx, title in enumerate(TITLES)
    ],
    "question_decomposition": [
        {"id": 1, "question": "Alien >> director", "answer": "Ridley Scott", "paragraph_support_idx": 0},
        {"id": 2, "question": "Where was #1 born?", "answer": "South Shields", "paragraph_support_idx": 1},
    ],
}


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> DatasetTask:
    folder = save(tmp_path_factory.mktemp("data"), [ROW | {"id": "2hop__0", "question": "Another?"}], [ROW])
    return make_qa(folder=folder, reward={"found": {"type": "hop_answers"}})


def value(task: DatasetTask, *turns: TurnText) -> float:
    (example,) = task.eval_examples(1)
    score, _, _ = play(task, example, *turns)
    assert score.parts["found"] == score.value == score.diagnostics["hop_answers"]
    return score.value


def searched(*queries: str) -> TurnText:
    return said(*(call("retrieve_documents", query=query) for query in queries))


def read(*names: int) -> TurnText:
    return said(*(call("get_document", doc_id=str(name)) for name in names))


def test_a_hop_counts_when_its_answer_is_written_and_its_document_was_read(task: DatasetTask) -> None:
    right = answer("South Shields", reasoning="So.")
    assert value(task, read(0), searched("birthplace of ridley-scott"), said(right)) == 0.5  # ridleyscott: other words
    assert value(task, read(0), searched("birthplace of Ridley Scott?"), said(right)) == 1.0
    assert value(task, read(0), said(answer("s shields", reasoning="The director is RIDLEY SCOTT."))) == 1.0
    assert value(task, read(0), said(answer("Rome", reasoning="The director is Ridley Scott."))) == 0.5
    assert value(task, read(1), said(answer("South Shields", reasoning="Ridley Scott."))) == 0.5  # not read
    assert value(task, read(0), said(answer("Rome", reasoning="Ridley Scotts."))) == 0.0
    assert value(task, read(0), said(right)) == 0.5
    assert value(task, read(0), searched("Ridley Scott")) == 0.5  # no answer in the end


def test_the_last_hop_counts_once_and_only_as_the_final_answer(task: DatasetTask) -> None:
    written = "Ridley Scott is from South Shields"
    assert value(task, read(0, 1), said(answer("Rome", reasoning=written))) == 0.5
    assert value(task, read(0, 1), said(answer("South Shields", reasoning=written))) == 1.0


def test_a_query_that_was_never_sent_says_nothing(task: DatasetTask) -> None:
    broken = replace(call("retrieve_documents", query="Ridley Scott"), problem="has no end")
    assert value(task, read(0), said(broken), said(answer("South Shields", reasoning=""))) == 0.5


def test_titles_that_belong_to_the_question_or_its_support_are_free(tmp_path: Any) -> None:
    titles = ("Alien", "Biography", "Director", "Biography", "Rome")
    paragraphs = [
        {"idx": idx, "title": title, "paragraph_text": f"{title} {idx}.", "is_supporting": idx < 2}
        for idx, title in enumerate(titles)
    ]
    row = ROW | {"paragraphs": paragraphs}
    folder = save(tmp_path, [row | {"id": "2hop__0", "question": "Another?"}], [row])
    task = make_qa(folder=folder, reward={"found": {"type": "hop_answers"}})
    for reasoning, expected in (
        ("The director is Ridley Scott", 1.0),
        ("Ridley Scott, says his biography", 1.0),  # that of another person has this title too
        ("Ridley Scott, not of Rome", 2 / 3),
    ):
        assert value(task, read(0), said(answer("South Shields", reasoning=reasoning))) == pytest.approx(expected)


def test_pitfall_17_a_list_of_all_titles_is_worth_little(task: DatasetTask) -> None:
    """Read or only listed, in a query or in the reasoning."""
    everything = ", ".join(TITLES)
    spam = [
        (read(0), searched(everything), said(answer("Rome"))),
        (read(*range(8)), said(answer("Rome", reasoning=everything))),
        (read(0), said(answer(everything, reasoning=everything))),
        (read(0), *(searched(title) for title in TITLES[1:7]), said(answer("Rome"))),
    ]
    # one of two hops, times a precision of one in six (`Alien` is in the question, and a shorter list of five)
    assert [value(task, *turns) for turns in spam] == pytest.approx([1 / 14, 1 / 14, 1 / 14, 1 / 12])
    honest = value(task, read(0), said(answer("South Shields", reasoning=everything)))
    assert honest == pytest.approx(2 / 8)
    # titles of documents that support, or of the question, cost nothing
    assert value(task, read(0), said(answer("South Shields", reasoning="Alien is by Ridley Scott"))) == 1.0


def test_pitfall_17_only_the_first_words_count(task: DatasetTask) -> None:
    """Whoever copies what was read does not come to the answer."""
    padding = " ".join(["word"] * (2 * HOP_WORDS - 2))
    assert value(task, read(0), said(answer("Rome", reasoning=f"{padding} Ridley Scott"))) == 0.5
    assert value(task, read(0), said(answer("Rome", reasoning=f"{padding} word Ridley Scott"))) == 0.0
    # queries come first, all of them, each once as often as it was sent
    assert value(task, read(0), searched(padding, "one more"), said(answer("Rome", reasoning="Ridley Scott"))) == 0.0
    assert value(task, read(0), searched("Ridley Scott"), said(answer("Rome", reasoning=padding * 9))) == 0.5


@pytest.mark.parametrize("reasoning", ["", " ", "!!!", "a the", "\ud800", "Ridley" * 100_000])
def test_no_text_is_found_in_nothing(task: DatasetTask, reasoning: str) -> None:
    assert value(task, read(0), said(answer("", reasoning=reasoning))) == 0.0


def test_the_last_turn_is_the_reasoning_of_an_answer_in_text(tmp_path: Any) -> None:
    folder = save(tmp_path, [ROW | {"id": "2hop__0", "question": "Another?"}], [ROW])
    tools = ["retrieve_documents", "get_document", "list_documents"]
    reward = {"found": {"type": "hop_answers"}}
    task = make_qa(folder=folder, tools=tools, prompt={"name": "musique_tags"}, reward=reward)
    text = "<think>Ridley Scott made it.</think> <cite>0</cite> <answer>South Shields</answer>"
    assert value(task, read(0), said(text=text)) == 1.0
    assert value(task, read(0), said(text=text.replace("Ridley", "Tony"))) == 0.5


def test_without_a_decomposition_the_part_fails_and_nothing_is_reported(tmp_path: Any) -> None:
    row = {key: value for key, value in ROW.items() if key != "question_decomposition"}
    task = make_qa(folder=save(tmp_path, [row | {"id": "2hop__0", "question": "Another?"}], [row]))
    (example,) = task.eval_examples(1)
    score, _, _ = play(task, example, said(answer("South Shields")))
    assert "answer_em" in score.diagnostics
    assert "hop_answers" not in score.diagnostics
    task = make_qa(folder=tmp_path, reward={"found": {"type": "hop_answers"}})
    score, _, _ = play(task, example, said(answer("South Shields")))
    assert score.status == "error"
    assert "the example has no question_decomposition, which MuSiQue has" in str(score.diagnostics["error"])


# ------------------------------------------------------------------------------------------------------------ the data


def with_hops(*hops: dict[str, Any]) -> dict[str, Any]:
    return ROW | {"question_decomposition": list(hops)}


def test_a_row_has_its_hops() -> None:
    hops: Sequence[Hop] = parsed(ROW).metadata["decomposition"]
    assert hops == (
        Hop(question="Alien >> director", answer="Ridley Scott", fact="0"),
        Hop(question="Where was #1 born?", answer="South Shields", fact="1"),
    )
    assert hops[0].asked([]) == "Alien director"
    assert hops[1].asked(["Ridley Scott"]) == "Where was Ridley Scott born?"
    assert hops[1].asked([]) == "Where was #1 born?"
    columns = {"question": ["Q?"], "answer": ["A"], "paragraph_support_idx": [None], "id": [3]}
    (hop,) = parsed(ROW | {"question_decomposition": columns}).metadata["decomposition"]
    assert hop == Hop(question="Q?", answer="A", fact=None)
    for missing in (None, []):
        assert parsed(ROW | {"question_decomposition": missing}).metadata["decomposition"] == ()


@pytest.mark.parametrize(
    ("hop", "words"),
    [
        ({"question": "Q?"}, r"field 'question_decomposition.0.answer' is missing"),
        ({"question": " ", "answer": "A"}, r"'question_decomposition.0.question' must be a text that is not blank"),
        (
            {"question": "Q?", "answer": "A", "paragraph_support_idx": 99},
            r"'question_decomposition' must have the idx of a paragraph as paragraph_support_idx, but is .*99",
        ),
        (
            {"question": "Q?", "answer": "A", "paragraph_support_idx": "x"},
            r"0.paragraph_support_idx' must be a valid int",
        ),
        ({"question": 3, "answer": "A"}, r"0.question' must be a valid string"),
    ],
)
def test_damaged_hops_are_refused(hop: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        parsed(with_hops(hop))
