"""Starting, watching and ending vLLM, with a small program in its place; the system tests start the real one."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from rlvr.cli.main import main
from rlvr.commands.serve.vllm import LAUNCHER, VllmDiedError, VllmServer, VllmSettings, open_vllm
from tests.system.harness import wait_until
from tests.system.served import served
from tests.unit.commands.test_vllm_server import package
from tests.unit.models.test_scratch import model

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

STAND_IN = """
import http.server, json, os, signal, subprocess, sys, time
print("begin", os.environ["HOW"], flush=True)
child = subprocess.Popen(["sleep", "600"])
with open(os.environ["PIDS"], "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
with open(os.environ["PIDS"] + ".told", "w") as file:
    json.dump({"argv": sys.argv[1:], "key": os.environ.get("VLLM_API_KEY")}, file)
if os.environ["HOW"] == "dies":
    print("ValueError: the real reason", flush=True)
    os._exit(3)
def end(number, frame):
    if os.environ["HOW"] != "deaf":
        time.sleep(0.2)
        print("goodbye", flush=True)
        os._exit(0)
signal.signal(signal.SIGTERM, end)
asked = []

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        asked.append(self.path)
        loads = len(asked) < 3
        if not loads:
            print("ready", file=sys.stderr, flush=True)
        self.send_response(503 if loads else 200)
        self.end_headers()
        if not loads and os.environ["HOW"] == "quits":
            self.wfile.flush()
            self.connection.shutdown(2)
            os._exit(5)

    def log_message(self, *words):
        pass

port = int(sys.argv[sys.argv.index("--port") + 1])
host = sys.argv[sys.argv.index("--host") + 1]
http.server.ThreadingHTTPServer((host, port), Handler).serve_forever()
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

    @property
    def log(self) -> list[str]:
        return (self.pids.parent / "log").read_text().splitlines()

    def told(self, option: str) -> str:
        """What vLLM is started with."""
        words = json.loads(self.pids.with_suffix(".told").read_text())["argv"]
        assert words.count(option) == 1
        return words[words.index(option) + 1]

    def wait_for_the_end(self) -> None:
        """Until all its processes have ended."""
        for pid in map(int, self.pids.read_text().split()):
            wait_until(lambda pid=pid: not is_running(pid))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


Make = Callable[[str], StandIn]
VLLM = ("--engine", "vllm", "--vllm-python", sys.executable)


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: Any) -> Make:
    """A program that `HOW`: serves, dies, quits once it is ready, or is deaf to SIGTERM."""
    monkeypatch.setattr("rlvr.commands.serve.vllm.POLL_S", 0.02)
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    monkeypatch.delenv("RLVR_API_KEY", raising=False)
    model(head_dim=32).save_pretrained(tmp_path / "model")

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
        shutdown_s = 0.5 if how == "deaf" else 60.0
        settings = VllmSettings(port=port, python=sys.executable, log=tmp_path / "log", shutdown_s=shutdown_s)
        return StandIn(settings=settings, model=str(tmp_path / "model"), pids=tmp_path / "pids")

    return make


@pytest.mark.slow
@pytest.mark.parametrize(("how", "host"), [("serves", "127.0.0.2"), ("deaf", "127.0.0.1")])
def test_all_processes_end_with_the_block(how: str, host: str, stand_in: Make) -> None:
    there = stand_in(how)
    there.settings = replace(there.settings, host=host)
    with there.open() as server:
        assert server.url == f"http://{host}:{there.settings.port}/v1"
        assert server.names == (there.model,)
        assert all(Path(f"/proc/{pid}").exists() for pid in map(int, there.pids.read_text().split()))
        assert there.log == [f"begin {how}", "ready"], "it answers before it is ready, and stderr goes into the log"
    there.wait_for_the_end()
    assert there.log[2:] == ([] if how == "deaf" else ["goodbye"])
    assert there.notes[0].endswith(f"its log: {there.settings.log}")


