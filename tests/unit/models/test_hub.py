"""Every way in which a model is not there is one sentence, in time, from a real server or a real closed port."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub
import pytest
import transformers.utils.hub

from rlvr.errors import UserError
from rlvr.models import hub
from rlvr.models.hub import locate
from rlvr.models.loading import load_policy
from tests.unit.models.checkpoints import save_model, settings

Answer = tuple[int, dict[str, str]]
FILES = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
COMMIT = "0" * 40


class Server:
    """A Hub of one model: files come from `folder`; `answers` maps other names to status and headers, `""` any name."""

    def __init__(self, answers: dict[str, Answer], folder: Path | None = None) -> None:
        self.requests: list[str] = []
        hub_ = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub_.requests.append(f"{self.command} {self.path}")
                name = self.path.rpartition("/")[2]
                file = folder / name if folder is not None and "/resolve/" in self.path else None
                if file is not None and file.is_file():
                    status, headers, content = 200, {"ETag": f'"{name}"'}, file.read_bytes()
                else:
                    (status, headers), content = answers.get(name, answers[""]), b""
                self.send_response(status)
                for key, value in {"X-Repo-Commit": COMMIT, **headers}.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(content)

            do_HEAD = do_GET  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def running(self) -> Iterator[None]:
        with self._server, ThreadPoolExecutor(1) as thread:
            thread.submit(self._server.serve_forever, poll_interval=0.01)
            try:
                yield
            finally:
                self._server.shutdown()


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[pytest.MonkeyPatch]:
    """The Hub's client as it is outside the tests, with an empty cache; it reads its settings from this module."""
    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    # transformers keeps the client of the address that was known first: the real one, and 46 s of trying again
    monkeypatch.setattr(transformers.utils.hub, "_hf_api", None, raising=False)
    huggingface_hub.close_session()
    yield monkeypatch
    huggingface_hub.close_session()


def use(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")


REFUSALS: dict[str, tuple[Answer, str]] = {
    "gated": ((403, {"X-Error-Code": "GatedRepo"}), r"'some/model' is gated: ask for access at http.*/some/model"),
    "gated, not logged in": ((401, {"X-Error-Code": "GatedRepo"}), "is gated: ask for access"),
    "unknown": ((404, {"X-Error-Code": "RepoNotFound"}), r"is no folder here, and the Hub .* \(status 404\)"),
    "private or unknown": ((401, {"X-Error-Code": "RepoNotFound"}), "a private one needs `hf auth login`"),
    "token": (
        (401, {"X-Error-Message": "Invalid credentials in Authorization header"}),
        "the Hub refused your token for the model 'some/model': make a new one",
    ),
    "no model inside": ((404, {"X-Error-Code": "EntryNotFound"}), r"\(status 404\)"),
    "down": ((503, {}), r"does not give it \(status 503\): check the network"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refusal_is_one_sentence_after_one_request(case: str, online: pytest.MonkeyPatch) -> None:
    answer, sentence = REFUSALS[case]
    server = Server({"": answer})
    use(online, server.url)
    start = time.perf_counter()
    with server.running(), pytest.raises(UserError, match=sentence) as caught:
        load_policy(settings("some/model"), seed=0)
    assert time.perf_counter() - start < 5
    assert "\n" not in str(caught.value)
    asked = [request for request in server.requests if "/some/model/resolve/" in request]
    assert len(asked) == (2 if case == "no model inside" else 1)


def test_a_server_that_never_answers_is_given_up(online: pytest.MonkeyPatch) -> None:
    import socket

    assert hub.PROBE_TIMEOUT_S <= 10  # a run must fail within 30 s
    online.setattr(hub, "PROBE_TIMEOUT_S", 0.3)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        use(online, f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(UserError, match="check the network"):
            locate("some/model")


def test_what_is_no_hub_id_is_never_asked_for() -> None:
    for name in ("a/b/c", "/no/such/folder", "wild name"):
        with pytest.raises(UserError, match=f"there is no folder '{name}', and it is no Hub id: ") as caught:
            locate(name)
        assert "network" not in str(caught.value)


def test_a_model_of_the_hub_is_loaded_and_then_found_without_it(online: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model")
    server = Server({"": (404, {"X-Error-Code": "EntryNotFound"})}, folder)
    use(online, server.url)
    with server.running():
        first = load_policy(settings("some/model"), seed=0)
    again = load_policy(settings("some/model"), seed=0)  # the server is gone, the cache is there
    pairs = zip(first.model.parameters(), again.model.parameters(), strict=True)
    assert all((a == b).all() for a, b in pairs)
