"""`rlvr serve` in a process of its own."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.system.harness import Command, wait_until

WAIT_S = 60.0
START_S = 600.0  # a server that does not come up ends by itself; the first import of vLLM alone takes minutes


@dataclass(frozen=True, kw_only=True)
class Server:
    """Its address, and the process."""

    url: str
    command: Command

    @property
    def process(self) -> BaseProcess:
        return self.command.process

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return str(parts.hostname), int(parts.port or 0)

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(*self.address, timeout=WAIT_S)

    def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        """Status and JSON of an answer."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        with closing(self.connect()) as connection:
            connection.request("POST", path, data, {"Content-Type": "application/json"} | (headers or {}))
            with connection.getresponse() as answer:
                return answer.status, json.loads(answer.read())

    def metric(self, name: str, headers: dict[str, str] | None = None) -> float:
        """A number of /metrics."""
        with closing(self.connect()) as connection:
            connection.request("GET", "/metrics", headers=headers or {})
            with connection.getresponse() as answer:
                text = answer.read().decode()
        return float(text.partition(f"\nrlvr_{name} ")[2].split()[0])

    def until(self, name: str, value: float, headers: dict[str, str] | None = None) -> None:
        """Wait for a number of /metrics."""
        end = time.monotonic() + WAIT_S
        while self.metric(name, headers) != value:
            assert time.monotonic() < end, f"{name} stays {self.metric(name, headers)}"

    def ended(self) -> tuple[int, str]:
        """Wait for the end: the exit status and all of stderr."""
        return self.command.wait(WAIT_S), self.command.err


@contextmanager
def served(
    model: str, options: Sequence[str] = (), *, prepare: Callable[[], object] | None = None, **environment: str
) -> Iterator[Server]:
    """The server, once it accepts connections; it ends with the block. `prepare` is called in its process first."""
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder, "out"), Path(folder, "log")
        words = ("serve", model, "--port", "0", *options)
        command = Command(*words, log=log, out=out, environment=environment, prepare=prepare)
        try:
            wait_until(
                lambda: (out.exists() and "\n" in out.read_text()) or not command.process.is_alive(), timeout_s=START_S
            )
            url = out.read_text().strip()
            assert url, command.err
            yield Server(url=url, command=command)
        finally:
            command.send(signal.SIGTERM)
            command.wait(WAIT_S)


def check_installed(rlvr: Sequence[str | Path], folder: Path, environment: Mapping[str, str], prompt: str) -> None:
    """`rlvr serve run` of an installed package gives a completion, and stops when it is told to."""
    out, log = folder / "served", folder / "log"
    with out.open("w") as file, log.open("w") as errors:
        words = [*rlvr, "serve", "run", "--port", "0"]
        process = subprocess.Popen(words, cwd=folder, env=environment, stdout=file, stderr=errors)
    try:
        wait_until(lambda: "\n" in out.read_text() or process.poll() is not None)
        url = out.read_text().strip()
        assert url, log.read_text()
        body = json.dumps({"model": "run", "prompt": prompt, "max_tokens": 3}).encode()
        request = urllib.request.Request(f"{url}/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] > 0
    finally:
        process.terminate()
        assert process.wait(30) == 143, log.read_text()
