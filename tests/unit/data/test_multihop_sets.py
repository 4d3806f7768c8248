"""The rows of multi-hop data sets: sets and slices, shapes, what is left out, noise, order."""

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rlvr.data.multihop_sets import Library, read_sets
from rlvr.data.rows import DataError, Row
from rlvr.errors import ConfigError
from rlvr.retrieval.base import Document
from rlvr.tasks import hotpotqa, musique
from rlvr.tasks.dataset import DatasetTask
from rlvr.types import Example
from tests.unit.tasks.data_tasks import FIXTURES, ids, write_jsonl
from tests.unit.tasks.multihop_episodes import corpus, make_qa, rows

MUSIQUE = FIXTURES / "musique"


def save(folder: Path, train: list[dict[str, Any]], dev: list[dict[str, Any]]) -> Path:
    folder.mkdir(exist_ok=True)
    write_jsonl(folder / "train.jsonl", train)
    write_jsonl(folder / "dev.jsonl", dev)
    return folder


def parsed(row: dict[str, Any], parse: Any = musique.parse, library: Library | None = None) -> Any:
    return parse(Row("here, line 1", row), library) if library else parse(Row("here, line 1", row))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no set; write path,name,split"),
        ("a,b,train[1]", "names no set"),
        ("a,b,train[:-3]", "names no set"),
        ("a", "'a' names no set"),
        ("a/b/c,,train", "task.train_sets=a/b/c: there is no such folder, and it is no Hub id"),
        ("a--b,,train", "task.train_sets=a--b: there is no such folder, and it is no Hub id"),
        (f"{MUSIQUE},,test", "has no test.jsonl"),
        (f"{MUSIQUE / 'dev.jsonl'},,dev", "is a file"),
        ("no.jsonl", "there is no file"),
        (f"{MUSIQUE},,dev[8:]", "is an empty slice of 8 rows"),
    ],
)
def test_unreadable_sets_are_errors_naming_the_setting(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        list(read_sets("task.train_sets", text, musique.Musique.fields))
    assert "task.path" not in str(caught.value)


def test_several_sets_files_and_slices_are_joined(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "more.jsonl.gz", "wt") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows("musique", "train")[4:]))
    sets = f"{MUSIQUE},train[1:3];{tmp_path}/more.jsonl.gz[:2]"
    task = make_qa(train_sets=sets)
    assert task.sizes == (4, 8)
    assert [each.id for each in task.source.some(9)] == ["3hop__train1", "4hop__train2", "3hop__train4", "4hop__train5"]


def test_a_row_that_two_sets_share_is_used_once_and_noted() -> None:
    task = make_qa(train_sets=f"{MUSIQUE},train;{MUSIQUE},train[:3]")
    assert task.sizes == (8, 8)
    note = next(note for note in task.notes if "repeat" in note)
    assert note.startswith("3 training rows repeat an earlier question: left out (")
    assert note.endswith("train.jsonl, line 3)")


def test_pitfall_28_a_musique_row_has_documents_golds_and_hops() -> None:
    found = parsed(rows("musique")[1])
    about = found.metadata
    assert about["hops"] == about["num_support"] == len(about["support"]) == 3
    assert about["aliases"] == (f"the {found.answer}",)
    assert [document.id for document in about["documents"]] == [str(place) for place in range(len(about["documents"]))]
    titles = Counter(document.title for document in about["documents"])
    assert max(titles.values()) == 2  # one of them supports, the other does not
    repeated = next(title for title, count in titles.items() if count == 2)
    assert sum(each.id in about["support"] for each in about["documents"] if each.title == repeated) == 1


def test_the_hubs_columns_of_lists_are_read_like_rows() -> None:
    row = rows("musique")[1]
    columns = {key: [each[key] for each in row["paragraphs"]] for key in row["paragraphs"][0]}
    assert parsed(row | {"paragraphs": columns}) == parsed(row)
    assert parsed(row | {"paragraphs": json.dumps(row["paragraphs"])}) == parsed(row)


FACTS, CONTEXT = (rows("hotpotqa")[0][key] for key in ("supporting_facts", "context"))


@pytest.mark.parametrize(
    "shape",
    [
        {
            "supporting_facts": {"title": [title for title, _ in FACTS], "sent_id": [place for _, place in FACTS]},
            "context": {"title": [title for title, _ in CONTEXT], "sentences": [lines for _, lines in CONTEXT]},
        },
        {"supporting_facts": json.dumps(FACTS), "context": json.dumps(CONTEXT)},
        {"supporting_facts": [{"title": title, "sent_id": place, "more": 1} for title, place in FACTS]},
        {"supporting_facts": [[title, [place], ["text"], {}] for title, place in FACTS]},
    ],
    ids=["hub columns", "json texts", "objects", "longer facts"],
)
def test_all_shapes_of_hotpotqa_and_2wiki_are_read_alike(shape: dict[str, Any]) -> None:
    row = rows("hotpotqa")[0]
    expected = parsed(row, hotpotqa.parse)
    assert len(expected.metadata["support"]) == 2
    assert parsed(row | shape, hotpotqa.parse) == expected
    renamed = {key: value for key, value in row.items() if key != "_id"} | {"id": row["_id"]}
    assert parsed(renamed | shape, hotpotqa.parse) == expected


