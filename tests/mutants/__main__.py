"""Plant every known bug in a copy of the tree and demand that its test fails.

    python -m tests.mutants [--jobs N] [--unharmed] [PART ...]

A part is a module of this package that holds a list `MUTANTS`. Exit status 1 if a bug survives. With `--unharmed` the
same tests run without the bugs, in the same way, and all must pass: else one of them would fail with any bug.
"""

import argparse
import importlib
import importlib.util
import json
import os
import pkgutil
import queue
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import tests.mutants
from tests.mutants.mutant import Mutant
from tests.vllm_python import missing_vllm

Item = TypeVar("Item")
ROOT = Path(__file__).resolve().parents[2]


def load(parts: list[str]) -> list[Mutant]:
    """The mutants of the named parts, or of all."""
    parts_found = [m.name for m in pkgutil.iter_modules(tests.mutants.__path__)]
    names = [name for name in parts_found if name not in ("mutant", "pitfalls", "zygote", "__main__")]
    chosen = [name for name in names if not parts or name in parts]
    return [mutant for name in chosen for mutant in importlib.import_module(f"tests.mutants.{name}").MUTANTS]


class Runner:
    """A process that runs tests of a tree, one after another (`zygote`)."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        # bytecode of a bug could pass for that of the next one: same file, size and second
        environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        command = [sys.executable, "-P", str(Path(__file__).with_name("zygote.py")), str(tree)]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, test: str) -> tuple[int, str]:
        """The exit status of pytest and the end of what it printed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(test), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        return answer["code"], answer["output"]

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def is_there(library: str) -> bool:
    """Whether a library is installed; vLLM is in an environment of its own."""
    return missing_vllm() is None if library == "vllm" else importlib.util.find_spec(library) is not None


def survives(mutant: Mutant, runner: Runner) -> str | None:
    """None if the bug is caught, else what went wrong."""
    file = runner.tree / "src" / "rlvr" / mutant.file
    source, times = file.read_text(), file.stat()
    if source.count(mutant.old) != 1:
        return f"`old` occurs {source.count(mutant.old)} times in {mutant.file}"
    file.write_text(source.replace(mutant.old, mutant.new))
    code, output = runner.run(mutant.test)
    file.write_text(source)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # its bytecode is good again
    return None if code == 1 else f"pytest exited {code} instead of 1: {output[-300:]}"


def fails(test: str, runner: Runner) -> str | None:
    """None if the test passes without any bug, else what went wrong."""
    code, output = runner.run(test)
    return None if code == 0 else f"pytest exited {code} instead of 0: {output[-300:]}"


def copy_compiled(folder: Path, tests: Iterable[str]) -> None:
    """What tests need of the repository as it is now, with bytecode: most of the time of a small test is compiling."""
    for name in ("src", "tests", "examples", "docs"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "pyproject.toml", folder)
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPATH": str(folder / "src")}
    files = sorted({test.partition("::")[0] for test in tests})
    collect = ["pytest", "--collect-only", "-n", "0", "-p", "no:cacheprovider", *files]  # pytest compiles them its way
    for command in (["compileall", "-q", "src"], collect):
        subprocess.run([sys.executable, "-m", *command], cwd=folder, env=environment, stdout=subprocess.DEVNULL)


@contextmanager
def runners(jobs: int, tests: Iterable[str]) -> Iterator[queue.SimpleQueue[Runner]]:
    """As many as jobs, each with a tree of its own in which `tests` are compiled."""
    idle: queue.SimpleQueue[Runner] = queue.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        first = Path(folder) / "0"
        copy_compiled(first, tests)
        for job in range(jobs):
            tree = first if job == 0 else shutil.copytree(first, Path(folder) / str(job))
            idle.put(Runner(tree))
        yield idle
        for _ in range(jobs):
            idle.get().close()


def each(
    function: Callable[[Item, Runner], str | None], items: Sequence[Item], tests: Sequence[str], jobs: int
) -> Iterator[str | None]:
    """What `function` finds for each item, in their order; `jobs` at the same time."""
    with runners(jobs, tests) as idle, ThreadPoolExecutor(jobs) as pool:

        def call(item: Item) -> str | None:
            runner = idle.get()
            try:
                return function(item, runner)
            finally:
                idle.put(runner)

        yield from pool.map(call, items)


def main() -> int:
    """Plant them, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="modules of tests/mutants; none: all")
    parser.add_argument("--jobs", type=int, default=1, help="bugs tried at the same time")
    parser.add_argument("--unharmed", action="store_true", help="run the tests without the bugs: they must pass")
    arguments = parser.parse_args()
    mutants = load(arguments.parts)
    skipped = [mutant for mutant in mutants if mutant.needs and not is_there(mutant.needs)]
    mutants = [mutant for mutant in mutants if mutant not in skipped]
    for mutant in skipped:
        print(f"SKIPPED  pitfall {mutant.pitfall:>4}  {mutant.test} {mutant.needs} is not installed", flush=True)
    tests = list(dict.fromkeys(mutant.test for mutant in mutants))
    if arguments.unharmed:
        return check_unharmed(tests, arguments.jobs)
    survivors = 0
    for mutant, problem in zip(mutants, each(survives, mutants, tests, arguments.jobs), strict=True):
        survivors += problem is not None
        verdict = "SURVIVED" if problem else "caught  "
        print(f"{verdict} pitfall {mutant.pitfall:>4}  {mutant.test}", problem or "", flush=True)
    untried = f", {len(skipped)} not tried" if skipped else ""
    print(f"{len(mutants) - survivors} of {len(mutants)} planted bugs caught{untried}")
    return int(survivors > 0 or not mutants + skipped)


def check_unharmed(tests: Sequence[str], jobs: int) -> int:
    """Print the tests that fail without any bug."""
    problems = 0
    for test, problem in zip(tests, each(fails, tests, tests, jobs), strict=True):
        problems += problem is not None
        if problem:
            print("FAILS   ", test, problem, flush=True)
    print(f"{len(tests) - problems} of {len(tests)} tests of planted bugs pass without them")
    return int(problems > 0)


if __name__ == "__main__":
    raise SystemExit(main())
