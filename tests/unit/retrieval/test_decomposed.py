"""`rlvr retrieve QUESTIONS --decomposed`: recall of gold sub-questions and bridges, beside controls."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlvr.cli.main import main
from rlvr.commands.retrieve.decomposed import KINDS, Asked
from rlvr.data.multihop_sets import Hop
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
