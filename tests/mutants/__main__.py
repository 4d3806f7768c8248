"""Plant every known bug in a copy of the tree and demand that its test fails: `python -m tests.mutants [PART ...]`.

A part is a module of this package that holds a list `MUTANTS`. Exit status 1 if a bug survives.
"""

import importlib
import os
import pkgutil
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import tests.mutants
from tests.mutants.mutant import Mutant

ROOT = Path(__file__).resolve().parents[2]


def load(parts: list[str]) -> list[Mutant]:
    """The mutants of the named parts, or of all."""
    names = [m.name for m in pkgutil.iter_modules(tests.mutants.__path__) if m.name not in ("mutant", "__main__")]
    return [m for name in names if not parts or name in parts for m in importlib.import_module(f"tests.mutants.{name}").MUTANTS]


def run_test(tree: Path, test: str) -> subprocess.CompletedProcess[str]:
    """Run one test against the package in `tree`."""
    env = os.environ | {"PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-m", "", test]
    return subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, check=False)


def survives(mutant: Mutant) -> str | None:
    """None if the bug is caught, else what went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".git", ".venv", "runs", "__pycache__", ".*_cache"))
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
    mutants = load(sys.argv[1:])
    failed = 0
    for mutant in mutants:
        problem = survives(mutant)
        failed += problem is not None
        print(f"{'SURVIVED' if problem else 'caught  '} pitfall {mutant.pitfall:>4}  {mutant.test}", problem or "", flush=True)
    print(f"{len(mutants) - failed} of {len(mutants)} planted bugs caught")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
