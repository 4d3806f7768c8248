"""A process that has loaded libraries and test modules, and forks for each run of tests: that takes half a second.

    python -m tests.pitfalls.zygote

One line of JSON in, `{"bug": 3, "tests": ["tests/unit/...::test_x"]}` (a place in `PLANTED`, or null for none); one
line out, `{"code": 1, "output": "..."}`, with the exit status of pytest.
"""

import contextlib
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 60


class Zygote:
    """The process, from outside."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.pitfalls.zygote"],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, tests: Sequence[str], bug: int | None = None) -> tuple[int, str]:
        """The exit status of pytest and the end of what it printed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({"bug": bug, "tests": tests}), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        return answer["code"], answer["output"]

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def main() -> None:
    """Serve until stdin ends."""
    importlib.import_module("tests.conftest")  # settings that must be made before torch is imported
    for line in sys.stdin:
        task = json.loads(line)
        for file in {test.partition("::")[0] for test in task["tests"]}:
            with contextlib.suppress(Exception):  # pytest will report it
                importlib.import_module(file.removesuffix(".py").replace("/", "."))
        gc.collect()
        gc.freeze()  # the children's collections leave these objects alone
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryDirectory() as folder:
            child = os.fork()
            if child == 0:
                run(task["tests"], task["bug"], output.fileno(), folder)
            _, status = os.waitpid(child, 0)
            output.seek(0)
            answer = {"code": os.waitstatus_to_exitcode(status), "output": output.read()[-4000:]}
            print(json.dumps(answer), flush=True)


def run(tests: Sequence[str], bug: int | None, output: int, folder: str) -> NoReturn:
    """Plant the bug and run the tests; the process ends with pytest's status, or by a signal at the deadline.

    A folder of its own, since processes that end at once remove each other's links in the common one.
    """
    code = 3  # pytest's for an internal error
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        signal.alarm(DEADLINE_S)
        import pytest

        if bug is not None:
            from tests.pitfalls.table import PLANTED

            PLANTED[bug].plant()
        early = "ignore::pytest.PytestAssertRewriteWarning"  # what was loaded before pytest is not rewritten by it
        alone = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "--timeout=0", f"--basetemp={folder}/tests"]
        code = int(pytest.main([*alone, "-W", early, *tests]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
