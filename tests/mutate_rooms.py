"""How much of each room the unit tests hold: a random sample of changed operators and constants, by room.

    python -m tests.mutate_rooms --rooms core rewards --sample 60 --seed 1 --results results.jsonl
    python -m tests.mutate_rooms --show results.jsonl        # the table again, after survivors were judged

A change in a function is tried on the tests that run its line, among those that mirror its module, name it, or are of
its room; one that import makes, of a constant or a default, on those that run any line of the module, and those of the
settings' defaults. What survives is tried on slow tests that mirror or name the module, too (those of `checks` are
asked at once), and in a command's folder on the system test of that name. Changes that make no difference are listed in
`tests/equivalent_changes.txt`, with the reason, and not tried; each other survivor is a missing test. Prints a table of
the rooms, and the survivors.
"""

import argparse
import ast
import json
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.mutate import load, mutants, survives

ROOMS = ("core", "rewards", "tasks", "evaluation", "training", "serve", "run", "commands", "checks", "search")
SOURCE, TESTS, EQUIVALENT = Path("src/rlvr"), Path("tests/unit"), Path("tests/equivalent_changes.txt")
SYSTEM, COMMANDS = Path("tests/system"), "tests/unit/commands/"  # which name modules of every room
LONGEST_S = 1800  # of a room's tests
DEFAULTS = "tests/unit/config/test_docs.py"  # every setting's default is on a page
Ran = dict[str, dict[str, list[str]]]  # by file and line the tests that run it
FAST, UNIT = ("-m", "not slow and not pitfalls and not long"), ("-m", "not pitfalls and not long")
SLOW = ("-m", "slow and not pitfalls and not long")
SLOW_ROOMS = ("checks",)  # all of whose tests make models
ELSEWHERE = {"checks": TESTS / "commands/test_doctor.py", "commands": TESTS / "cli/test_defaults.py"}
"""Tests of all modules of a room."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """A changed place of a module."""

    file: Path
    number: int  # in the order of `mutants`

    @property
    def module(self) -> str:
        return ".".join(self.file.with_suffix("").parts[1:]).removesuffix(".__init__")


@dataclass(frozen=True, kw_only=True)
class Result:
    """Of a sample of a room's changes."""

    room: str
    seed: int
    possible: int
    tried: int
    survivors: list[str]


def marks(room: str) -> tuple[str, ...]:
    return UNIT if room in SLOW_ROOMS else FAST


def changes(room: str) -> list[Change]:
    """All changes of a room's modules."""
    return [
        Change(file=file, number=number)
        for file in sorted((SOURCE / room).rglob("*.py"))
        for number, _ in enumerate(mutants(ast.parse(file.read_text())))
    ]


def tests_of(room: str, file: Path) -> list[str]:
    """Test files of a module: those close to it, and the others of the room."""
    rest = [str(one) for one in sorted((TESTS / room).rglob("test_*.py"))]
    return list(dict.fromkeys((*close_tests(room, file), *rest, DEFAULTS)))


def close_tests(room: str, file: Path) -> list[str]:
    """Those that mirror a module, and those that name it."""
    package = ".".join(file.parts[1:-1])
    dotted = package if room == "commands" or file.stem == "__init__" else f"{package}.{file.stem}"
    named = [str(one) for one in sorted(TESTS.rglob("test_*.py")) if names(one, dotted)]
    return list(dict.fromkeys((*mirrors(room, file), *named)))


def mirrors(room: str, file: Path) -> list[str]:
    found = sorted((TESTS / room).rglob(f"test_{file.parent.name if room == 'commands' else file.stem}.py"))
    return [str(one) for one in (*found, *((ELSEWHERE[room],) if room in ELSEWHERE else ()))]


def names(test: Path, module: str) -> bool:
    """Whether a test has the name of a module, in one piece or as `from package import module`."""
    package, _, last = module.rpartition(".")
    text = test.read_text()
    return module in text or re.search(rf"from {re.escape(package)} import .*\b{last}\b", text) is not None


def tried(room: str, change: Change, ran: Ran, deadline_s: int) -> str | None:
    """The change in words; None if a test fails with it."""
    tree = ast.parse(change.file.read_text())
    told, statement = in_words(change.module, tree)[change.number], statements(tree)
    if told in equivalent():
        return told
    for number, (_, line) in enumerate(mutants(tree)):
        if number == change.number:
            tests = tests_that_run(ran.get(str(change.file), {}), statement.get(line))
            if line not in statement:
                tests = [*tests, DEFAULTS] if tests else tests_of(room, change.file)
            elif not tests:  # perhaps in another process
                tests = mirrors(room, change.file)
            asked = [([*marks(room), *tests], deadline_s)] if tests else []
            if room not in SLOW_ROOMS:
                close = [one for one in close_tests(room, change.file) if room == "commands" or COMMANDS not in one]
                asked += [([*SLOW, *close], LONGEST_S)] if close else []
            system = SYSTEM / f"test_{change.file.parts[3]}.py"
            if room == "commands" and system.is_file():  # the product's contract is tested there
                asked.append(([*UNIT, str(system)], LONGEST_S))
            return told if all(survives(change.module, tree, *one) for one in asked) else None
    raise AssertionError(change)


