"""`rlvr retrieve QUESTIONS --decomposed`: recall of gold sub-questions and bridges, beside controls."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlvr.cli.main import main
from rlvr.commands.retrieve.decomposed import KINDS, Asked, Line, _in_turns, _recall, header, lines
from rlvr.data.multihop_sets import Hop
from rlvr.data.problems import Problem
from rlvr.evaluation.intervals import Interval
from rlvr.retrieval.base import Document
from tests.unit.tasks.data_tasks import write_jsonl

TOPICS = (("anchor", "harbor", "stone"), ("meadow", "violin", "copper"), ("lantern", "glacier", "saddle"))
CASES = [(f"{start}{n}", f"{bridge}{n}", f"{end}{n}") for n in range(2) for start, bridge, end in TOPICS]


def question(start: str, bridge: str, end: str) -> dict[str, Any]:
    """The second paragraph shares no word with the question, only with the bridge."""
    texts = [
        (f"{start} house", f"The {start} house is by {bridge}", True),
        (bridge, f"{bridge} belongs to {end}", True),
        *((f"{start} {word}", f"Of {start} and place, maker of {word}", False) for word in "abcdef"),
    ]
    return {
        "id": f"2hop__{start}",
        "question": f"What is the place of the maker of {start}?",
        "answer": end,
        "paragraphs": [
            {"idx": idx, "title": title, "paragraph_text": text, "is_supporting": supports}
            for idx, (title, text, supports) in enumerate(texts)
        ],
        "question_decomposition": [
            {"question": f"{start} house >> is by", "answer": bridge, "paragraph_support_idx": 0},
            {"question": "Whose is #1 ?", "answer": end, "paragraph_support_idx": 1},
        ],
    }


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "questions.jsonl", [question(*case) for case in CASES])


def asked(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["retrieve", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err


def found(capsys: pytest.CaptureFixture[str], *words: object) -> dict[tuple[str, str], dict[str, Any]]:
    code, out, err = asked(capsys, *words, "--decomposed", "--json")
    assert code == 0, err
    rows = [json.loads(line) for line in out.splitlines()]
    return {(row["scope"], row["queries"]): row for row in rows}


def test_bridges_find_what_the_question_does_not(questions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = found(capsys, questions)
    at_2 = {queries: row["recall_2"] for (_, queries), row in rows.items()}
    assert at_2["sub-questions"] == 1.0
    assert at_2["the whole question"] <= 0.5
    assert at_2["sub-questions without bridges"] <= 0.5
    assert at_2["control: another question's sub-questions"] <= 0.5  # `house is by`
    assert rows["paragraphs", "the whole question, and bridges"]["recall_5"] >= 0.5
    assert rows["paragraphs", "the whole question"]["gain_5"] is None
    gain = rows["paragraphs", "sub-questions"]
    value, low, high = gain["gain_5"]
    assert value == pytest.approx(gain["recall_5"] - rows["paragraphs", "the whole question"]["recall_5"], abs=1e-3)
    assert low <= value <= high
    assert gain["recall_5_by_hops"] == {"2": 1.0}


def test_what_is_asked_for_never_has_the_last_answer() -> None:
    hops = (Hop(question="Alien >> director", answer="Scott"), Hop(question="Where was #1 born?", answer="Leeds"))
    other = (Hop(question="Rome >> river", answer="Tiber"), Hop(question="How long is #1 ?", answer="405 km"))
    asked = Asked(question="Where?", hops=hops, other=other, best=lambda query: f"best of {query}")
    assert {name: list(queries(asked)) for name, queries in KINDS.items()} == {
        "the whole question": ["Where?"],
        "sub-questions": ["Alien director", "Where was Scott born?"],
        "sub-questions without bridges": ["Alien director", "Where was born?"],
        "sub-questions, bridge: best title": ["Alien director", "Where was best of Alien director born?"],
        "the whole question, and bridges": ["Where?", "Scott"],
        "control: another question's sub-questions": ["Rome river", "How long is ?"],
        "control: the whole question, and another's bridges": ["Where?", "Tiber"],
    }


def test_a_passage_that_a_corpus_has_twice_is_one_to_find(
    questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"id": f"{case[0]} {one['idx']} {copy}", "title": one["title"], "text": one["paragraph_text"]}
        for case in CASES
        for one in question(*case)["paragraphs"][:2]
        for copy in range(2)
    ]
    corpus = write_jsonl(tmp_path / "corpus.jsonl", rows)
    both = found(capsys, questions, "--corpus", corpus, "--index-dir", tmp_path / "indexes")
    assert both["corpus", "sub-questions"]["recall_10"] == 1.0


def test_a_corpus_is_searched_too(questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"title": one["title"], "text": one["paragraph_text"]}
        for case in CASES
        for one in question(*case)["paragraphs"]
    ]
    corpus = write_jsonl(tmp_path / "corpus.jsonl", rows)
    more = ("--corpus", corpus, "--index-dir", tmp_path / "indexes")
    both = found(capsys, questions, *more)
    assert [scope for scope, _ in both] == ["paragraphs"] * 7 + ["corpus"] * 7
    assert both["corpus", "sub-questions"]["recall_2"] == 1.0
    assert both["corpus", "control: another question's sub-questions"]["recall_10"] < 0.5
    code, out, err = asked(capsys, questions, "--decomposed", *more)
    assert code == 0
    assert len(out.splitlines()) == 16
    assert out.startswith(
        "| searched | queries | R@2 | R@5 | R@10 | R@5 against the whole question, 95 % | R@5, 2 hops |"
    )
    assert err.count(": 6 questions") == 2


def test_questions_whose_passages_are_missing_are_noted(
    questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"title": one["title"], "text": one["paragraph_text"]}
        for case in CASES[:2]
        for one in question(*case)["paragraphs"]
    ]
    corpus = write_jsonl(tmp_path / "corpus.jsonl", rows)
    code, _, err = asked(capsys, questions, "--decomposed", "--corpus", corpus, "--index-dir", tmp_path)
    assert code == 0
    assert "corpus: 2 questions; 4 question rows have supporting paragraphs that are not in the corpus: left out" in err


@pytest.mark.parametrize(
    ("keep", "said"),
    [
        (0, "0 of 6 questions have a question_decomposition; --decomposed needs two questions with one, as in MuSiQue"),
        (1, "questions.jsonl: 1 of 6 questions have a question_decomposition"),
    ],
)
def test_files_without_decompositions_are_refused(
    keep: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [question(*case) for case in CASES]
    for row in rows[keep:]:
        del row["question_decomposition"]
    code, out, err = asked(capsys, write_jsonl(tmp_path / "questions.jsonl", rows), "--decomposed")
    assert (code, out) == (1, "")
    assert said in err
    assert err.count("\n") == 1


def test_other_files_and_options_are_refused(
    questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = write_jsonl(tmp_path / "corpus.jsonl", [{"title": "A", "text": "b"}])
    for words, code, said in (
        ((corpus, "--decomposed"), 1, "field 'answer' is missing; there are 'title', 'text'"),
        ((tmp_path / "none.jsonl", "--decomposed"), 2, "there is no file"),
        ((questions, "--decomposed", "--retriever", "golden"), 2, "cannot search a corpus by itself"),
        ((questions, "--decomposed", "--corpus", tmp_path / "none.jsonl"), 2, "there is no file"),
        ((questions, "--decomposed", "--top-n", "3"), 2, "--top-n goes with --query"),
        ((corpus, "--query", "b", "--corpus", corpus), 2, "--corpus goes with --decomposed"),
        ((corpus, "--serve", "--json"), 2, "--json goes with --query or --decomposed"),
    ):
        got, out, err = asked(capsys, *words)
        assert (got, out) == (code, ""), words
        assert said in err, words


def problem(*supporting: str, num_support: int, hops: int = 2) -> Problem:
    hop = (Hop(question="a >> b", answer="c"),) * hops
    documents = [Document(id=name, title=name, text=name) for name in "abcdefghijkl"]
    support = {name: name.upper() for name in supporting}
    facts = {"documents": documents, "support": support, "num_support": num_support, "decomposition": hop, "hops": hops}
    return Problem(id=f"{supporting}", key=b"", question="q", answer="c", metadata=facts)


def test_documents_of_several_queries_are_taken_in_turns() -> None:
    a, b, c, d = (Document(id=name, title="", text="") for name in "abcd")
    assert _in_turns([[a, b, c], [b], [d, a]]) == ["a", "b", "d", "c"]
    assert _in_turns([[], [c]]) == ["c"]


def test_recall_is_the_share_of_the_support_that_is_found() -> None:
    one = problem("a", "b", num_support=4)
    assert _recall(["a", "z", "b"], one) == 0.5
    assert _recall(["z"], one) == 0.0


class InOrder:
    """Finds the documents in their order, whatever is asked."""

    corpus = None

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    async def ranked(self, query: str, documents: Sequence[Document], top_n: int) -> list[Any]:
        self.asked.append((query, top_n))
        return [SimpleNamespace(document=document) for document in documents[:top_n]]


def test_recall_is_counted_at_two_five_and_ten_documents() -> None:
    """The second, third, fifth, sixth, tenth and eleventh of twelve; of another question with three hops the first."""
    retriever: Any = InOrder()
    questions = [problem("b", "c", "e", "f", "j", "k", num_support=6), problem("a", num_support=1, hops=3)]
    found = lines("paragraphs", retriever, questions)
    assert found[0].recall == ((1 / 6 + 1) / 2, (3 / 6 + 1) / 2, (5 / 6 + 1) / 2)
    assert found[0].by_hops == {2: 0.5, 3: 1.0}
    assert [one.queries for one in found] == list(KINDS)
    assert [one.gain is None for one in found] == [True, *[False] * 6]
    assert len(retriever.asked) == len(set(retriever.asked)) + 3  # each query once for each of the two questions
    assert {top_n for _, top_n in retriever.asked} == {10}
    assert header(found) == (
        "| searched | queries | R@2 | R@5 | R@10 | R@5 against the whole question, 95 % | R@5, 2 hops | R@5, 3 hops |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    assert found[0].as_row() == "| paragraphs | the whole question | 0.583 | 0.750 | 0.917 |  | 0.500 | 1.000 |"


def test_a_line_has_the_gain_with_its_interval() -> None:
    gain = Interval(value=0.12346, low=-0.25, high=0.5)
    one = Line(scope="corpus", queries="q", recall=(0.11115, 0.5, 1.0), gain=gain, by_hops={2: 0.33339})
    assert one.as_row() == "| corpus | q | 0.111 | 0.500 | 1.000 | +0.123 [-0.250, +0.500] | 0.333 |"
    assert one.as_json() == {
        "scope": "corpus",
        "queries": "q",
        **{"recall_2": 0.1111, "recall_5": 0.5, "recall_10": 1.0},
        "gain_5": [0.1235, -0.25, 0.5],
        "recall_5_by_hops": {"2": 0.3334},
    }


def test_controls_are_of_the_question_half_a_round_away() -> None:
    retriever: Any = InOrder()
    questions = [
        replace(problem("a", num_support=1), metadata={**problem("a", num_support=1).metadata, "decomposition": hops})
        for hops in ((Hop(question=f"{name}", answer="x"), Hop(question="y", answer="z")) for name in "klmn")
    ]
    lines("paragraphs", retriever, questions)
    asked = [{query for query, _ in retriever.asked[start : start + 5]} for start in range(0, 20, 5)]
    assert asked == [{"q", "x", "y", *pair} for pair in ("km", "ln", "mk", "nl")]
