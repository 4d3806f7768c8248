"""Errors that are the user's to mend: one sentence, no traceback."""


class UserError(Exception):
    """Something outside the program is wrong. The message names the thing, its value and the remedy."""

    exit_code = 1


class ConfigError(UserError):
    """A setting is unknown, of the wrong type, out of range, or contradicts another one."""

    exit_code = 2


class NonFiniteLogitsError(UserError, FloatingPointError):
    """The model's output is NaN or infinite: nothing can be sampled from it."""