def in_words(module: str, tree: ast.Module) -> list[str]:
    """All changes of a module, with the function instead of the line, which moves, and `(2 of 3)` where it has several
    alike."""
    told = [f"{module}{function_at(tree, line)}: {' '.join(words.split())}" for words, line in mutants(tree)]
    total, seen = Counter(told), Counter[str]()
    for number, one in enumerate(told):
        seen[one] += 1
        told[number] = one if total[one] == 1 else f"{one} ({seen[one]} of {total[one]})"
    return told


def tests_that_run(ran: dict[str, list[str]], lines: range | None) -> list[str]:
    """The tests that run one of these lines; None: any line of the file, as of a change that import makes."""
    found = ran.values() if lines is None else [ran.get(str(one), []) for one in lines]
    return sorted({test for tests in found for test in tests})


def statements(tree: ast.Module) -> dict[int, range]:
    """For each line inside of a function those of its statement, without the statements inside of that."""
    found = dict[int, range]()
    functions = ast.FunctionDef, ast.AsyncFunctionDef
    bodies = [body for node in ast.walk(tree) if isinstance(node, functions) for body in node.body]
    inside = [one for body in bodies for one in ast.walk(body) if isinstance(one, ast.stmt)]
    for node in sorted(inside, key=lambda one: one.lineno):  # the innermost last
        own = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        if body := getattr(node, "body", None):
            own = range(node.lineno, max(node.lineno + 1, body[0].lineno))
        found |= dict.fromkeys(own, own)
    return found


def function_at(tree: ast.AST, line: int) -> str:
    """`.Class.function` around a line; empty outside of any."""
    kinds = ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    around = [
        node for node in ast.walk(tree) if isinstance(node, kinds) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return "".join(f".{node.name}" for node in sorted(around, key=lambda node: node.lineno))


def lines_run(room: str, tests: Sequence[str]) -> Ran:
    """Which of the tests run which lines, without a change."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LINES_RUN"] = str(Path(folder, "lines.json"))
        module, tree = f"rlvr.{room}", ast.parse((SOURCE / room / "__init__.py").read_text())
        if not survives(module, tree, [*marks(room), "-p", "tests.lines_run", *tests], LONGEST_S):
            sys.exit(f"{TESTS / room}: fails without any change")
        return json.loads(Path(os.environ["LINES_RUN"]).read_text())


def sampled(room: str, sample: int, seed: int) -> Result:
    """Try a sample of the room's changes."""
    possible = changes(room)
    chosen = random.Random(f"{seed} {room}").sample(possible, min(sample, len(possible)))
    started = time.monotonic()
    ran = lines_run(room, sorted({test for change in chosen for test in tests_of(room, change.file)}))
    deadline_s = 30 + round(time.monotonic() - started)
    found = []
    for change in chosen:
        started = time.monotonic()
        survivor = tried(room, change, ran, deadline_s)
        told = survivor or f"{change.module}: caught"
        print(f"{told}  ({time.monotonic() - started:.1f} s)", file=sys.stderr, flush=True)
        if survivor is not None:
            found.append(survivor)
    return Result(room=room, seed=seed, possible=len(possible), tried=len(chosen), survivors=found)


def equivalent() -> set[str]:
    """The changes that make no difference."""
    return {line for line in EQUIVALENT.read_text().splitlines() if not line.startswith(("#", " "))}


def row(result: Result) -> str:
    """A row of the table; the share leaves out changes that make no difference."""
    same = sum(one in equivalent() for one in result.survivors)
    missed = len(result.survivors) - same
    caught = result.tried - same - missed
    share = 100 * caught / max(1, result.tried - same)
    return f"| {result.room} | {result.possible:,} | {result.tried} | {caught} | {same} | {missed} | {share:.0f} % |"


def show(results: Path) -> None:
    """The table of a file of results, and the survivors that make a difference."""
    found = [Result(**json.loads(line)) for line in results.read_text().splitlines()]
    print("| room | possible changes | tried | caught | make no difference | missed | caught of those that do |")
    print("|---|---|---|---|---|---|---|")
    print(*map(row, found), sep="\n")
    total = Result(
        room="all",
        seed=0,
        possible=sum(one.possible for one in found),
        tried=sum(one.tried for one in found),
        survivors=[survivor for one in found for survivor in one.survivors],
    )
    print(row(total), end="\n\n")
    print(*(f"    {survivor}" for survivor in total.survivors if survivor not in equivalent()), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rooms", nargs="+", choices=ROOMS, default=ROOMS)
    parser.add_argument("--sample", type=int, default=60, help="changes a room (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=Path("results.jsonl"), help="gets a line for each room")
    parser.add_argument("--show", type=Path, metavar="RESULTS", help="only the table of these results")
    arguments = parser.parse_args()
    if arguments.show:
        show(arguments.show)
        return
    load()
    for room in arguments.rooms:
        result = sampled(room, arguments.sample, arguments.seed)
        with arguments.results.open("a") as lines:
            print(json.dumps(asdict(result)), file=lines)
    show(arguments.results)


if __name__ == "__main__":
    main()
