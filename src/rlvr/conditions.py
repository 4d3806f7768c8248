"""When a setting has an effect: the small expressions of `only_if`.

    condition("kl_coef > 0")
    condition("enabled and model.from_scratch  # {enabled} and a model made from scratch")

Names are facts of the run (`rlvr.run_view.RunView`) or attributes of the settings class; `and`, `or`, `not`,
comparisons, `in`, products, constants, `.attribute` and `[index]` combine them. What follows a `#` says the condition
in words, with `{field}` for the key of a field.
"""

import ast
import operator
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, get_type_hints

from rlvr.errors import nearest
from rlvr.run_view import RunView

FACTS = frozenset(name for name in vars(RunView) if isinstance(vars(RunView)[name], property))

_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip
_ALLOWED = (
    ast.Constant, ast.Tuple, ast.Name, ast.Load, ast.Attribute, ast.Subscript, ast.UnaryOp, ast.Not, ast.USub,
    ast.BinOp, ast.Mult, ast.BoolOp, ast.And, ast.Or, ast.Compare, *_COMPARE,
)  # fmt: skip
MAY_HAVE = "names, constants, comparisons, in, and, or, not, products, .attribute and [index]"


@dataclass(frozen=True, kw_only=True)
class Condition:
    code: ast.expr
    names: tuple[str, ...]
    """The first part of each name in it: `enabled and model.from_scratch` -> enabled, model."""
    text: str
    """In words, with `{field}` for fields of the class."""

    def holds(self, settings: Any, run: RunView) -> bool:
        """Whether it is true of these settings in this run."""
        return bool(_value(self.code, lambda name: getattr(run if name in FACTS else settings, name)))

    def words(self, path: str) -> str:
        """It in words, with values as in YAML and the keys of a section at `path`."""
        return re.sub(r"\{(\w+)\}", rf"{path}.\1", self.text)


@cache
def condition(only_if: str) -> Condition:
    """Read an expression. Raises SyntaxError for one that is no condition."""
    code, _, text = (part.strip() for part in only_if.partition("#"))
    try:
        tree = ast.parse(code, mode="eval").body
    except SyntaxError as error:
        raise SyntaxError(f"only_if={only_if!r}: {error.msg}") from None
    for node in ast.walk(tree):
        if not isinstance(node, _ALLOWED):
            said = type(node).__name__
            raise SyntaxError(f"only_if={only_if!r}: has a {said}; a condition may have {MAY_HAVE}")
    names = tuple(dict.fromkeys(node.id for node in ast.walk(tree) if isinstance(node, ast.Name)))
    return Condition(code=tree, names=names, text=text or _in_words(code, names))


def check_names(only_if: str, settings: type[Any]) -> None:
    """Raise NameError for a name that is neither of the class nor a fact of a run, or both."""
    what, parsed = f"only_if={only_if!r} of {settings.__name__}", condition(only_if)
    for name in parsed.names:
        if name in FACTS and name in settings.model_fields:
            raise NameError(f"{what}: {name} is a field of the class, and a fact of the run; rename the field")
        known = name in FACTS or name in settings.model_fields or hasattr(settings, name)
        if not known or callable(getattr(settings, name, None)):
            raise NameError(f"{what}: there is no {name}")
    for node in ast.walk(parsed.code):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in FACTS:
            view = get_type_hints(vars(RunView)[node.value.id].fget)["return"]
            known = [*view.__annotations__, *vars(view)]
            if node.attr not in known:
                near = nearest(node.attr, [name for name in known if not name.startswith("_")])
                hint = f"; did you mean {node.value.id}.{near}?" if near else ""
                raise NameError(f"{what}: {node.value.id} has no {node.attr} that a component can see{hint}")


def _in_words(code: str, names: Collection[str]) -> str:
    """The expression with fields in braces, and values as YAML writes them."""
    for name in set(names) - FACTS:
        code = re.sub(rf"(?<![\w.'\"]){name}(?![\w'\"])", f"{{{name}}}", code)
    return code.replace(" is not None", " not null").replace(" is None", "=null").replace("'", "")


def _value(node: ast.expr, names: Callable[[str], Any]) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            return names(node.id)
        case ast.Attribute():
            return getattr(_value(node.value, names), node.attr)
        case ast.Subscript():
            return _value(node.value, names)[_value(node.slice, names)]
        case ast.Tuple():
            return tuple(_value(part, names) for part in node.elts)
        case ast.UnaryOp():
            value = _value(node.operand, names)
            return not value if isinstance(node.op, ast.Not) else -value
        case ast.BinOp():
            return _value(node.left, names) * _value(node.right, names)
        case ast.BoolOp():
            return (all if isinstance(node.op, ast.And) else any)(_value(part, names) for part in node.values)
        case ast.Compare():
            sides = [_value(side, names) for side in (node.left, *node.comparators)]
            return all(_COMPARE[type(op)](*pair) for op, pair in zip(node.ops, pairwise(sides), strict=True))
