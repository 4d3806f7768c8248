"""Tests written as Python, split into what goes into the jail and what is expected outside of it.

    assert double(3) == 6                         call `double(3)`, expected 6
    assert not is_even(3)                         call `is_even(3)`, expected to be false
    assert abs(half(3) - 1.5) < 1e-6              call `half(3)`, expected within 1e-6 of 1.5
    inputs = [[3]]; results = [6]                 call `double(*[3])`, expected 6: EvalPlus

An assert that cannot be split would have to be judged by the process that the program controls: it is left out, and
counted. Nothing here runs a test.
"""

import ast
import builtins
import operator
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from rlvr.rewards.code_judge import TestCase

_MAX_ITEMS, _MAX_POWER = 100_000, 4_096
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_MAKERS = {"set": set, "frozenset": frozenset, "tuple": tuple, "list": list, "dict": dict, "float": float}


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """`Split(cases=(TestCase(...),), num_left_out=1)`"""

    cases: tuple[TestCase, ...]
    num_left_out: int = 0


def split_asserts(source: str, entry: str = "") -> Split:
    """The asserts of a module, of its functions `test_...` and of HumanEval's `check(candidate)`, where `candidate` is
    the function `entry`, or what the module calls `check` with. SyntaxError, or ValueError, for what is no Python."""
    module = ast.parse(source)
    cases: list[TestCase] = []
    for body, known in _bodies(module, entry):
        cases += _of_body(body, known)
        cases += _of_lists(body, entry)
    counted = [node for node in ast.walk(module) if isinstance(node, ast.Assert) and not _is_constant(node.test)]
    return Split(cases=tuple(cases), num_left_out=max(0, len(counted) - len(cases)))


Known = Mapping[str, ast.expr]
"""Names, and the expressions that they stand for."""


def _bodies(module: ast.Module, entry: str) -> Iterator[tuple[list[ast.stmt], Known]]:
    """The statements of the module, and of each of its functions of tests."""
    yield module.body, {}
    candidate = ast.Name(entry, ast.Load()) if entry else None
    for node in module.body:
        match node:
            case ast.Expr(value=ast.Call(func=ast.Name(id="check"), args=[given])):
                candidate = candidate or given
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and node.name == "check" and candidate is not None and node.args.args:
            yield node.body, {node.args.args[0].arg: candidate}
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            yield node.body, {}


def _of_body(body: list[ast.stmt], known: Known) -> Iterator[TestCase]:
    """The cases of the statements that run one after another; `x = f(3)` is put where x stands."""
    names = dict(known)
    for node in body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            names[node.targets[0].id] = _filled(node.value, names)
        elif isinstance(node, ast.Assert):
            case = _case(_filled(node.test, names))
            if case is not None:
                yield case


def _of_lists(body: list[ast.stmt], entry: str) -> Iterator[TestCase]:
    """EvalPlus's cases: lists of arguments and of results."""
    values = {
        node.targets[0].id: node.value
        for node in body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    if not entry or not {"inputs", "results"} <= set(values):
        return
    try:
        inputs, results = constant(values["inputs"]), constant(values["results"])
    except ValueError:
        return
    for arguments, expected in zip(inputs, results, strict=False):
        yield TestCase(item={"call": f"{entry}(*{arguments!r})"}, expected=expected)


def _filled(node: ast.expr, names: Known) -> ast.expr:
    """The expression with known names replaced by what they stand for."""

    class Fill(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return deepcopy(names[node.id]) if node.id in names else node

    return Fill().visit(deepcopy(node)) if names else node


def _case(test: ast.expr) -> TestCase | None:
    """The test as a case; None if it cannot be split."""
    match test:
        case ast.Compare(left=left, ops=[ast.Eq() | ast.Is()], comparators=[right]):
            for call, expected in ((left, right), (right, left)):
                if not _is_constant(call) and _is_constant(expected):
                    return TestCase(item={"call": ast.unparse(call)}, expected=constant(expected))
        case ast.Compare(left=left, ops=[ast.Lt() | ast.LtE()], comparators=[bound]) if _is_constant(bound):
            return _close(left, constant(bound))
        case ast.Call(func=ast.Attribute(attr="isclose")):
            return _isclose(test)
        case ast.UnaryOp(op=ast.Not(), operand=ast.Call() as call) if _is_own(call):
            return TestCase(item={"call": ast.unparse(call)}, expected=False, by="truth")
        case ast.Call() if _is_own(test):
            return TestCase(item={"call": ast.unparse(test)}, expected=True, by="truth")
    return None


def _close(distance: ast.expr, tolerance: Any) -> TestCase | None:
    match distance:
        case ast.Call(func=ast.Name(id="abs"), args=[ast.BinOp(left=left, op=ast.Sub(), right=right)]):
            for call, expected in ((left, right), (right, left)):
                if not _is_constant(call) and _is_constant(expected):
                    item = {"call": ast.unparse(call)}
                    return TestCase(item=item, expected=constant(expected), by="close", tolerance=tolerance)
    return None


def _isclose(test: ast.Call) -> TestCase | None:
    """`math.isclose(f(1), 0.5, rel_tol=1e-6)`"""
    options = {keyword.arg: keyword.value for keyword in test.keywords}
    if (
        len(test.args) != 2
        or not set(options) <= {"rel_tol", "abs_tol"}
        or not all(map(_is_constant, options.values()))
    ):
        return None
    call, expected = test.args
    if _is_constant(call) or not _is_constant(expected):
        return None
    relative, absolute = (
        constant(options[name]) if name in options else usual for name, usual in (("rel_tol", 1e-9), ("abs_tol", 0.0))
    )
    value = constant(expected)
    tolerance = max(relative * abs(value), absolute)
    return TestCase(item={"call": ast.unparse(call)}, expected=value, by="close", tolerance=tolerance)


def _is_own(call: ast.Call) -> bool:
    """Whether a call is of the program's own function: whatever a builtin says of it, a program may have patched."""
    return isinstance(call.func, ast.Name) and not hasattr(builtins, call.func.id)


def _is_constant(node: ast.expr) -> bool:
    try:
        constant(node)
    except ValueError:
        return False
    return True


def constant(node: ast.expr) -> Any:
    """The value of a literal, or of simple arithmetic with some: `[0] * 5`, `2 ** 10`, `set()`, `float("inf")`.

    ValueError for anything else, and for what would be large.
    """
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        pass
    match node:
        case ast.List(elts=items):
            return [constant(item) for item in items]
        case ast.Tuple(elts=items):
            return tuple(constant(item) for item in items)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _computed(operator.sub, 0, constant(operand))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _computed(_OPERATORS[type(op)], constant(left), constant(right))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _MAKERS and len(arguments) < 2:
            return _computed(_MAKERS[name], *map(constant, arguments))
    raise ValueError("is no literal")


def _computed(function: Any, *values: Any) -> Any:
    """ValueError for what cannot be computed, or would be large."""
    sizes = [len(value) for value in values if isinstance(value, str | bytes | list | tuple)]
    numbers = [abs(value) for value in values if isinstance(value, int)]
    is_long = function is operator.mul and sizes and max(numbers, default=0) * max(sizes) > _MAX_ITEMS
    is_large = function is operator.pow and (max(numbers, default=0) > _MAX_POWER)
    if is_long or is_large:
        raise ValueError("is too large")
    try:
        return function(*values)
    except (TypeError, ArithmeticError, ValueError) as error:
        raise ValueError(str(error)) from error
