from pathlib import Path

import pytest

from rlvr.data.rows import DataError
from rlvr.retrieval.corpus import open_corpus
from tests.system.harness import Command
from tests.unit.retrieval.passages import PLAIN, bm25, documents, places, write_corpus


@pytest.mark.parametrize("name", ["c.jsonl", "c.jsonl.gz", "c.json", "c.json.gz"])
def test_every_form_gives_the_same_documents(tmp_path: Path, name: str) -> None:
    corpus = open_corpus(write_corpus(tmp_path, name), tmp_path / "indexes")
    assert list(corpus.documents) == documents()
    assert corpus.documents[-1] == documents()[-1]
    with pytest.raises(IndexError):
        corpus.documents[len(documents())]


BAD = {
    '{"text": "a"}\n{"text": "b"\n': "line 2: this is not JSON",
    '{"title": "a"}\n': "line 1: field 'text' must be a text, but is null",
    '{"text": 3}\n': "line 1: field 'text' must be a text, but is the number 3",
    '{"text": "a", "title": null}\n': "line 1: field 'title' must be a text",
    '{"text": "a", "id": true}\n': "line 1: field 'id' must be a text, but is the boolean True",
    '{"text": "a", "id": "x"}\n{"text": "b", "id": "x"}\n': "line 2: the id 'x' occurs twice",
    "": "is empty",
}


@pytest.mark.parametrize(("text", "message"), BAD.items(), ids=range(len(BAD)))
def test_damage_is_one_sentence_with_the_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "c.jsonl"
    file.write_text(text)
    with pytest.raises(DataError) as error:
        open_corpus(file, tmp_path / "indexes")
    assert message in str(error.value)
    assert str(file) in str(error.value)
    assert not any(path.is_dir() for path in (tmp_path / "indexes").glob("*/*")), "a draft stayed"


def test_halves_of_characters_become_what_can_be_encoded(tmp_path: Path) -> None:
    """JSON can hold them; the answer of a service, the terminal and tokenizers cannot."""
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"id": "\\udc00", "title": "a\\ud800", "text": "b\\ud83d\\ude00\\ud83d"}\n')
    (found,) = open_corpus(path, tmp_path / "index").documents
    assert (found.id, found.title, found.text) == ("\ufffd", "a\ufffd", "b\U0001f600\ufffd")


def test_pitfall_38_a_changed_corpus_or_setting_gets_a_new_index(tmp_path: Path) -> None:
    file, folder = write_corpus(tmp_path), tmp_path / "indexes"
    before = open_corpus(file, folder)
    assert places(bm25().corpus_index(before), "physicists", 1) == [0]
    assert places(bm25(PLAIN).corpus_index(before), "physicists", 1) == []
    assert places(bm25(PLAIN).corpus_index(before), "flows", 1) == [2], "the index of other settings"
    file.write_text(file.read_text().replace("physicist", "chemist!!"))  # as long as before
    after = open_corpus(file, folder)
    assert places(bm25().corpus_index(after), "physicists", 1) == []
    assert places(bm25().corpus_index(after), "chemists", 1) == [0]
    assert "chemist" in after.documents[0].text


@pytest.mark.parametrize("name", ["documents/offsets.npy", "bm25-stem-stop-2/data.csc.index.npy"])
def test_a_damaged_folder_says_what_to_delete(tmp_path: Path, name: str) -> None:
    file = write_corpus(tmp_path)
    corpus = open_corpus(file, tmp_path / "indexes")
    bm25().corpus_index(corpus)
    (corpus.folder / name).write_bytes(b"\x93NUMPY")
    with pytest.raises(DataError, match=r"is damaged .* delete that folder"):
        bm25().corpus_index(open_corpus(file, tmp_path / "indexes"))


@pytest.mark.slow
def test_processes_that_build_at_once_all_find_a_whole_index(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(f"""if True:
        from pathlib import Path
        from rlvr.retrieval.corpus import open_corpus
        from rlvr.retrieval.retriever import open_retriever
        from rlvr.retrieval.settings import RetrievalSettings
        corpus = open_corpus(Path({str(write_corpus(tmp_path))!r}), Path({str(tmp_path / "indexes")!r}))
        index = open_retriever("bm25", RetrievalSettings()).corpus_index(corpus)
        print(index.search("Vistula", 1)[0].document.id)
        """)
    outs = [tmp_path / f"out{number}" for number in range(3)]
    running = [Command(script=tmp_path / "script.py", log=out.with_suffix(".log"), out=out) for out in outs]
    assert [process.wait() for process in running] == [0] * 3, running[0].err
    assert [out.read_text() for out in outs] == ["d3\n"] * 3
    assert [path.name for path in (tmp_path / "indexes").rglob(".*")] == []
