"""Mutation testing by hand: change one operator or constant at a time, and see whether the unit tests notice.

    python -m tests.mutate rlvr.core.packing
    python -m tests.mutate rlvr.core.batch tests/unit/core tests/unit/core/test_trainer.py

The tests are `tests/unit/core/test_packing.py` unless others are named. A survivor is a missing test or a change
that makes no difference. Each change runs in a fork of this process, which has loaded the libraries, on a copy of the
package that has it.
"""

import ast
import compileall
import copy
import gc
import importlib
import os
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

DEADLINE_S = 120
MAX_BYTES = 8 << 30  # an endless loop that collects must not end this process too
LIBRARIES = ("tests.conftest", "torch", "transformers.models.llama.modeling_llama", "pydantic", "hypothesis", "pytest")
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}


def changed(node: ast.AST) -> Iterator[ast.AST]:
    """The node with another operator, constant or without its `not`."""
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            if type(operator) in SWAPS:
                other = copy.deepcopy(node)
                other.ops[index] = SWAPS[type(operator)]()
                yield other
    if isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(node.op) in SWAPS:
        other = copy.deepcopy(node)
        other.op = SWAPS[type(node.op)]()
        yield other
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield ast.Constant(node.value + 1)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub | ast.Invert):
        yield node.operand


def mutants(node: ast.AST) -> Iterator[tuple[str, int]]:
    """Change the tree in place, one change at a time: what it was and is, and the line. Annotations stay."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        places = value if isinstance(value, list) else [value]
        for index, child in enumerate(places):
            if not isinstance(child, ast.AST):
                continue
            for other in changed(child):
                words = f"{ast.unparse(child)}  ->  {ast.unparse(other)}"
                ast.copy_location(other, child)
                put(node, name, index, other)
                yield words, getattr(child, "lineno", 0)
                put(node, name, index, child)
            yield from mutants(child)


def put(node: ast.AST, name: str, index: int, child: ast.AST) -> None:
    """Set a field, or one of a list of them."""
    if isinstance(getattr(node, name), list):
        getattr(node, name)[index] = child
    else:
        setattr(node, name, child)


def survives(module: str, tree: ast.Module, tests: Sequence[str], deadline_s: int = DEADLINE_S) -> bool:
    """Whether the tests pass with this tree in the place of the module. ValueError for a file that is not there."""
    if absent := [one for one in tests if one.startswith("tests/") and not Path(one.partition("::")[0]).exists()]:
        raise ValueError(f"there is no {absent[0]}")
    with tempfile.TemporaryDirectory() as folder:  # in the common one, processes remove each other's links
        source = package_with(Path(folder), module, tree)
        child = os.fork()
        if child == 0:
            run(source, [f"--basetemp={folder}/tests", *tests], deadline_s)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code in (0, 5)  # 5: the options leave no test; 4: a file of tests could not be imported


def package_with(folder: Path, module: str, tree: ast.Module) -> str:
    """A copy of the package with this tree in the place of the module: processes that tests start read it, too."""
    source = shutil.copytree("src", folder / "src")
    (folder / "plugins").symlink_to(Path("plugins").resolve())
    path = source.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    file.write_text(ast.unparse(ast.fix_missing_locations(tree)), encoding="utf-8")
    return str(source)


def run(source: str, tests: Sequence[str], deadline_s: int) -> NoReturn:
    """In the child: the process ends with pytest's status, or by a signal at the deadline."""
    code = 1  # of a module that cannot even be imported
    with suppress(BaseException):
        signal.alarm(deadline_s)
        resource.setrlimit(resource.RLIMIT_DATA, (MAX_BYTES, MAX_BYTES))
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        for loaded in [one for one in sys.modules if one.split(".")[0] in ("rlvr", "tests")]:
            del sys.modules[loaded]
        sys.path.insert(0, source)
        os.environ["PYTHONPATH"] = os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])
        import pytest

        early = "ignore::pytest.PytestAssertRewriteWarning"
        code = int(pytest.main(["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "--timeout=0", "-W", early, *tests]))
    os._exit(code)


def load() -> None:
    """What every change needs: the libraries, and the package's byte code, which copies of it share."""
    for library in LIBRARIES:
        importlib.import_module(library)
    compileall.compile_dir("src", quiet=1)
    gc.freeze()


def main() -> int:
    """Print the survivors."""
    module, *tests = sys.argv[1:]
    package, _, name = module.removeprefix("rlvr.").rpartition(".")
    tests = tests or [str(Path("tests/unit", *package.split("."), f"test_{name}.py"))]
    source = Path("src", *module.split(".")).with_suffix(".py").read_text()
    tree = ast.parse(source)
    load()
    if not survives(module, tree, tests):
        sys.exit(f"{' '.join(tests)}: fails without any change")
    total = survivors = 0
    for words, line in mutants(tree):
        total += 1
        if survives(module, tree, tests):
            survivors += 1
            print(f"{module}:{line}: {words}", flush=True)
    print(f"{survivors} of {total} changes survived")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
