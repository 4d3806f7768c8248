"""What a jail promises to honest programs, and how it says why one failed; tests/jail has the attacks."""

import os
import time
from collections.abc import Iterator

import pytest

from rlvr.errors import UserError
from rlvr.jail import jail as jails
from rlvr.jail import ways
from rlvr.jail.jail import Jail, JailError, chosen_way
from rlvr.jail.outcome import Limits, Outcome
from rlvr.jail.ways import WAYS
from tests.jail.ways import opened


@pytest.fixture(scope="module", params=(*WAYS, "none"))
def jail(request: pytest.FixtureRequest) -> Iterator[Jail]:
    with opened(request.param) as jail:
        yield jail


ENDS = {
    "print(int(input()) + 1)": Outcome(status="ended", output="5\n"),
    "open(1, 'w').write(open(0).read())": Outcome(status="ended", output="4"),
    "raise SystemExit": Outcome(status="ended"),
    "import atexit\natexit.register(print, 'last')\nprint('first')": Outcome(status="ended", output="first\nlast\n"),
    "import threading, time\nthreading.Thread(target=lambda: (time.sleep(.05), print('late'))).start()": Outcome(
        status="ended", output="late\n"
    ),
    "import asyncio\nasyncio.run(asyncio.sleep(0))\nprint('é')": Outcome(status="ended", output="é\n"),
    "print('before')\n1 / 0": Outcome(
        status="raised", output="before\n", message="ZeroDivisionError: division by zero"
    ),
    "raise SystemExit(3)": Outcome(status="raised", message="ended with code 3"),
    "raise SystemExit('why')": Outcome(status="raised", message="why"),
    "x = (": Outcome(status="raised", message="SyntaxError: '(' was never closed"),
    "x = bytearray(1 << 40)": Outcome(status="out of memory", message="MemoryError"),
}


@pytest.mark.parametrize("program", ENDS)
def test_how_a_program_ends(jail: Jail, program: str) -> None:
    assert jail.run(program, stdin="4") == ENDS[program]


def test_the_limits_of_time_and_output(jail: Jail) -> None:
    began = time.monotonic()
    assert jail.run("import time\ntime.sleep(60)", limits=Limits(wall_s=0.2)).status == "timed out"
    assert jail.run("while True: pass", limits=Limits(cpu_s=1, wall_s=20)).status == "timed out"
    assert time.monotonic() - began < 45
    small = Limits(output_bytes=100, wall_s=60.0)
    assert jail.run("print('x' * 99)", limits=small).status == "ended"
    assert jail.run("print('x' * 100)", limits=small).message == "wrote more than 100 bytes"


def test_an_input_of_megabytes_comes_back(jail: Jail) -> None:
    text = "0123456789" * 300_000
    outcome = jail.run("print(input())", stdin=text, limits=Limits(wall_s=30, output_bytes=1 << 22))
    assert outcome.output == text + "\n"


def test_the_environment_is_empty_and_hashes_are_those_of_every_run(jail: Jail) -> None:
    assert "HOME" not in jail.run("import os\nprint(dict(os.environ))").output
    outputs = {jail.run("print(hash('a'))").output}
    with Jail(jail.way) as another:
        outputs.add(another.run("print(hash('a'))").output)
    assert len(outputs) == 1


def test_files_are_in_the_folder_of_the_program() -> None:
    with Jail(chosen_way("auto")) as jail:
        if jail.way == "landlock":
            pytest.skip("Landlock has no place for files")
        program = "import os\nprint(open('a/b.txt').read(), sorted(os.listdir()))\nopen('new', 'w')"
        for _ in range(2):  # the second finds nothing of the first
            outcome = jail.run(program, files={"a/b.txt": "text"})
            assert outcome == Outcome(status="ended", output="text ['a']\n")
        assert jail.run("", files={"../x": ""}).status == jail.run("", files={"/x": ""}).status == "error"


def test_without_a_place_for_files_none_are_promised() -> None:
    with Jail("none") as jail:
        assert jail.run("", files={"a": ""}).message == "isolation=none has no place for files"


def test_a_jail_whose_process_was_killed_starts_anew(jail: Jail) -> None:
    jail._process.kill()
    jail._process.wait()
    assert jail.run("print(1)").output == "1\n"


def test_no_process_is_left_when_it_closes(jail: Jail) -> None:
    with Jail(jail.way) as another:
        pid = another._process.pid
        assert another.run("print(1)").output == "1\n"
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_where_no_way_works_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(way: str) -> Jail:
        raise JailError("unshare: Operation not permitted")

    monkeypatch.setattr(jails, "Jail", refused)
    chosen_way.cache_clear()
    with pytest.raises(UserError, match=r"namespaces: unshare: Operation not permitted.*isolation=none"):
        chosen_way("auto")
    with pytest.raises(UserError, match=r"no way of isolating programs works here \(landlock: unshare"):
        chosen_way("landlock")
    assert chosen_way("none") == "none"
    chosen_way.cache_clear()


def test_a_missing_bwrap_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "bwrap_path", lambda: None)
    with pytest.raises(JailError, match="there is no bwrap"):
        Jail("bwrap")


@pytest.mark.parametrize(
    ("machine", "platform", "words"),
    [("x86_64", "darwin", "train on Linux"), ("riscv64", "linux", "x86_64 and aarch64"), ("x86_64", "linux", "none")],
)
def test_the_remedy_is_that_of_the_system(
    monkeypatch: pytest.MonkeyPatch, machine: str, platform: str, words: str
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("sys.platform", platform)
    assert words in ways.remedy()
