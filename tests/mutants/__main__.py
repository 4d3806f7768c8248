"""Plant every known bug in a copy of the tree and demand that its test fails.

    python -m tests.mutants [--jobs N] [PART ...]

A part is a module of this package that holds a list `MUTANTS`. Exit status 1 if a bug survives.
"""

import argparse
import importlib
import importlib.util
import os
import pkgutil
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tests.mutants
from tests.mutants.mutant import Mutant
from tests.vllm_python import missing_vllm

ROOT = Path(__file__).resolve().parents[2]


def load(parts: list[str]) -> list[Mutant]:
    """The mutants of the named parts, or of all."""
    parts_found = [m.name for m in pkgutil.iter_modules(tests.mutants.__path__)]
    names = [name for name in parts_found if name not in ("mutant", "pitfalls", "__main__")]
    chosen = [name for name in names if not parts or name in parts]
    return [mutant for name in chosen for mutant in importlib.import_module(f"tests.mutants.{name}").MUTANTS]


def run_test(tree: Path, test: str) -> subprocess.CompletedProcess[str]:
    """Run one test against the package in `tree`."""
    env = os.environ | {"PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", test]
    return subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, check=False)


def is_there(library: str) -> bool:
    """Whether a library is installed; vLLM is in an environment of its own."""
    return missing_vllm() is None if library == "vllm" else importlib.util.find_spec(library) is not None


def survives(mutant: Mutant) -> str | None:
    """None if the bug is caught, else what went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        for name in ("src", "tests", "examples", "docs"):
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", tree)
        file = tree / "src" / "rlvr" / mutant.file
        source = file.read_text()
        if source.count(mutant.old) != 1:
            return f"`old` occurs {source.count(mutant.old)} times in {mutant.file}"
        file.write_text(source.replace(mutant.old, mutant.new))
        result = run_test(tree, mutant.test)
    if result.returncode == 1:
        return None
    return f"pytest exited {result.returncode} instead of 1: {result.stdout[-300:]}"


def main() -> int:
    """Print one line per mutant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="modules of tests/mutants; none: all")
    parser.add_argument("--jobs", type=int, default=1, help="bugs tried at the same time")
    arguments = parser.parse_args()
    mutants = load(arguments.parts)
    skipped = [mutant for mutant in mutants if mutant.needs and not is_there(mutant.needs)]
    mutants = [mutant for mutant in mutants if mutant not in skipped]
    for mutant in skipped:
        print(f"SKIPPED  pitfall {mutant.pitfall:>4}  {mutant.test} {mutant.needs} is not installed", flush=True)
    failed = 0
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for mutant, problem in zip(mutants, pool.map(survives, mutants), strict=True):
            failed += problem is not None
            verdict = "SURVIVED" if problem else "caught  "
            print(f"{verdict} pitfall {mutant.pitfall:>4}  {mutant.test}", problem or "", flush=True)
    untried = f", {len(skipped)} not tried" if skipped else ""
    print(f"{len(mutants) - failed} of {len(mutants)} planted bugs caught{untried}")
    return int(failed > 0 or not mutants + skipped)


if __name__ == "__main__":
    raise SystemExit(main())
