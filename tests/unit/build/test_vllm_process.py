"""Starting, watching and ending vLLM, with a small program in its place; the system tests start the real one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rlvr.build.vllm_server import LAUNCHER, VllmDiedError, VllmServer, VllmSettings, open_vllm, tail
from tests.unit.build.test_vllm_server import package
from tests.unit.models.test_scratch import model

STAND_IN = """
import http.server, os, signal, subprocess, sys, time
print("begin", os.environ["HOW"], flush=True)
child = subprocess.Popen(["sleep", "600"])
with open(os.environ["PIDS"], "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
if os.environ["HOW"] == "dies":
    print("ValueError: the real reason", flush=True)
    os._exit(3)
if os.environ["HOW"] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@dataclass
class StandIn:
    """A program in vLLM's place, which starts another process and leaves it."""

    settings: VllmSettings
    model: str
    pids: Path
    notes: list[str] = field(default_factory=list)

    def open(self) -> AbstractContextManager[VllmServer]:
        return open_vllm(self.model, self.settings, self.notes.append)

    def running(self) -> list[int]:
        """Those of its processes that are still there; waits until the killed ones are gone."""
        return [pid for pid in map(int, self.pids.read_text().split()) if not _gone(pid)]


def _gone(pid: int, patience_s: float = 10.0) -> bool:
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return True
        if stat.rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.01)
    return False


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: Any) -> Callable[[str], StandIn]:
    """A program that `HOW`: serves, dies, or is deaf to SIGTERM."""
    built = model(head_dim=32)
    built.save_pretrained(tmp_path / "model")

    def make(how: str) -> StandIn:
        site = package(tmp_path / how)
        where = site / "vllm" / "entrypoints" / "openai"
        where.mkdir(parents=True)
        (site / "vllm" / "__init__.py").write_text("")
        (where / "api_server.py").write_text(STAND_IN)
        monkeypatch.setenv("PYTHONPATH", str(site))
        monkeypatch.setenv("HOW", how)
        monkeypatch.setenv("PIDS", str(tmp_path / "pids"))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        settings = VllmSettings(port=port, python=sys.executable, log=tmp_path / "log", shutdown_s=0.5)
        return StandIn(settings=settings, model=str(tmp_path / "model"), pids=tmp_path / "pids")

    return make


linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@linux
@pytest.mark.parametrize("how", ["serves", "deaf"])
def test_all_processes_end_with_the_block(how: str, stand_in: Callable[[str], StandIn]) -> None:
    there = stand_in(how)
    with there.open() as server:
        assert server.url == f"http://127.0.0.1:{there.settings.port}/v1"
        assert server.names == (there.model,)
        assert all(Path(f"/proc/{pid}").exists() for pid in map(int, there.pids.read_text().split()))
    assert there.running() == []
    assert "its log: " in there.notes[0]


@linux
def test_a_server_that_dies_while_it_loads_says_why(stand_in: Callable[[str], StandIn]) -> None:
    there = stand_in("dies")
    with (
        pytest.raises(VllmDiedError, match=r"vLLM died \(exit status 3\): .* all of it in .*log") as died,
        there.open(),
    ):
        pass
    assert tail(died.value.log) == ["begin dies", "ValueError: the real reason"]
    assert there.running() == []


@linux
def test_what_a_killed_server_leaves_behind_is_ended(stand_in: Callable[[str], StandIn]) -> None:
    """vLLM's engine and worker go on for ever, with their memory, when the process that started them is killed."""
    there = stand_in("serves")

    def kill_and_wait() -> None:
        with there.open() as server:
            os.kill(server.process.pid, signal.SIGKILL)
            server.wait()

    with pytest.raises(VllmDiedError, match="SIGKILL"):
        kill_and_wait()
    assert there.running() == []


@linux
def test_the_server_ends_with_the_process_that_started_it(stand_in: Callable[[str], StandIn], tmp_path: Path) -> None:
    there = stand_in("serves")
    words = [str(LAUNCHER), "serve", "{}", "--port", str(there.settings.port)]
    program = f"""
import os, subprocess, sys, time
words = [word.format(os.getpid()) for word in {words!r}]
subprocess.Popen([sys.executable, *words])
while not os.path.exists({str(there.pids)!r}) or not open({str(there.pids)!r}).read().count(" "):
    time.sleep(0.01)
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": os.environ["PYTHONPATH"]})
    first, second = map(int, there.pids.read_text().split())
    assert _gone(first)
    os.kill(second, signal.SIGKILL)
