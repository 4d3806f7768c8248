"""math-verify's own test cases: what it says of them, and what `reward=math` says, strict and lenient.

    git clone https://github.com/huggingface/Math-Verify
    python benchmarks/math_cases.py Math-Verify/tests [--all]

Takes the parametrized cases with a gold, an answer and a verdict, read from the files without running them, apart from
those that change math-verify's settings. Prints the counts, and the cases in which lenient and verdict differ (`--all`:
also strict).
"""

from __future__ import annotations

import argparse
import ast
import collections
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from math_verify import parse, verify

from rlvr.rewards.math_worker import compare


class Case(NamedTuple):
    file: str
    gold: str
    answer: str
    is_right: bool


def cases(folder: Path) -> Iterator[Case]:
    for file in sorted(folder.glob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            for decorator in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
                if isinstance(decorator, ast.Call) and getattr(decorator.func, "attr", "") == "parametrize":
                    yield from (Case(file.stem, *found) for row in _rows(decorator) if (found := _case(row)))


def _rows(decorator: ast.Call) -> Iterator[dict[str, Any]]:
    """The cases by parameter; a case that is computed is left out."""
    names = ast.literal_eval(decorator.args[0])
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
    for element in decorator.args[1].elts if isinstance(decorator.args[1], ast.List) else ():
        try:
            yield dict(zip(names, ast.literal_eval(element), strict=True))
        except (ValueError, TypeError):
            continue


def _case(row: dict[str, Any]) -> tuple[str, str, bool] | None:
    gold, answer = row.get("gold"), row.get("pred")
    changed = not row.get("strict", True) or row.get("allow_set_relation_comp")
    if not isinstance(gold, str) or not isinstance(answer, str) or changed:
        return None
    return gold, answer, bool(row.get("expected", row.get("result")))


def theirs(case: Case) -> bool:
    try:
        return verify(parse(case.gold), parse(case.answer))
    except Exception:
        return False


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="the folder `tests` of math-verify's repository")
    parser.add_argument("--all", action="store_true", help="also print the cases in which the strict reading differs")
    args = parser.parse_args()
    agree: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for case in cases(args.folder):
        said = {
            "math-verify": theirs(case),
            "strict": compare(case.gold, case.answer) == "equal",
            "lenient": compare(case.gold, case.answer, lenient=True) == "equal",
        }
        for column in (case.file, "all"):
            agree[column]["cases"] += 1
            agree[column].update(name for name, right in said.items() if right == case.is_right)
            if not case.is_right:
                agree[column]["wrong answers"] += 1
                agree[column].update(f"{name} pays" for name, right in said.items() if right)
        for name in ("lenient", "strict") if args.all else ("lenient",):
            if said[name] != case.is_right:
                print(f"{name}: gold {case.gold[-70:]!r}, answer {case.answer[-70:]!r}, verdict {case.is_right}")
    names = (
        "cases",
        "math-verify",
        "strict",
        "lenient",
        "wrong answers",
        "math-verify pays",
        "strict pays",
        "lenient pays",
    )
    print(f"\n| file | {' | '.join(names)} |\n|---|{'---:|' * len(names)}")
    for file, counts in agree.items():
        print(f"| {file} | {' | '.join(str(counts[name]) for name in names)} |")


if __name__ == "__main__":
    main()
