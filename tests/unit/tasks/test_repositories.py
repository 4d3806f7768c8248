"""The `datasets` library for real: a local repository, a copy in its cache, and a Hub that is a server of this test."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rlvr.errors import ConfigError
from rlvr.tasks.readers import read_split
from rlvr.tasks.rows import DataError
from tests.unit.tasks.data_tasks import make

CARD = """---
configs:
- config_name: main
  data_files:
  - split: train
    path: main/train-*
  - split: test
    path: main/test-*
- config_name: socratic
  data_files:
  - split: train
    path: socratic/train-*
---
# A data set
"""
MAX_SECONDS_WITHOUT_NETWORK = 30


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository in the Hub's format with two configurations."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    root = tmp_path_factory.mktemp("hub") / "my_gsm8k"
    for subset, split, num in (("main", "train", 8), ("main", "test", 3), ("socratic", "train", 2)):
        (root / subset).mkdir(parents=True, exist_ok=True)
        table = pa.table(
            {
                "question": [f"{subset} {split} {n} and {n}?" for n in range(num)],
                "answer": [f"{n}+{n}=<<{n}+{n}={2 * n}>>{2 * n}\n#### {2 * n}" for n in range(num)],
                "extra": [{"n": n} for n in range(num)],
            }
        )
        pq.write_table(table, root / subset / f"{split}-00000-of-00001.parquet")
    (root / "README.md").write_text(CARD)
    return root


def gsm8k(path: Path, **changes: Any) -> Any:
    return make({"name": "gsm8k", "path": str(path), "subset": "main", **changes})


def test_a_repository_on_disk_is_a_task(repository: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = gsm8k(repository)
    assert made.notes == (f"8 training and 3 held-out examples from {repository}",)
    assert {made.train_example(index).id for index in range(8)} == {f"gsm8k/train/{n}" for n in range(1, 9)}
    assert made.eval_examples(1)[0].messages[-1].content.startswith("main test")
    assert capfd.readouterr() == ("", "")


def test_rows_know_their_place_and_only_the_wanted_fields_are_read(repository: Path) -> None:
    rows = read_split(str(repository), "train", subset="main", fields=("question",))
    assert rows[2].place == f"{repository}, split train, row 3"
    assert set(rows[0].fields) == {"question"}
    assert set(read_split(str(repository), "train", subset="main")[0].fields) == {"question", "answer", "extra"}
    assert set(read_split(str(repository), "train", subset="main", fields=("nothing",))[0].fields) == {
        "question",
        "answer",
        "extra",
    }


def test_a_missing_column_names_what_is_there(repository: Path) -> None:
    task = {"name": "hub", "path": str(repository), "subset": "main", "question_field": "problem"}
    with pytest.raises(DataError, match=r"split train, row 1: field 'problem' is missing; there are 'question', 'ans"):
        make(task)
    nested = make(task | {"question_field": "question", "answer_field": "extra.n", "eval_share": 0.3})
    assert nested.train_example(0).answer in "01234567"


def test_unknown_splits_and_subsets_are_errors_naming_the_known_ones(repository: Path) -> None:
    with pytest.raises(ConfigError, match=r"split dev: .* has no such split .*train.*test"):
        gsm8k(repository, eval_split="dev")
    with pytest.raises(ConfigError, match=r"task\.subset=platonic: .*main.*socratic"):
        gsm8k(repository, subset="platonic")
    with pytest.raises(ConfigError, match=r"task\.subset=null: .* several configurations .*main.*socratic"):
        gsm8k(repository, subset=None)


def test_a_data_set_that_is_loaded_by_a_program_is_refused_and_not_run(tmp_path: Path) -> None:
    folder = tmp_path / "scripted"
    folder.mkdir()
    (folder / "scripted.py").write_text("raise SystemExit('this must never run')")
    with pytest.raises(DataError, match=r"is loaded by a program, which is not run: download its data files"):
        gsm8k(folder)


def test_a_damaged_repository_is_one_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "train-00000-of-00001.parquet").write_bytes(b"PAR1 this is no Parquet file")
    with pytest.raises(DataError, match=r"broken, split train: cannot be loaded") as error:
        gsm8k(folder, subset=None)
    assert "\n" not in str(error.value)


# -------------------------------------------------------------- in a process of its own, whose Hub is a server of ours


LOAD = """
import sys, time
from rlvr.errors import UserError
from rlvr.tasks.readers import read_split
start = time.perf_counter()
try:
    rows = read_split("owner/my_gsm8k", "train", subset="main")
    print("rows", len(rows), rows[0].fields["question"])