def test_a_temporary_log_stays_only_after_a_failure(stand_in: Make) -> None:
    for how, stays in (("serves", False), ("dies", True)):
        there = stand_in(how)
        there.settings = replace(there.settings, log=None)
        with suppress(VllmDiedError), there.open():
            pass
        log = Path(there.notes[0].rpartition(": ")[2])
        assert log.is_file() == stays
        log.unlink(missing_ok=True)


def test_a_temporary_log_may_have_been_removed(stand_in: Make) -> None:
    there = stand_in("serves")
    there.settings = replace(there.settings, log=None)
    with there.open() as server:
        server.log.unlink()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "variables", "key"),
    [
        ("--api-key hush --max-context-tokens 40 --max-batch-size 3 --host 0.0.0.0", {"RLVR_API_KEY": "no"}, "hush"),
        ("--host 0.0.0.0", {"RLVR_API_KEY": "hush", "VLLM_API_KEY": "no"}, "hush"),
        ("--host 0.0.0.0", {"VLLM_API_KEY": "hush"}, "hush"),
        ("--host 0.0.0.0", {}, None),
    ],
)
def test_the_command_prints_the_address_and_the_end(
    words: str, variables: dict[str, str], key: str | None, stand_in: Make, monkeypatch: Any, capsys: Any
) -> None:
    there = stand_in("quits")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    log = str(there.settings.log)
    assert main(["serve", there.model, *VLLM, "--port", "0", "--log", log, *words.split()]) == 1
    out, err = capsys.readouterr()
    assert out == f"http://0.0.0.0:{there.told('--port')}/v1\n"
    assert json.loads(there.pids.with_suffix(".told").read_text())["key"] == key
    assert ("can use the model, and give it other weights: give an --api-key" in err) == (key is None)
    assert "\nbegin quits\nready\nrlvr: error: vLLM died (exit status 5)" in err
    assert f"all of it in {log}." in err
    if "--max" in words:
        assert (there.told("--max-model-len"), there.told("--max-num-seqs")) == ("40", "3")
    there.wait_for_the_end()


@pytest.mark.slow
def test_sigterm_ends_the_server_and_the_command(stand_in: Make) -> None:
    there = stand_in("serves")
    with served(there.model, [*VLLM, "--log", str(there.settings.log)]) as server:
        server.process.terminate()
        code, err = server.ended()
    assert code == 143
    said = [line.partition(" of ")[0] for line in err.splitlines() if "vLLM is loading for" not in line]
    assert said == ["rlvr: vLLM 0.32.0", f"rlvr: serving {there.model}; Ctrl-C stops it"]
    assert there.log[-1] == "goodbye"
    there.wait_for_the_end()


def test_a_server_that_dies_while_loading_says_why(stand_in: Make, capsys: Any) -> None:
    there = stand_in("dies")
    assert main(["serve", there.model, *VLLM, "--port", "0"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "\nbegin dies\nValueError: the real reason\nrlvr: error: vLLM died (exit status 3)" in err
    there.wait_for_the_end()
    Path(err.rpartition("all of it in ")[2].strip().rstrip(".")).unlink()


def test_children_of_a_killed_server_are_ended(stand_in: Make) -> None:
    """vLLM's engine and worker go on for ever, with their memory, when the process that started them is killed."""
    there = stand_in("serves")

    def kill_and_wait() -> None:
        with there.open() as server:
            os.kill(server.process.pid, signal.SIGKILL)
            server.wait()

    with pytest.raises(VllmDiedError, match="SIGKILL"):
        kill_and_wait()
    there.wait_for_the_end()


def test_the_server_ends_with_the_process_that_started_it(stand_in: Make, tmp_path: Path) -> None:
    there = stand_in("serves")
    words = [str(LAUNCHER), "serve", "{}", "--host", "127.0.0.1", "--port", str(there.settings.port)]
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
    wait_until(lambda: not is_running(first))
    os.kill(second, signal.SIGKILL)
