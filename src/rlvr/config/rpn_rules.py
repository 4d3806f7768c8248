"""Rules inside the RPN task; the table in `rules.py` includes them."""

from collections.abc import Callable

from rlvr.config.rule import Rule
from rlvr.config.schema import Config, RpnTask


def _rpn(broken: Callable[[RpnTask], bool]) -> Callable[[Config], bool]:
    """A condition on the RPN task as one on configurations; no other task breaks it."""
    return lambda c: isinstance(c.task, RpnTask) and broken(c.task)


def _operands_out_of_range(t: RpnTask) -> bool:
    low, high = t.operand_range
    if t.modulus is not None:
        return low < 0 or high >= t.modulus
    return t.max_abs_value is not None and max(abs(low), abs(high)) > t.max_abs_value


def _weights_do_not_fit(t: RpnTask, weights: tuple[float, ...] | None) -> bool:
    low, high = t.complexity_range
    return weights is not None and low <= high and len(weights) != high - low + 1


_COMPLEXITY = "task.complexity_range=[{c.task.complexity_range[0]},{c.task.complexity_range[1]}]"
_OPERANDS = "task.operand_range=[{c.task.operand_range[0]},{c.task.operand_range[1]}]"

RPN_RULES = (
    Rule(
        _rpn(lambda t: len(set(t.operators)) < len(t.operators)),
        "task.operators: names an operator twice; name each once.",
    ),
    Rule(
        _rpn(lambda t: t.complexity_range[0] > t.complexity_range[1]),
        f"{_COMPLEXITY}: the fewest operators come first; write "
        "[{c.task.complexity_range[1]},{c.task.complexity_range[0]}].",
    ),
    Rule(
        _rpn(lambda t: t.operand_range[0] > t.operand_range[1]),
        f"{_OPERANDS}: the smallest operand comes first; write "
        "[{c.task.operand_range[1]},{c.task.operand_range[0]}].",
    ),
    Rule(
        _rpn(lambda t: t.modulus is None and t.max_abs_value is None),
        "task.modulus=null: plain integers need a bound on intermediate results; set task.max_abs_value, e.g. 99.",
    ),
    Rule(
        _rpn(lambda t: t.modulus is not None and t.max_abs_value is not None),
        "task.max_abs_value={c.task.max_abs_value}: has no effect with task.modulus={c.task.modulus}; set one of them "
        "to null.",
    ),
    Rule(
        _rpn(lambda t: _operands_out_of_range(t)),
        f"{_OPERANDS}: operands must lie in 0..modulus-1, or within +-max_abs_value for plain integers "
        "(task.modulus={c.task.modulus}, task.max_abs_value={c.task.max_abs_value}); narrow task.operand_range.",
    ),
    Rule(
        _rpn(lambda t: _weights_do_not_fit(t, t.complexity_weights)),
        f"task.complexity_weights: needs one weight for each number of operators in {_COMPLEXITY}; "
        "give as many, or null for uniform.",
    ),
    Rule(
        _rpn(lambda t: _weights_do_not_fit(t, t.eval_complexity_weights)),
        f"task.eval_complexity_weights: needs one weight for each number of operators in {_COMPLEXITY}; "
        "give as many, or null for uniform.",
    ),
    Rule(
        _rpn(lambda t: t.max_prompt_tokens < 2 * t.complexity_range[1] + 3),
        f"task.max_prompt_tokens={{c.task.max_prompt_tokens}}: too short for {_COMPLEXITY}, whose longest prompt has "
        "2 x operators + 3 tokens; raise it or lower task.complexity_range.",
    ),
    Rule(
        _rpn(lambda t: t.complexity_range[1] == 1),
        f"with {_COMPLEXITY}: one operator has only one shape",
        idle=("task.shape",),
    ),
)
