"""Dates of birth in sentences: the gold is right in made ones and in articles, and held-out ones are not trained on."""

import json
import re
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest

from rlvr.data.rows import DataError
from rlvr.errors import ConfigError
from rlvr.tasks.dataset import DatasetTask
from rlvr.tasks.dates import AGES, FORMS, SENTENCES, date_of_birth, draw
from tests.unit.tasks.data_tasks import graded, ids, make, opened, scored

WRITTEN = {
    "day_month": "%d %B %Y",
    "month_day": "%B %d, %Y",
    "short": "%d %b %Y",
    "ordinal": "%B %d, %Y",
    "of": "the %d of %B %Y",
    "weekday": "a %A, %d %B %Y",
}


def dates(seed: int = 0, **changes: Any) -> DatasetTask:
    return make({"name": "dates", **changes}, seed=seed)


def test_each_form_of_a_date_can_only_mean_that_date() -> None:
    assert FORMS.keys() == WRITTEN.keys()
    days = [date(1900, 1, 31), date(1904, 2, 29), date(1911, 11, 11), *(date(1950, 5, day) for day in range(1, 29))]
    for form, pattern in WRITTEN.items():
        for day in days:
            text = re.sub(r"(\d)(?:st|nd|rd|th)\b", r"\1", FORMS[form](day))
            assert datetime.strptime(text, pattern).date() == day
    assert FORMS["of"](date(1922, 5, 22)) == "the 22nd of May 1922"
    assert FORMS["ordinal"](date(1913, 3, 13)) == "March 13th, 1913"


def test_made_sentences_hold_the_gold_in_the_form_of_their_tag() -> None:
    problems = [draw(3, place) for place in range(300)]
    for problem in problems:
        (form,), born = problem.tags, date.fromisoformat(problem.answer)
        text, asked = problem.question.split("\n")
        name = asked.removeprefix("When was ").removesuffix(" born? Answer with the date as YYYY-MM-DD.")
        assert FORMS[form](born) in text
        assert name in text
        assert problem.answer not in problem.question
        assert born.year + max(max(AGES[key]) for key in AGES) < 2026
    assert {problem.tags[0] for problem in problems} == FORMS.keys()
    assert len({problem.key for problem in problems}) == 300
    assert all("{born}" in sentence and "{name}" in sentence for sentence in SENTENCES)


def test_pitfall_37_a_made_problem_is_a_function_of_seed_and_index() -> None:
    straight = ids(dates(), range(30))
    assert ids(dates(), range(20, 30)) == straight[20:]
    assert ids(dates(seed=1), range(30)) != straight


def test_pitfall_38_made_sentences_that_are_held_out_are_never_trained_on() -> None:
    made = dates(eval_share=0.5)
    held_out = {example.id for example in made.eval_examples(200)}
    assert len(held_out) == 200
    assert not held_out & set(ids(made, range(1_000)))
    assert {example.id for example in dates(seed=9, eval_share=0.5).eval_examples(200)} == held_out


def test_exactly_the_date_is_right() -> None:
    with opened({"name": "dates"}) as made:
        example = made.train_example(0)
        other = str(date.fromisoformat(example.answer).replace(year=1700))
        for said, is_right in ((example.answer, True), (other, False), (f"Born {example.answer}.", False), ("", False)):
            assert graded(made, example, said).correct is is_right
            assert (scored(made, example, said).value == 1.0) is is_right


BORN, DAY = "1818-05-05", "5 May 1818"


@pytest.mark.parametrize(
    ("inside", "born"),
    [
        (f"born {DAY}", BORN),
        (f" ; born Karl Marx in Trier, {DAY}, in the west", BORN),
        ("born May 5, 1818; died March 14, 1883", BORN),
        (f"{DAY} – 14 March 1883", BORN),
        (f"{DAY}, Trier - 14 March 1883, London", BORN),
        (f'"The Moor"; {DAY} — March 14, 1883', BORN),
        (f"born 1810 in Trier, {DAY}", None),
        (f"died {DAY}", None),
        (DAY, None),
        (f"born {DAY} or 6 May 1818", None),
        (f"born c. {DAY}", None),
        (f"baptised {DAY} – 14 March 1883", None),
        (f"{DAY} [O.S. 23 April] – 14 March 1883", None),
        (f"{DAY} – 7 May 1819", None),
        ("born 31 June 1818", None),
        ("born 1818", None),
    ],
)
def test_a_parenthesis_gives_a_date_of_birth_or_none(inside: str, born: str | None) -> None:
    assert date_of_birth(inside) == (born and date.fromisoformat(born))


ARTICLES = {
    "Karl Marx": [f"Karl Heinrich Marx ({DAY} – 14 March 1883) was a writer.", "He lived in London."],
    "Ada Lovelace (writer)": ["Ada Lovelace (born 10 December 1815) is known for a program. She wrote letters."],
    "The Band": ["The Band is a trio of John Band (born 3 May 1950)."],
    "Other Name": ["Somebody Else (born 3 May 1950) is a singer."],
    "Trier": ["Trier (formerly Treves) is a city."],
    "Long Name": [f"Long Name (born 3 May 1950) is {'very ' * 60}old."],
}
GOLDS = {"Karl Marx": BORN, "Ada Lovelace": "1815-12-10"}
ROWS: dict[str, list[dict[str, Any]]] = {
    "hotpotqa": [{"context": [[title, text] for title, text in ARTICLES.items()]}] * 2,
    "hub": [{"context": {"title": list(ARTICLES), "sentences": list(ARTICLES.values())}}],
    "musique": [
        {"paragraphs": [{"title": title, "paragraph_text": " ".join(text)} for title, text in ARTICLES.items()]}
    ],
    "corpus": [{"title": title, "text": " ".join(text)} for title, text in ARTICLES.items()],
}


@pytest.mark.parametrize("layout", ROWS)
def test_articles_of_every_layout_give_people_with_their_dates(layout: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS[layout])))
    made = dates(path=str(path), eval_share=0.5)
    examples = {
        example.id: example for example in [made.train_example(0), made.train_example(1), *made.eval_examples(9)]
    }
    asked = {example.messages[-1].content: example.answer for example in examples.values()}
    assert len(asked) == len(GOLDS)
    for name, gold in GOLDS.items():
        (question,) = (text for text in asked if f"When was {name} born?" in text)
        assert asked[question] == gold
        assert "London" not in question
        assert "letters" not in question
    assert made.sizes == (1, 1)
    assert any(note.startswith("3 training rows do not begin with a person and a date of birth") for note in made.notes)


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ('{"question": "x"}', DataError, "field 'title' is missing"),
        ('{"title": "A", "text": "No date."}', ConfigError, "0 different questions"),
    ],
)
def test_rows_without_articles_are_a_sentence(text: str, kind: type[Exception], said: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with pytest.raises(kind, match=said):
        dates(path=str(path))
