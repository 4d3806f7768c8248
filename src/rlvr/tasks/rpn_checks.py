"""What the settings of the RPN task must fulfil together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlvr.errors import ConfigError

if TYPE_CHECKING:
    from rlvr.config.schema import RpnTask as RpnSettings


def prompt_tokens(num_operators: int) -> int:
    """Tokens of `<boe> expression =`: k operators, k + 1 operands, two marks."""
    return 2 * num_operators + 3


def check_settings(settings: RpnSettings) -> None:
    """ConfigError for the first contradiction: key, value, remedy."""
    _check_operators(settings)
    _check_complexity(settings)
    _check_values(settings)


def _check_operators(settings: RpnSettings) -> None:
    operators = list(settings.operators)
    if len(set(operators)) != len(operators):
        raise ConfigError(f"task.operators={operators} names an operator twice: name each one once.")


def _check_complexity(settings: RpnSettings) -> None:
    fewest, most = settings.complexity_range
    if fewest > most:
        raise ConfigError(
            f"task.complexity_range=[{fewest}, {most}] is the wrong way round: fewest operators first, "
            f"[{most}, {fewest}]."
        )
    for key in ("complexity_weights", "eval_complexity_weights"):
        weights = getattr(settings, key)
        if weights is not None and len(weights) != most - fewest + 1:
            raise ConfigError(
                f"task.{key}={list(weights)} has {len(weights)} weights, but complexity_range=[{fewest}, {most}] "
                f"needs {most - fewest + 1}: one for each number of operators, or null."
            )
    if prompt_tokens(most) > settings.max_prompt_tokens:
        raise ConfigError(
            f"task.max_prompt_tokens={settings.max_prompt_tokens} is too small for complexity_range="
            f"[{fewest}, {most}]: {most} operators make a prompt of {prompt_tokens(most)} tokens; raise it or lower "
            "complexity_range."
        )


def _check_values(settings: RpnSettings) -> None:
    low, high = settings.operand_range
    if low > high:
        raise ConfigError(
            f"task.operand_range=[{low}, {high}] is the wrong way round: smallest first, [{high}, {low}]."
        )
    if settings.modulus is None:
        bound = settings.max_abs_value
        if bound is None:
            raise ConfigError(
                "task.max_abs_value=null with modulus=null leaves the integers without a bound: set one of the two."
            )
        if max(abs(low), abs(high)) > bound:
            raise ConfigError(
                f"task.operand_range=[{low}, {high}] goes beyond max_abs_value={bound}: raise max_abs_value or narrow "
                "operand_range."
            )
        return
    if settings.max_abs_value is not None:
        raise ConfigError(
            f"task.max_abs_value={settings.max_abs_value} has no effect with modulus={settings.modulus}: set one of "
            "the two to null."
        )
    if low < 0 or high >= settings.modulus:
        raise ConfigError(
            f"task.operand_range=[{low}, {high}] is not inside 0..{settings.modulus - 1}, the numbers modulo "
            f"{settings.modulus}: narrow operand_range or raise modulus."
        )
