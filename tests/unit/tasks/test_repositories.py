"""The `datasets` library for real: a local repository, a copy in its cache, and a Hub that is a server of this test."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlvr.data.rows import DataError
from rlvr.errors import ConfigError
from rlvr.tasks.columns import Hub as HubTask
from tests.system.harness import Command
from tests.unit.tasks.data_tasks import make

pytestmark = pytest.mark.slow

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


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository in the Hub's format with two configurations."""
    root = tmp_path_factory.mktemp("hub") / "my_gsm8k"
    for subset, split, num in (("main", "train", 8), ("main", "test", 3), ("socratic", "train", 2)):
        (root / subset).mkdir(parents=True, exist_ok=True)
        rows = [
            {"question": f"{subset} {split} {n} and {n}?", "answer": f"#### {2 * n}", "extra": {"n": n}}
            for n in range(num)
        ]
        pq.write_table(pa.Table.from_pylist(rows), root / subset / f"{split}-00000-of-00001.parquet")
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


def test_unknown_splits_and_subsets_name_the_known_ones(repository: Path) -> None:
    for changes, said in (
        ({"eval_split": "dev"}, r"split dev: .*train.*test"),
        ({"subset": "platonic"}, r"has no configuration platonic .*main.*socratic"),
        ({"subset": None}, r"has no configuration null .*main.*socratic"),
    ):
        with pytest.raises(ConfigError, match=said):
            gsm8k(repository, **changes)


def test_columns_are_recognized_in_the_subset(repository: Path) -> None:
    wanted = {"question_field": "question", "answer_field": "answer", "reward": "numeric", "metric": "numeric"}
    assert HubTask.recognize({"path": str(repository), "subset": "main"}) == wanted


LOAD = """
import sys, time
from rlvr.errors import UserError
from rlvr.data.readers import Split
for name in sys.argv[1:]:
    start = time.perf_counter()
    try:
        rows = Split(f"owner/{name}", "train", "main").rows()
        print("rows", len(rows), rows[0].fields["question"])
    except UserError as error:
        print(type(error).__name__, error)
    assert time.perf_counter() - start < 30
"""


def test_a_loading_script_is_refused_and_not_run(tmp_path: Path) -> None:
    folder = tmp_path / "scripted"
    folder.mkdir()
    (folder / "scripted.py").write_text("raise SystemExit('this must never run')")
    with pytest.raises(DataError, match=r"scripts are no longer supported"):
        gsm8k(folder)


def load(names: Sequence[str], cache: Path, before: str = "", **environment: str) -> list[str]:
    """What reading each of the data sets prints: one line, on stdout, each within the time allowed."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    result = subprocess.run(
        [sys.executable, "-c", f"{before}\n{LOAD}", *names],
        env=inherited | {"HF_HOME": str(cache)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout.splitlines()


REFUSED = "UserError the Hub refuses access to the data set owner/{} with this token"
ANSWERS: dict[str, tuple[int, str | None, str]] = {
    "gated": (401, "GatedRepo", REFUSED),
    "private": (401, "RepoNotFound", REFUSED),
    "token": (401, None, REFUSED),
    "forbidden": (403, None, REFUSED),
    "gone": (404, "RepoNotFound", "ConfigError task.path=owner/{}: there is no such folder, and the Hub has no such"),
    "down": (503, None, "UserError task.path=owner/{} is no local folder, was not downloaded before, and the Hub"),
}
"""Name of a data set -> status and error code of the Hub, and what the user is told."""


class Hub(BaseHTTPRequestHandler):
    """Answers as `ANSWERS` says, with the Hub's error header."""

    def do_GET(self) -> None:
        status, code, _ = next(answer for name, answer in ANSWERS.items() if f"/owner/{name}" in self.path)
        body = json.dumps({"error": "no"}).encode()
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def test_a_refusal_of_the_hub_names_the_remedy(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        lines = load(list(ANSWERS), tmp_path, HF_ENDPOINT=f"http://127.0.0.1:{server.server_port}", HF_TOKEN="hf_wrong")
        server.shutdown()
    for line, (name, (status, _, said)) in zip(lines, ANSWERS.items(), strict=True):
        assert line.startswith(said.format(name))
        assert status == 404 or "set task.path to a folder" in line


NOWHERE = "is no local folder, was not downloaded before, and the Hub cannot be reached"


@pytest.mark.parametrize("offline", [False, True])
def test_without_a_network_the_cache_is_used(offline: bool, repository: Path, tmp_path: Path) -> None:
    from datasets import load_dataset

    cache = tmp_path / "datasets"
    assert len(load_dataset(str(repository), "main", cache_dir=str(cache))["train"]) == 8
    (cache / "my_gsm8k").rename(cache / "owner___my_gsm8k")
    environment = {"HF_ENDPOINT": "http://127.0.0.1:9"} | ({"HF_HUB_OFFLINE": "1"} if offline else {})
    cached, unknown = load(["my_gsm8k", "unknown"], tmp_path, **environment)
    assert cached == "rows 8 main train 0 and 0?"
    assert unknown.startswith(f"UserError task.path=owner/unknown {NOWHERE} (")
    assert unknown.endswith("that has the files, or RLVR_DATA to the folder around it, or connect to the network.")
    assert ("HF_HUB_OFFLINE" in unknown) == offline


def test_a_hub_that_never_answers_is_given_up(tmp_path: Path) -> None:
    soon = "import rlvr.data.readers; rlvr.data.readers.TIMEOUT_S = 0.2"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        (line,) = load(["my_gsm8k"], tmp_path, soon, HF_ENDPOINT=f"http://127.0.0.1:{listener.getsockname()[1]}")
    assert line.startswith(f"UserError task.path=owner/my_gsm8k {NOWHERE}")


def test_importing_the_tasks_does_not_import_datasets(tmp_path: Path) -> None:
    code = "import sys, rlvr.run.tasks; assert not {'datasets', 'pyarrow', 'reasoning_gym', 'jax'} & {*sys.modules}"
    (tmp_path / "script.py").write_text(code)
    command = Command(script=tmp_path / "script.py", log=tmp_path / "log")
    assert command.wait() == 0, command.err
