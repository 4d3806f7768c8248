"""Plays the commands of one page in order, in a furnished folder."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from rlvr.cli.main import main
from tests.docs.pages import ROOT, Command
from tests.docs.treatments import OWN_TEST, TREATMENTS, Treatment
from tests.docs.world import World, fill_in, point_latest, shorten
from tests.system.harness import ENVIRONMENT, once

WAIT_S = 60.0
CURL = argparse.ArgumentParser()
for flag in ("-s", "-N", "-i"):
    CURL.add_argument(flag, action="store_true")
CURL.add_argument("-H", action="append", default=[])
CURL.add_argument("-d")
CURL.add_argument("-X")
CURL.add_argument("url")


def treatments_of(command: Command) -> list[Treatment]:
    """All entries of the table that fit."""
    fitting = [
        one
        for one in TREATMENTS
        if re.fullmatch(one.pages, command.page) and re.fullmatch(one.pattern, command.text, re.DOTALL)
    ]
    own = [one for one in fitting if one.why == "OWN_TEST"]
    return own or [one for one in fitting if one.why != "OWN_TEST"]


class Session:
    """The working folder of a page: what is trained, evaluated and served stays there until the page ends."""

    def __init__(self, folder: Path, world: World, output: Callable[[], tuple[str, str]]) -> None:
        """`output()` gives what was printed since it was asked the last time: stdout and stderr."""
        self._folder, self._world, self._output = folder, world, output
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        self._ports: dict[str, str] = {}  # as the page says -> as it is

    def play(self, command: Command) -> None:
        """AssertionError if the command does not do what its treatment says."""
        (treatment,) = treatments_of(command)
        getattr(self, f"_{treatment.kind}")(command, treatment)

    def close(self) -> None:
        """End the servers. AssertionError if one does not end when it is asked to."""
        for server in self._servers.values():
            server.terminate()
        for name, server in self._servers.items():
            assert server.wait(WAIT_S) in (0, 143, -15), name

    # ------------------------------------------------------------------------------------------------------ commands

    def _train(self, command: Command, treatment: Treatment) -> None:
        point_latest(self._folder, self._world, treatment.latest)
        words = fill_in(command.words, self._folder, self._world, treatment.latest)
        before = set((self._folder / "runs").iterdir())
        assert once(*words) == words, f"{command}: gives a key twice"
        self._run(once(*words, *treatment.more, *shorten(words, self._world)), command, treatment)
        if "resume=true" not in words and "run_dir=" not in " ".join(words) and treatment.code == 0:
            is_sweep = "--multirun" in words
            assert is_sweep or set((self._folder / "runs").iterdir()) > before, f"{command}: made no run"

    def _plain(self, command: Command, treatment: Treatment) -> None:
        point_latest(self._folder, self._world, treatment.latest)
        words = [self._port(word) for word in fill_in(command.words, self._folder, self._world, treatment.latest)]
        self._run([*words, *treatment.more], command, treatment)

    def _run(self, words: list[str], command: Command, treatment: Treatment) -> None:
        assert words[0] == "rlvr", command
        self._output()
        code = main(words[1:])
        out, err = self._output()
        if treatment.needs and importlib.util.find_spec(treatment.needs) is None:
            assert (code != 0, "pip install" in err) == (True, True), f"{command}: {err}"
            return
        assert code == treatment.code, f"{command}\n{words}\nexit status {code}\n{err[-2000:]}"
        assert treatment.says in err, f"{command}: {err}"
        assert "Traceback" not in err, command
        if command.output:
            (self._folder / command.output).write_text(out)

    def _override(self, command: Command, treatment: Treatment) -> None:
        """A setting of a training, shown by itself."""
        words = ["rlvr", "train", *treatment.more, *command.words, "--cfg", "job"]
        self._run(words, command, treatment)

    def _launched(self, command: Command, treatment: Treatment) -> None:
        """What a launcher starts in each of its processes."""
        words = [*command.words[command.words.index("rlvr") :], "--cfg", "job"]
        self._run(words, command, treatment)

    # --------------------------------------------------------------------------------------------------------- servers

    def _server(self, command: Command, treatment: Treatment) -> None:
        point_latest(self._folder, self._world, treatment.latest)
        words = fill_in(command.words, self._folder, self._world, treatment.latest)
        default = "8000" if words[1] == "serve" else "8931"
        said = words[words.index("--port") + 1] if "--port" in words else default
        if said in self._ports:  # the page starts it in another way: on a port of its own, then it ends
            self._stop(said)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._ports[said] = str(free.getsockname()[1])
        words += [*treatment.more, "--port", self._ports[said]]
        log = (self._folder / "server.log").open("wb")
        environment = os.environ | ENVIRONMENT | command.variables
        self._servers[said] = subprocess.Popen(
            [sys.executable, "-m", *words], cwd=self._folder, env=environment, stdout=log, stderr=log
        )
        log.close()
        self._wait(said, command)

    def _stop(self, port: str) -> None:
        server = self._servers.pop(port)
        server.terminate()
        server.wait(WAIT_S)

    def _wait(self, port: str, command: Command) -> None:
        end = time.monotonic() + WAIT_S
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self._ports[port]}/health", timeout=5).close()
                return
            except urllib.error.HTTPError:
                return
            except OSError:
                log = (self._folder / "server.log").read_text()
                assert self._servers[port].poll() is None, f"{command}: {log}"
                assert time.monotonic() < end, f"{command}: {log}"
                time.sleep(0.1)

    def _port(self, word: str) -> str:
        return re.sub(r"(localhost|127\.0\.0\.1):(\d+)", self._actual, word)

    def _actual(self, match: re.Match[str]) -> str:
        return f"127.0.0.1:{self._ports.get(match[2], match[2])}"

    def _request(self, command: Command, treatment: Treatment) -> None:
        """What `curl [-s] [-N] [-H HEADER] [-d BODY] URL` asks for."""
        said = CURL.parse_args(command.words[1:])
        url = self._port(said.url if "://" in said.url else f"http://{said.url}")
        headers = dict(one.split(": ", 1) for one in said.H)  # with -d urllib says what curl says: a form
        data = said.d.encode() if said.d else None
        request = urllib.request.Request(url, data=data, headers=headers, method=said.X)
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            assert answer.status == 200, command
            body = answer.read()
        assert body, command
        if answer.headers.get_content_type() == "application/json":
            json.loads(body)

    # ------------------------------------------------------------------------------------------------ what is not run

    def _install(self, command: Command, treatment: Treatment) -> None:
        """The extras and packages of this project that are installed exist, and so do scripts."""
        settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
        extras = settings["project"]["optional-dependencies"]
        named = re.findall(r"(?:\.|rlvr)\[([\w,-]+)\]", command.text)
        assert all(extra in extras for names in named for extra in names.split(",")), command
        for package in re.findall(r"-e (plugins/\S+)", command.text):
            assert (ROOT / package / "pyproject.toml").is_file(), command
        for script in re.findall(r"benchmarks/\w+\.py", command.text):
            assert (ROOT / script).is_file(), command

    def _elsewhere(self, command: Command, treatment: Treatment) -> None:
        """The test that runs it exists, and knows the page or the command."""
        test = OWN_TEST[command.page] if treatment.why == "OWN_TEST" else treatment.why
        if test.startswith(("tests/", "plugins/")):
            text = (ROOT / test).read_text()
            known = (Path(command.page).name, *(word for word in command.words if "env_id=" in word), command.words[0])
            assert any(word in text for word in known), f"{command}: {test} does not speak of it"
