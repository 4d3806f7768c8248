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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import tests.mutants
from tests.mutants.mutant import Mutant

Item = TypeVar("Item")
ROOT = Path(__file__).resolve().parents[2]


def load(parts: list[str]) -> list[Mutant]:
    """The mutants of the named parts, or of all."""
    parts_found = [m.name for m in pkgutil.iter_modules(tests.mutants.__path__)]
    names = [name for name in parts_found if name not in ("mutant", "pitfalls", "zygote", "__main__")]
    chosen = [name for name in names if not parts or name in parts]
    return [mutant for name in chosen for mutant in importlib.import_module(f"tests.mutants.{name}").MUTANTS]


class Runner:
    """A process that runs tests of copies of the tree, one after another (`zygote`)."""

    def __init__(self) -> None:
        environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        command = [sys.executable, "-P", str(Path(__file__).with_name("zygote.py"))]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, tree: Path, test: str) -> tuple[int, str]:
        """The exit status of pytest and the end of what it printed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({"tree": str(tree), "test": test}), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        return answer["code"], answer["output"]

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def survives(mutant: Mutant, runner: Runner) -> str | None:
    """None if the bug is caught, else what went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        tree = copy_tree(Path(folder))
        file = tree / "src" / "rlvr" / mutant.file
        source = file.read_text()
        if source.count(mutant.old) != 1:
            return f"`old` occurs {source.count(mutant.old)} times in {mutant.file}"
        file.write_text(source.replace(mutant.old, mutant.new))
        code, output = runner.run(tree, mutant.test)
    return None if code == 1 else f"pytest exited {code} instead of 1: {output[-300:]}"


def fails(test: str, runner: Runner) -> str | None:
    """None if the test passes without any bug, else what went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        code, output = runner.run(copy_tree(Path(folder)), test)
    return None if code == 0 else f"pytest exited {code} instead of 0: {output[-300:]}"


def copy_tree(folder: Path) -> Path:
    """What tests need of the repository."""
    tree = folder / "tree"
    tree.mkdir()
    for name in ("src", "tests", "examples", "docs"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tree)
    return tree


def each(function: Callable[[Item, Runner], str | None], items: Sequence[Item], jobs: int) -> Iterator[str | None]:
    """What `function` finds for each item, in their order; `jobs` at the same time."""
    runners: queue.SimpleQueue[Runner] = queue.SimpleQueue()
    for _ in range(jobs):
        runners.put(Runner())

    def call(item: Item) -> str | None:
        runner = runners.get()
        try:
            return function(item, runner)
        finally:
            runners.put(runner)

    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(call, items)
    for _ in range(jobs):
        runners.get().close()


def main() -> int:
    """Print one line per mutant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="modules of tests/mutants; none: all")
    parser.add_argument("--jobs", type=int, default=1, help="bugs tried at the same time")
    parser.add_argument("--unharmed", action="store_true", help="run the tests without the bugs: they must pass")
    arguments = parser.parse_args()
    mutants = load(arguments.parts)
    skipped = [mutant for mutant in mutants if mutant.needs and importlib.util.find_spec(mutant.needs) is None]
    mutants = [mutant for mutant in mutants if mutant not in skipped]
    for mutant in skipped:
        print(f"SKIPPED  pitfall {mutant.pitfall:>4}  {mutant.test} {mutant.needs} is not installed", flush=True)
    if arguments.unharmed:
        return check_unharmed(list(dict.fromkeys(mutant.test for mutant in mutants)), arguments.jobs)
    failed = 0
    for mutant, problem in zip(mutants, each(survives, mutants, arguments.jobs), strict=True):
        failed += problem is not None
        verdict = "SURVIVED" if problem else "caught  "
        print(f"{verdict} pitfall {mutant.pitfall:>4}  {mutant.test}", problem or "", flush=True)
    untried = f", {len(skipped)} not tried" if skipped else ""
    print(f"{len(mutants) - failed} of {len(mutants)} planted bugs caught{untried}")
    return int(failed > 0 or not mutants + skipped)


def check_unharmed(tests: Sequence[str], jobs: int) -> int:
    """Print the tests that fail without any bug."""
    problems = 0
    for test, problem in zip(tests, each(fails, tests, jobs), strict=True):
        problems += problem is not None
        if problem:
            print("FAILS   ", test, problem, flush=True)
    print(f"{len(tests) - problems} of {len(tests)} tests of planted bugs pass without them")
    return int(problems > 0)


if __name__ == "__main__":
    raise SystemExit(main())