except UserError as error:
    print(type(error).__name__, error)
print(time.perf_counter() - start)
import os
assert "datasets" in sys.modules and os.environ.get("HF_HUB_OFFLINE") == {offline!r}
"""


def load(cache: Path, offline: str | None = None, **environment: str) -> tuple[str, float]:
    """What reading `owner/my_gsm8k` prints, and its seconds."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    settings = {"HF_HOME": str(cache), **environment} | ({} if offline is None else {"HF_HUB_OFFLINE": offline})
    result = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", LOAD.format(offline=offline)],
        env=inherited | settings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    said, seconds = result.stdout.splitlines()
    return said, float(seconds)


class Answering(BaseHTTPRequestHandler):
    """Answers everything with one status and the Hub's error headers."""

    status = 500
    error_code: str | None = None

    def do_GET(self) -> None:
        self.send_response(self.status)
        if self.error_code:
            self.send_header("X-Error-Code", self.error_code)
        body = json.dumps({"error": "no"}).encode()
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[Any]:
    servers: list[ThreadingHTTPServer] = []

    def start(status: int, error_code: str | None) -> str:
        handler = type("Handler", (Answering,), {"status": status, "error_code": error_code})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (401, "GatedRepo", "UserError the data set owner/my_gsm8k is gated: accept its conditions at https://"),
        (403, "GatedRepo", "UserError the data set owner/my_gsm8k is gated: accept its conditions at https://"),
        (401, "RepoNotFound", "UserError the Hub refuses access to the data set owner/my_gsm8k with this token"),
        (401, None, "UserError the Hub refuses access to the data set owner/my_gsm8k with this token"),
        (403, None, "UserError the Hub refuses access to the data set owner/my_gsm8k with this token"),
        (404, "RepoNotFound", "ConfigError task.path=owner/my_gsm8k: there is no such folder, and the Hub has no such"),
        (503, None, "UserError task.path=owner/my_gsm8k is no local folder, was not downloaded before, and the Hub"),
    ],
)
def test_what_the_hub_refuses_is_one_sentence_with_the_remedy(
    hub: Any, tmp_path: Path, status: int, code: str | None, said: str
) -> None:
    printed, seconds = load(tmp_path, HF_ENDPOINT=hub(status, code), HF_TOKEN="hf_wrong")
    assert printed.startswith(said)
    assert status == 404 or "set task.path to a folder" in printed
    assert seconds < MAX_SECONDS_WITHOUT_NETWORK


@pytest.mark.parametrize("kind", ["nobody listens", "nobody answers", "offline"])
def test_without_a_network_one_sentence_comes_within_seconds(kind: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        if kind != "nobody answers":
            listener.close()
        printed, seconds = load(
            tmp_path, offline="1" if kind == "offline" else None, HF_ENDPOINT=f"http://127.0.0.1:{port}"
        )
    assert printed.startswith("UserError task.path=owner/my_gsm8k is no local folder, was not downloaded before")
    assert "RLVR_DATA" in printed
    assert seconds < MAX_SECONDS_WITHOUT_NETWORK


@pytest.mark.parametrize("offline", [None, "1"])
def test_without_a_network_what_was_downloaded_before_is_used(
    offline: str | None, repository: Path, tmp_path: Path
) -> None:
    from datasets import load_dataset

    cache = tmp_path / "datasets"
    assert len(load_dataset(str(repository), "main", cache_dir=str(cache))["train"]) == 8
    (cache / "my_gsm8k").rename(cache / "owner___my_gsm8k")
    printed, seconds = load(tmp_path, offline=offline, HF_ENDPOINT="http://127.0.0.1:9")
    assert printed == "rows 8 main train 0 and 0?"
    assert seconds < MAX_SECONDS_WITHOUT_NETWORK


def test_importing_the_tasks_does_not_import_datasets() -> None:
    code = "import sys, rlvr.tasks.catalog; assert not {'datasets', 'pyarrow', 'reasoning_gym', 'jax'} & {*sys.modules}"
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    assert time.perf_counter() - start < MAX_SECONDS_WITHOUT_NETWORK
