"""Plant a bug in a function of this process, named `package.module:function` or `package.module:Class.method`.

    around("rlvr.algorithms.losses:clip", lambda original, ratio, *rest: original(2 * ratio, *rest))
    edit("rlvr.algorithms.losses:clip", renamed("maximum", "minimum"))

Both exchange the code of the function object itself, so modules that imported it by name have the bug too. Neither
depends on the wording of the source; `edit` depends on the shape of the function's syntax tree.
"""

import __future__

import ast
import importlib
import inspect
import os
import textwrap
import traceback
import types
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

Change = Callable[[ast.AST], ast.AST | None]
"""What to do with each node of a function: return it, another one, or None to remove it."""

BROKEN = 70
"""Exit status of a process whose planted bug does not fit the code any more."""

_stderr = os.dup(2)  # pytest captures the other one


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A bug: `caught_by` is the pytest id of a test that must fail once `plant()` has been called."""

    pitfall: int
    name: str
    plant: Callable[[], None]
    caught_by: str


def around(target: str, bug: Callable[..., Any]) -> Callable[[], None]:
    """Call `bug(original, *arguments)` in place of the function."""

    def plant() -> None:
        function = _function(target)
        original = types.FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        original.__kwdefaults__ = function.__kwdefaults__
        function.__signature__ = inspect.signature(function)
        function.__globals__["__planted__"] = _checked(bug, original)
        function.__code__ = _call_planted.__code__
        function.__defaults__ = function.__kwdefaults__ = None

    return plant


def edit(target: str, change: Change) -> Callable[[], None]:
    """Apply the change to every node of the function's syntax tree."""

    def plant() -> None:
        function = _function(target)
        code = function.__code__
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
        assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
        definition.decorator_list = []
        transformer = _Transformer(change)
        module = ast.fix_missing_locations(ast.Module([transformer.visit(definition)], []))
        if not transformer.num_changed:
            _give_up(f"{target}: nothing to change; adapt the planted bug")
        ast.increment_lineno(module, code.co_firstlineno - 1)
        lazy = code.co_flags & __future__.annotations.compiler_flag
        compiled = compile(module, code.co_filename, "exec", dont_inherit=True, flags=lazy)
        (function.__code__,) = [one for one in compiled.co_consts if isinstance(one, types.CodeType)]

    return plant


# ---------------------------------------------------------------------------------------------------------- changes


def renamed(old: str, new: str) -> Change:
    """Use another name: `maximum` -> `minimum`."""

    def change(node: ast.AST) -> ast.AST:
        if isinstance(node, ast.Attribute) and node.attr == old:
            return ast.Attribute(node.value, new, node.ctx)
        if isinstance(node, ast.Name) and node.id == old:
            return ast.Name(new, node.ctx)
        return node

    return change


def constant(old: object, new: object) -> Change:
    """Use another constant."""
    return lambda node: ast.Constant(new) if isinstance(node, ast.Constant) and node.value is old else node


def without_method(name: str) -> Change:
    """`x.clamp(...)` -> `x`."""

    def change(node: ast.AST) -> ast.AST:
        found = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name
        return node.func.value if found else node

    return change


def without_keyword(name: str) -> Change:
    """`f(x, device=d)` -> `f(x)`."""

    def change(node: ast.AST) -> ast.AST:
        if not isinstance(node, ast.Call) or all(one.arg != name for one in node.keywords):
            return node
        return ast.Call(node.func, node.args, [one for one in node.keywords if one.arg != name])

    return change


def without_call(name: str) -> Change:
    """Drop statements that are a call of `name` or of a method of that name."""

    def change(node: ast.AST) -> ast.AST:
        called = node.value.func if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
        return ast.Pass() if name in (getattr(called, "attr", None), getattr(called, "id", None)) else node

    return change


def first_operand(operator: type[ast.operator]) -> Change:
    """`a - b` -> `a`."""
    return lambda node: node.left if isinstance(node, ast.BinOp) and isinstance(node.op, operator) else node


def without_filter(node: ast.AST) -> ast.AST:
    """`[x for x in xs if good(x)]` -> `[x for x in xs]`."""
    return ast.comprehension(node.target, node.iter, [], node.is_async) if getattr(node, "ifs", None) else node


# ------------------------------------------------------------------------------------------------------------- inside


class _Transformer(ast.NodeTransformer):
    def __init__(self, change: Change) -> None:
        self._change, self.num_changed = change, 0

    def visit(self, node: ast.AST) -> Any:
        visited = self.generic_visit(node)
        changed = self._change(visited)
        self.num_changed += changed is not visited
        return changed


def _function(target: str) -> types.FunctionType:
    """The plain function behind decorators, properties and class methods."""
    module, _, path = target.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            found = inspect.getattr_static(found, name)
    except (ImportError, AttributeError) as error:
        _give_up(f"{target}: {error}; adapt the planted bug")
    found = inspect.unwrap(getattr(found, "__func__", None) or getattr(found, "fget", None) or found)
    assert isinstance(found, types.FunctionType), target
    return found


def _call_planted(*args: Any, **kwargs: Any) -> Any:
    return __planted__(*args, **kwargs)  # noqa: F821


def _checked(bug: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """A mistake in the bug itself, after a signature has changed, say, must not pass for a bug that was caught."""

    async def awaited(result: Awaitable[Any]) -> Any:
        try:
            return await result
        except Exception as error:
            _give_up_if_ours(error)
            raise

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            result = bug(original, *args, **kwargs)
        except Exception as error:
            _give_up_if_ours(error)
            raise
        return awaited(result) if inspect.iscoroutine(result) else result

    return call


def _give_up_if_ours(error: Exception) -> None:
    frames: Sequence[traceback.FrameSummary] = traceback.extract_tb(error.__traceback__)
    if os.path.dirname(frames[-1].filename) == os.path.dirname(__file__):
        _give_up("".join(traceback.format_exception(error)))


def _give_up(message: str) -> None:
    os.write(_stderr, f"{message}\n".encode())
    os._exit(BROKEN)
