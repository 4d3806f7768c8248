"""Pushing to the Hub: against a small one on this machine, and one sentence for each way in which it fails."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from rlvr.cli.main import main
from tests.system.harness import SCRATCH, SMALL, Cli, run_train
from tests.unit.models.test_hub import use


class Hub:
    """Takes repositories and commits; `status` answers every request with it instead."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.repositories: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}
        self.tokens: set[str | None] = set()
        self.status: int | None = None
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                hub.requests.append(f"POST {self.path}")
                hub.tokens.add(self.headers.get("Authorization"))
                status, answer = (hub.status, {"error": "no"}) if hub.status else (200, hub.post(self.path, body))
                self._answer(status, answer)

            def do_GET(self) -> None:
                hub.requests.append(f"GET {self.path}")
                self._answer(hub.status or 200, {"error": "no"} if hub.status else {})

            def _answer(self, status: int, answer: Any) -> None:
                content = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def post(self, path: str, body: bytes) -> Any:
        if path == "/api/repos/create":
            self.repositories.append(json.loads(body))
            return {"url": f"{self.url}/ann/sums"}
        if path.endswith("/preupload/main"):
            files = json.loads(body)["files"]
            return {"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files]}
        if path.endswith("/commit/main"):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            return {"success": True, "commitOid": "0" * 40, "commitUrl": f"{self.url}/ann/sums/commit/0"}
        return {}


def is_private(repository: dict[str, Any]) -> bool:
    """As older and newer versions of the client say it."""
    return bool(repository.get("private") or repository.get("visibility") == "private")


@pytest.fixture
def hub(online: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub to push to, with a token that it takes."""
    server = Hub()
    thread = threading.Thread(target=server.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    use(online, server.url)
    online.setenv("HF_TOKEN", "hf_test")
    yield server
    server.server.shutdown()
    server.server.server_close()
    thread.join()


@pytest.fixture
def push(first_run: Path, tmp_path: Path) -> list[object]:
    """Words that export the run to `out` and push it."""
    return ["export", first_run, "--output", tmp_path / "out", "--push", "ann/sums", "--license", "mit"]


@pytest.mark.parametrize("more", [(), ("--public",)])
def test_a_run_is_pushed_to_a_private_repository(
    more: tuple[str, ...], hub: Hub, push: list[object], tmp_path: Path, cli: Cli
) -> None:
    done = cli.ok(*push, *more)
    assert hub.files == {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    (repository,) = hub.repositories
    assert (repository["name"], repository["organization"], is_private(repository)) == ("sums", "ann", not more)
    assert hub.tokens == {"Bearer hf_test"}
    assert done.out.endswith(f"uploaded to {hub.url}/ann/sums\n")
    assert 'from_pretrained("ann/sums")' in hub.files["README.md"].decode()
    assert str(tmp_path).encode() not in b"".join(hub.files.values())


@pytest.mark.usefixtures("warm_starts")
def test_the_newest_checkpoint_is_pushed_while_the_run_goes_on(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", str(tmp_path / "run"), "--push", "ann/sums", "--output", str(tmp_path / "out"), "--overwrite"]
    checkpoints = tmp_path / "run/checkpoints"
    pushed: list[tuple[int, bool]] = []

    def push_thrice() -> bool:  # asked in the warm start, and after each step before its checkpoint
        if checkpoints.is_dir():
            newest = max(checkpoints.iterdir()) / "model/model.safetensors"
            pushed.append((main(words), hub.files["model.safetensors"] == newest.read_bytes()))
        return len(pushed) == 3

    settings = ("trainer.max_steps=9", "trainer.checkpoint_every=1", "tracker.console=none")
    run_train(tmp_path / "run", *SMALL, *SCRATCH, *settings, stopped=push_thrice)
    assert pushed == [(0, True)] * 3
    assert "whole model of step 1:" in capsys.readouterr().out


def test_a_dry_run_lists_what_would_be_pushed(hub: Hub, push: list[object], tmp_path: Path, cli: Cli) -> None:
    dry = json.loads(cli.ok(*push, "--json", "--dry-run").out)
    assert hub.requests == []
    assert list(tmp_path.iterdir()) == []
    cli.ok(*push, "--json")
    assert dry["files"] == {name: len(content) for name, content in hub.files.items()}
    assert dry["repository"] == "ann/sums"
    assert (dry["dry_run"], dry["url"]) == (True, None)


def test_without_a_token_or_offline_nothing_is_begun(
    hub: Hub, push: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "no_token"))
    cli.refuses(1, push, "hf auth login")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    cli.refuses(1, push, "HF_HUB_OFFLINE")
    assert hub.requests == []
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("status", "says"), [(403, "what your token may write"), (500, "did not take")])
def test_a_refusal_is_one_sentence_and_the_folder_is_kept(
    status: int, says: str, hub: Hub, push: list[object], tmp_path: Path, cli: Cli
) -> None:
    hub.status = status
    cli.refuses(1, push, says)
    assert (tmp_path / "out/model.safetensors").is_file()


def test_a_hub_that_is_not_there_is_one_sentence(online: pytest.MonkeyPatch, push: list[object], cli: Cli) -> None:
    use(online, "http://127.0.0.1:9")
    online.setenv("HF_TOKEN", "hf_test")
    cli.refuses(1, push, "check the network")


@pytest.mark.parametrize("name", ["sums", "ann/sums/x", "../x", "ann/ sums", "-x/y"])
def test_a_name_that_is_no_repository_is_refused(name: str, hub: Hub, first_run: Path, cli: Cli) -> None:
    cli.refuses(2, ["export", first_run, f"--push={name}", "--dry-run"], "owner/name")
    assert hub.requests == []


def test_an_adapter_for_a_folder_of_this_machine_is_not_pushed(
    hub: Hub, adapted: tuple[Path, Path], tmp_path: Path, cli: Cli
) -> None:
    done = cli("export", adapted[0], "--output", tmp_path / "out", "--push", "ann/sums")
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert "--base-model" in done.err
    assert hub.requests == []
    assert not (tmp_path / "out").exists()