def test_hops_of_hotpotqa_are_its_supporting_titles() -> None:
    task = make_qa("wiki2")
    for example in task.eval_examples(100):
        assert example.metadata["hops"] == len({fact for fact in example.metadata["support"].values()})
        kind = {2: "compositional", 4: "bridge_comparison"}[example.metadata["hops"]]
        assert task.tags(example) == (f"{example.metadata['hops']}_hops", kind)


FIRST = rows("musique")[0]
UNSUPPORTED = [paragraph | {"is_supporting": False} for paragraph in FIRST["paragraphs"]]


@pytest.mark.parametrize(
    ("name", "fields", "reason"),
    [
        ("musique", {"answer": None}, "have no gold answer"),
        ("musique", {"answer": "  "}, "have no gold answer"),
        ("musique", {"answerable": False}, "cannot be answered"),
        ("musique", {"paragraphs": []}, "have no paragraphs"),
        ("musique", {"paragraphs": None}, "have no paragraphs"),
        ("musique", {"paragraphs": UNSUPPORTED}, "have no supporting paragraph"),
        ("hotpotqa", {"context": []}, "have no paragraphs"),
        ("hotpotqa", {"supporting_facts": []}, "have no supporting facts"),
        ("hotpotqa", {"context_complete": False}, hotpotqa.INCOMPLETE),
        ("hotpotqa", {"supporting_facts": [["Elsewhere", 0]]}, hotpotqa.INCOMPLETE),
    ],
)
def test_pitfall_28_rows_that_cannot_be_used_say_why(name: str, fields: dict[str, Any], reason: str) -> None:
    parse = musique.parse if name == "musique" else hotpotqa.parse
    assert parsed(rows(name)[0] | fields, parse) == reason


def test_questions_without_paragraphs_are_left_out_and_noted(tmp_path: Path) -> None:
    bare = [{key: value for key, value in row.items() if key != "paragraphs"} for row in rows("musique")[:3]]
    folder = save(tmp_path / "data", rows("musique", "train"), bare + rows("musique")[3:])
    notes = [note for note in make_qa(folder=folder).notes if "paragraphs:" in note]
    lines = "; ".join(f"{folder}/dev.jsonl, line {line}" for line in (1, 2, 3))
    assert notes == [f"3 held-out rows have no paragraphs: left out ({lines})"]
    folder = save(tmp_path / "data", rows("musique", "train"), bare)
    with pytest.raises(DataError, match=r"no held-out row can be used; 3 held-out rows have no paragraphs: left out"):
        make_qa(folder=folder)


BAD = {
    "two documents of one idx": (lambda p: [p[0], p[0]], r"has an idx twice"),
    "idx is text": (lambda p: [p[0] | {"idx": "x"}], r"'paragraphs\.0\.idx' must be a valid integer"),
    "title is missing": (lambda p: [{"idx": 1}], r"'paragraphs\.0\.title' is missing"),
    "text is a list": (lambda p: [p[0] | {"paragraph_text": []}], r"\.paragraph_text' must be a valid string"),
    "paragraphs are a number": (lambda p: 7, r"'paragraphs' must be a valid list"),
    "paragraphs are no JSON": (lambda p: "[{", r"must be a list, or a text with JSON"),
    "columns of other lengths": (lambda p: {"idx": [0], "title": []}, r"of one length"),
    "an endless text": (lambda p: [p[0] | {"paragraph_text": "x" * 2_000_001}], r"2,000,000 characters at most"),
}


@pytest.mark.parametrize("name", BAD)
def test_damaged_rows_are_errors_that_name_row_and_field(name: str) -> None:
    change, words = BAD[name]
    with pytest.raises(DataError, match=words) as caught:
        parsed(FIRST | {"paragraphs": change(FIRST["paragraphs"])})
    assert str(caught.value).startswith("here, line 1: field ")


def test_incomplete_contexts_of_hotpotqa_are_for_the_corpus_only(tmp_path: Path) -> None:
    task = make_qa("hotpotqa")
    assert task.sizes == (8, 7)
    note = next(note for note in task.notes if "scope=corpus" in note)
    assert note.startswith("1 held-out rows have a context without all supporting paragraphs")
    assert note.endswith("dev.jsonl, line 6)")
    assert make_qa("hotpotqa", retrieval=corpus("hotpotqa", index_dir=str(tmp_path))).sizes == (8, 8)


