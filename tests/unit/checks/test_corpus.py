"""Checks of the words of the data on a hundred rows; tests/unit/commands/test_doctor.py plants faults in whole runs."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlvr.checks.corpus import (
    cut_off,
    golds_are_answers,
    golds_beside_options,
    letters_without_options,
    mangled,
    options_of,
    texts_are_whole,
)
from tests.unit.tasks.data_tasks import make, write_jsonl


def of_rows(folder: Path, rows: list[dict[str, Any]], template: object = None, metric: str = "numeric") -> Any:
    held_out = write_jsonl(folder / "held_out.jsonl", [{"question": "Held out?", "answer": 1}])
    path = write_jsonl(folder / "rows.jsonl", rows)
    task = make({"name": "jsonl", "path": str(path), "eval_path": str(held_out), "metric": metric})
    return SimpleNamespace(task=task, chat=SimpleNamespace(template=template))


def asked(form: str, count: int = 40, damaged: str = "", bad: int = 0) -> list[dict[str, Any]]:
    """Rows of which `bad` have the form `damaged`."""
    return [{"question": (damaged if n < bad else form).format(n), "answer": n} for n in range(count)]


@pytest.mark.parametrize(
    ("text", "is_damaged"),
    [
        ("Zoë’s “café” – naïve Größe… 5 × 4 = 20 €", False),
        ("Zoë’s café".encode().decode("cp1252"), True),
        ("â€\x9d at the end", True),  # a byte that cp1252 does not know
        ("Größe".encode().decode("latin-1"), True),
        ("lost \ufffd letters", True),
        ("商店有3个苹果，Ελλάδα, Москва, São João, Ã e Â", False),
        ("plain", False),
    ],
)
def test_utf_8_that_was_read_as_another_encoding(text: str, is_damaged: bool) -> None:
    assert mangled(text) is is_damaged


@pytest.mark.parametrize(
    ("damaged", "says"),
    [
        ("Ann&#39;s {} apples &amp; pears?", "hold marks of HTML"),
        ("{} apples.<br>How many?", "hold marks of HTML"),
        ("Ann has {}.\\n\\nHow many?", "hold line breaks as \\n"),
        ("Say what {{{{name}}}} has, {}", "hold names in braces that nothing filled"),
        ("Use {{context}} for {}", "hold names in braces that nothing filled"),
        ("<image> What is {}?", "ask about images, which the model does not get"),
        ("As shown in the figure, what is {}?", "ask about images, which the model does not get"),
        ("![](x.png) {}?", "ask about images, which the model does not get"),
    ],
)
def test_a_tenth_of_the_questions_may_be_damaged(damaged: str, says: str, tmp_path: Path) -> None:
    found = texts_are_whole(of_rows(tmp_path, asked("What is {} plus 1?", damaged=damaged, bad=5)))
    assert (found.status, found.says) == ("fail", f"5 of 40 questions {says}")
    assert len(found.evidence["questions"]) == 3
    found = texts_are_whole(of_rows(tmp_path, asked("What is {} plus 1?", damaged=damaged, bad=4)))
    assert (found.status, found.says) == ("ok", "40 questions are whole texts")


@pytest.mark.parametrize(
    "form",
    [
        r"Let $\nabla f = {}$ and $x \neq 2$; $\frac{{x}}{{y}}$",
        "3 < {} > 2 & x",
        "What does print({}) print?\nprint('a\\n')",
        "Figure out what {} is; imagine it.",
        "See the table below: {}",
    ],
)
def test_formulas_code_and_tables_are_whole(form: str, tmp_path: Path) -> None:
    assert texts_are_whole(of_rows(tmp_path, asked(form))).status == "ok"


def test_another_templates_marks_count_where_a_template_adds_its_own(tmp_path: Path) -> None:
    rows = asked("[INST] What is {}? [/INST]")
    assert texts_are_whole(of_rows(tmp_path, rows)).status == "ok"
    found = texts_are_whole(of_rows(tmp_path, rows, template=object()))
    assert found.says == "40 of 40 questions are rendered already, in a form of their own"


def test_many_texts_of_one_round_length_without_an_end_were_cut() -> None:
    words = [
        "the",
        "quick",
        "brown",
        "fox",
        "jumps",
        "over",
        "the",
        "lazy",
        "dog",
        "and",
        "then",
        "sleeps",
        "under",
        "a",
        "tree",
        "by",
        "the",
        "river",
        "for",
        "hours",
    ]
    texts = [" ".join([*words[n % 7 :], *words[: 9 + n % 5], *words, *words])[:150] for n in range(100)]
    texts = [text if text[-1].isalnum() else f"{text[:-1]}x" for text in texts]
    assert len(cut_off(texts)) == 100
    assert len(cut_off([f"Question: {text}\nAnswer:" for text in texts])) == 100  # behind a prompt's own words
    assert cut_off([text[:147] for text in texts]) == []  # no round length
    assert cut_off([f"{text[:149]}?" for text in texts]) == []  # they end
    assert cut_off([*texts[:10], *(f"{number} is short" for number in range(90))]) == []  # too few


def test_options_are_labels_in_order() -> None:
    assert options_of("Which?\nA. Paris\nB. Rome\nC. Oslo") == {"A": "Paris", "B": "Rome", "C": "Oslo"}
    assert options_of("Which? (a) 3 (b) 4 (c) 5") == {"A": "3", "B": "4", "C": "5"}
    assert options_of("Which option? 1) x 2) y 3) z") == {"1": "x", "2": "y", "3": "z"}
    assert options_of("Add 3. 5 and 7.") == {}


@pytest.mark.parametrize(
    ("question", "golds", "beside"),
    [
        ("Which?\nA. x\nB. y\nC. z", "ABC", 0),
        ("Which?\nA. x\nB. y\nC. z", "abc", 0),
        ("Which?\nA. x\nB. y\nC. z", "xyz", 0),  # the options' texts
        ("Which?\nA. x\nB. y\nC. z", "012", 60),  # places from 0
        ("Choose an option.\n1. x\n2. y\n3. z", "012", 20),
        ("Choose an option.\n1. x\n2. y\n3. z", "123", 0),
        ("How many?\n1. x\n2. y\n3. z", "012", 0),  # a list of what is counted
        ("How many?\nA. x\nB. y\nC. z\nAnswer with the letter of the option.", "012", 60),
        ("Write it:\n1. x\n2. y\n3. z", "012", 0),  # nothing is to be chosen
    ],
)
def test_golds_name_an_option(question: str, golds: str, beside: int) -> None:
    assert len(golds_beside_options([(question, gold) for gold in golds * 20])) == beside


@pytest.mark.parametrize(
    ("question", "golds", "fails"),
    [
        ("A man has {} pears; how many?", "ABCD", True),
        ("A man has {} pears; how many?", "ABC", True),
        ("A man has {} pears; how many?", "AB", False),  # two letters may be anything
        ("A man has {} pears; how many?", "ABD", False),  # not in a row
        ("A man has {} pears; how many?", ("yes", "no", "none"), False),
        ("Box {}: is it A, B or C?", "ABC", False),  # the letters are named
        ("Box {}:\nA. 1\nB. 2\nC. 3", "ABC", False),
        ("Grade essay {} from A to D.", "ABCD", False),
    ],
)
def test_golds_that_are_letters_have_options(question: str, golds: Any, fails: bool) -> None:
    known = [(question.format(n), gold) for n, gold in enumerate([*golds] * 20)]
    assert letters_without_options(known) is fails


@pytest.mark.parametrize(
    ("gold", "says"),
    [
        ("nan", "2 of 40 golds are 'nan': they were missing where the file was made"),
        ("<NA>", "2 of 40 golds are '<NA>': they were missing where the file was made"),
    ],
)
def test_a_missing_value_is_no_gold(gold: str, says: str, tmp_path: Path) -> None:
    rows = [row | {"answer": gold if n < 2 else f"word {n}"} for n, row in enumerate(asked("What is {}?"))]
    assert golds_are_answers(of_rows(tmp_path, rows, metric="text")).says == says
    rows[0]["answer"] = "word"
    assert golds_are_answers(of_rows(tmp_path, rows, metric="text")).status == "ok"  # it may be the answer


@pytest.mark.parametrize(
    ("form", "question", "says"),
    [
        ("['city {}', 'town']", "What is {}?", "40 of 40 golds are lists or records written as texts"),
        ("{{'answer': 'city {}'}}", "What is {}?", "40 of 40 golds are lists or records written as texts"),
        ("['city {}', 'town']", "Print ['city {}', 'town'].", "40 golds are answers"),
        ("[{}, 2]", "Name two.", "1 questions"),
        ("city {}</s>", "What is {}?", "40 of 40 golds hold tokens of a template"),
        ("city {}", "What is {}?", "golds have words around the answer, 'city', and without them it is wrong"),
        ("city {}", "What is {}? Give the unit, too.", "40 golds are answers"),
        ("C{}-a", "What is {}?", "40 golds are answers"),
    ],
)
def test_golds_are_written_as_answers(form: str, question: str, says: str, tmp_path: Path) -> None:
    rows = [{"question": question.format(n), "answer": form.format(n)} for n in range(40)]
    found = golds_are_answers(of_rows(tmp_path, rows, metric="text"))
    assert found.says == says if "questions" not in says else found.status == "skipped"
