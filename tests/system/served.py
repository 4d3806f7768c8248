"""`rlvr serve` in a process of its own."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

WAIT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Server:
    """Its address, and the process."""

    url: str
    process: subprocess.Popen[str]
    log: Any

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
        status = self.process.wait(timeout=WAIT_S)
        self.log.seek(0)
        return status, self.log.read()


@contextmanager
def served(model: str, options: Sequence[str] = (), **environment: str) -> Iterator[Server]:
    """The server, once it accepts connections; it ends with the block."""
    command = [sys.executable, "-m", "rlvr", "serve", model, "--port", "0", *options]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=os.environ | environment)
        assert process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            if not url:
                process.wait(timeout=WAIT_S)
                log.seek(0)
                raise AssertionError(log.read())
            yield Server(url=url, process=process, log=log)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(timeout=WAIT_S)
            process.stdout.close()