def test_pitfall_28_support_in_a_corpus_is_by_text_or_title() -> None:
    support = [paragraph for paragraph in FIRST["paragraphs"] if paragraph["is_supporting"]]
    passages = [
        *(Document(id=f"m{n}", title=p["title"], text=p["paragraph_text"]) for n, p in enumerate(support)),
        Document(id="other", title=support[0]["title"], text="Another text."),
    ]
    found = parsed(FIRST, library=Library(passages, "title_and_text"))
    assert found.metadata["support"].keys() == {"m0", "m1"}
    missing = "have supporting paragraphs that are not in the corpus"
    assert parsed(FIRST, library=Library(passages[1:], "title_and_text")) == missing
    first, second = (title for title, _ in FACTS)
    named = [Document(id=f"h{n}", title=(first, second)[n % 2], text=f"Text {n}.") for n in range(4)]
    whole = parsed(rows("hotpotqa")[0], hotpotqa.parse, Library(named, "title"))
    assert whole.metadata["support"] == {"h0": first, "h2": first, "h1": second, "h3": second}
    assert whole.metadata["num_support"] == whole.metadata["hops"] == 2
    missing = "have supporting titles that are not in the corpus"
    assert parsed(rows("hotpotqa")[0], hotpotqa.parse, Library(named[:1], "title")) == missing


def documents(example: Example) -> list[str]:
    return [document.id for document in example.metadata["documents"]]


def supporting(example: Example) -> set[str]:
    return set(example.metadata["support"])


def trained(task: DatasetTask) -> dict[str, Example]:
    return {example.id: example for example in (task.train_example(index) for index in range(8))}


def test_pitfall_37_noise_is_seeded_and_spares_evaluation() -> None:
    some, again, other = (trained(make_qa(noise_rate=0.5, seed=seed)) for seed in (0, 0, 1))
    assert all(documents(some[name]) == documents(again[name]) for name in some)
    assert any(documents(some[name]) != documents(other[name]) for name in some)
    assert all(supporting(example) <= set(documents(example)) for example in some.values())
    held_out = [documents(example) for example in make_qa(noise_rate=0.0).eval_examples(9)]
    assert held_out == [documents(example) for example in make_qa(noise_rate=1.0).eval_examples(9)]


def test_pitfall_37_each_question_draws_its_own_noise() -> None:
    whole, some, none = (trained(make_qa(noise_rate=rate)) for rate in (1.0, 0.5, 0.0))
    fates: dict[int, set[bool]] = {}
    for name, example in whole.items():
        assert len(documents(example)) > len(supporting(example))
        assert set(documents(none[name])) == supporting(example)
        for place, document in enumerate(documents(example)):
            if document not in supporting(example):
                fates.setdefault(place, set()).add(document in documents(some[name]))
    assert any(fate == {True, False} for fate in fates.values())


def hops(task: DatasetTask, indices: range) -> list[int]:
    return [task.train_example(index).metadata["hops"] for index in indices]


def test_a_curriculum_goes_from_few_hops_to_many_in_every_pass() -> None:
    task = make_qa(curriculum="hops")
    first, second = hops(task, range(8)), hops(task, range(8, 16))
    assert first == second == sorted(first)
    assert ids(task, range(8)) != ids(task, range(8, 16))
    assert sorted(ids(task, range(8))) == sorted(ids(task, range(8, 16)))
    plain = make_qa()
    assert hops(plain, range(8)) != sorted(hops(plain, range(8)))


def test_pitfall_37_a_curriculum_is_a_function_of_seed_and_index() -> None:
    task = make_qa(curriculum="hops")
    backwards = [task.train_example(index).id for index in reversed(range(24))]
    assert backwards[::-1] == ids(make_qa(curriculum="hops"), range(24))


def test_pitfall_38_the_first_held_out_questions_have_all_hops() -> None:
    def held_out(**changes: str) -> list[int]:
        return [example.metadata["hops"] for example in make_qa(**changes).eval_examples(8)]

    assert held_out(eval_order="balanced") == [2, 3, 4, 2, 3, 4, 2, 3]
    fair = held_out()
    assert fair != sorted(fair) == sorted(held_out(eval_order="balanced"))
    assert held_out(curriculum="hops") == fair


def test_hops_keeps_a_subset_and_says_so() -> None:
    task = make_qa(hops=(3,))
    assert {example.metadata["hops"] for example in task.eval_examples(9)} == {3}
    assert any(note.startswith("5 training rows have another number of hops than task.hops=[3]") for note in task.notes)
    with pytest.raises(DataError, match="no training row can be used; 8 training rows have another number of hops"):
        make_qa(hops=(5,))


def test_a_local_copy_of_a_repository_is_read(tmp_path: Path) -> None:
    from datasets import Dataset

    for split, name in (("train", "train"), ("validation", "dev")):
        Dataset.from_list(rows("musique", name)).to_parquet(tmp_path / f"{split}.parquet")
    task = make_qa(train_sets=f"{tmp_path},,train", eval_sets=f"{tmp_path},,validation")
    assert task.sizes == (8, 8)
