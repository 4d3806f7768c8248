"""How much of each room the unit tests hold: a random sample of changed operators and constants, by room.

    python -m tests.mutate_rooms --rooms core rewards --sample 60 --seed 1 --survivors survivors.txt

A change is tried on the tests that mirror its module, then on those that name it, then on the rest of its room's and
on those of the settings' defaults (`-m "not slow"`).
Changes that make no difference are listed in `tests/equivalent_changes.txt`, with the reason; each other survivor is
a missing test. Prints a table of the rooms.
"""

import argparse
import ast
import gc
import importlib
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutate import LIBRARIES, mutants, survives

ROOMS = ("core", "rewards", "tasks", "evaluation", "training", "serve", "run", "commands")
SOURCE, TESTS, EQUIVALENT = Path("src/rlvr"), Path("tests/unit"), Path("tests/equivalent_changes.txt")
LONGEST_S = 1800  # of a room's tests
DEFAULTS = "tests/unit/config/test_docs.py"  # every setting's default is on a page
FAST = ("-m", "not slow and not pitfalls and not long")


@dataclass(frozen=True, kw_only=True)
class Change:
    """A changed place of a module."""

    file: Path
    number: int  # in the order of `mutants`

    @property
    def module(self) -> str:
        return ".".join(self.file.with_suffix("").parts[1:]).removesuffix(".__init__")


@dataclass(frozen=True, kw_only=True)
class Survivor:
    module: str
    line: int
    words: str

    @property
    def key(self) -> str:
        """Without the line, which moves."""
        return f"{self.module}: {' '.join(self.words.split())}"


def changes(room: str) -> list[Change]:
    """All changes of a room's modules."""
    return [
        Change(file=file, number=number)
        for file in sorted((SOURCE / room).rglob("*.py"))
        for number, _ in enumerate(mutants(ast.parse(file.read_text())))
    ]


def tests_of(room: str, file: Path) -> list[list[str]]:
    """Test files in the order in which they are tried: those that mirror a module, that name it, the others of the
    room."""
    package = ".".join(file.parts[1:-1])
    dotted = package if room == "commands" or file.stem == "__init__" else f"{package}.{file.stem}"
    mirror = sorted((TESTS / room).rglob(f"test_{file.parent.name if room == 'commands' else file.stem}.py"))
    named = [one for one in sorted(TESTS.rglob("test_*.py")) if one not in mirror and dotted in one.read_text()]
    rest = [one for one in sorted((TESTS / room).rglob("test_*.py")) if one not in {*mirror, *named}]
    return [[str(one) for one in group] for group in (mirror, named, [*rest, DEFAULTS]) if group]


def tried(room: str, change: Change, deadline_s: int) -> Survivor | None:
    """The change, if the tests pass with it."""
    tree = ast.parse(change.file.read_text())
    for number, (words, line) in enumerate(mutants(tree)):
        if number == change.number:
            if all(survives(change.module, tree, [*FAST, *one], deadline_s) for one in tests_of(room, change.file)):
                return Survivor(module=change.module, line=line, words=words)
            return None
    raise AssertionError(change)


def own_time(room: str) -> float:
    """Seconds that the room's tests take without a change."""
    tests = sorted(str(one) for one in (TESTS / room).rglob("test_*.py"))
    started = time.monotonic()
    if not survives(f"rlvr.{room}", ast.parse((SOURCE / room / "__init__.py").read_text()), [*FAST, *tests], LONGEST_S):
        sys.exit(f"{TESTS / room}: fails without any change")
    return time.monotonic() - started


def room_survivors(room: str, sample: int, seed: int, log: Path) -> tuple[int, int, list[Survivor]]:
    """How many changes there are, how many were tried, and which survived; these are added to a file, too."""
    deadline_s = 30 + round(3 * own_time(room))
    possible = changes(room)
    chosen = random.Random(f"{seed} {room}").sample(possible, min(sample, len(possible)))
    found = []
    for change in chosen:
        started = time.monotonic()
        survivor = tried(room, change, deadline_s)
        print(f"{room} {change.module} {change.number} {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)
        if survivor is not None:
            found.append(survivor)
            with log.open("a") as lines:
                print(f"{survivor.key}  (line {survivor.line})", file=lines)
    return len(possible), len(chosen), found


def row(room: str, possible: int, tried: int, survivors: Sequence[Survivor], equivalent: set[str]) -> str:
    """A row of the table; the share leaves out changes that make no difference."""
    same = sum(survivor.key in equivalent for survivor in survivors)
    caught = tried - len(survivors)
    share = 100 * caught / max(1, tried - same)
    return f"| {room} | {possible:,} | {tried} | {caught} | {same} | {len(survivors) - same} | {share:.0f} % |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rooms", nargs="+", choices=ROOMS, default=ROOMS)
    parser.add_argument("--sample", type=int, default=60, help="changes a room (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--survivors", type=Path, default=Path("survivors.txt"), help="gets a line for each")
    arguments = parser.parse_args()
    for library in LIBRARIES:
        importlib.import_module(library)
    gc.freeze()
    lines = EQUIVALENT.read_text().splitlines() if EQUIVALENT.exists() else []
    equivalent = {line for line in lines if line and not line.startswith(("#", " "))}
    print("| room | possible changes | tried | caught | make no difference | survived | caught of those that do |")
    print("|---|---|---|---|---|---|---|")
    for room in arguments.rooms:
        print(row(room, *room_survivors(room, arguments.sample, arguments.seed, arguments.survivors), equivalent))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
